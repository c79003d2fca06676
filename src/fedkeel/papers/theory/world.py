"""The setting of LP-FT, Section 4: a two-layer linear model, clients that share its features, and their losses.

Client i has the targets y = V_i*^T B* x, where B* (k x d) has orthonormal rows and V_i* = [V_com; lambda e_i] with
V_com in R^m, e_i in R^C, k = m + C (Assumption 4.1). The model is y = V^T B x (Assumption 4.2) and starts at B* and
V_0 = [V_com; 0]. Clients count from 0 here: the first one, 0, is the one that fine-tunes.

Inputs have the second moment Sigma_i = I in Section 4.1, and e_i e_i^T + eps^2 I in Section 4.2 (e_i now in R^d).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedkeel.core.errors import FedkeelError

Array = npt.NDArray[np.float64]
NO_PROBING = 0
"""steps of linear probing of plain fine-tuning (FT)"""
CONVERGED = None
"""linear probing to its end, as in LP-FT"""


@dataclass(frozen=True)
class Model:
    """A two-layer linear network, y = V^T B x."""

    V: Array
    B: Array

    @property
    def u(self) -> Array:
        """B^T V: no loss sees more of the network than this vector."""
        return self.B.T @ self.V


@dataclass(frozen=True)
class World:
    """Who has which targets and inputs."""

    B: Array
    """B*, with orthonormal rows"""
    common: Array
    """V_com"""
    lam: float
    """lambda: how much the clients differ"""
    eps: float | None = None
    """noise around the client's own input e_i (Section 4.2); None: isotropic inputs (Section 4.1)"""

    def __post_init__(self) -> None:
        k, d = self.B.shape
        if not len(self.common) < k <= d or np.abs(self.B @ self.B.T - np.eye(k)).max() > 1e-8:
            raise FedkeelError(
                f"B* is {k} x {d} with V_com of length {len(self.common)}: expected orthonormal rows, at least one "
                "more than V_com is long and at most as many as columns; take one from fedkeel.papers.theory.draw"
            )

    @property
    def clients(self) -> int:
        return len(self.B) - len(self.common)

    @cached_property
    def start(self) -> Model:
        """B* and V_0: what all clients share."""
        return Model(np.concatenate([self.common, np.zeros(self.clients)]), self.B)

    @cached_property
    def targets(self) -> Array:
        """Row i: u_i = B*^T V_i*."""
        own: Array = self.B[len(self.common) :]
        return self.B[: len(self.common)].T @ self.common + self.lam * own

    def moment(self, client: int = 0) -> Array:
        """Sigma_i, the second moment of a client's inputs."""
        d = self.B.shape[1]
        if self.eps is None:
            return np.eye(d)
        moment = self.eps**2 * np.eye(d)
        moment[client, client] += 1
        return moment

    def losses(self, u: Array) -> Array:
        """Each client's loss of a model, (u - u_i)^T Sigma_i (u - u_i) / 2."""
        gaps = u - self.targets
        squares = (gaps**2).sum(axis=1)
        if self.eps is None:
            return np.asarray(squares / 2)
        return np.asarray((np.diagonal(gaps) ** 2 + self.eps**2 * squares) / 2)

    def local_loss(self, u: Array) -> float:
        """L_L of the client that fine-tunes."""
        return float(self.losses(u)[0])

    def global_loss(self, u: Array) -> float:
        """L_G: the mean over all clients."""
        return float(self.losses(u).mean())

    def drift(self, model: Model) -> float:
        """How far fine-tuning has moved the features: the Frobenius norm of B - B*."""
        return float(np.linalg.norm(model.B - self.B))


def draw(
    random: np.random.Generator,
    *,
    k: int = 10,
    d: int = 20,
    clients: int = 5,
    lam: float = 1.0,
    eps: float | None = None,
) -> World:
    """A random world: the rows of B* span a random subspace, V_com ~ N(0, I).

    The sizes are those of Figure 6. The paper does not say how V_com was drawn: that is our choice.
    """
    if not 1 <= clients <= k <= d:
        raise FedkeelError(f"got clients={clients}, k={k}, d={d}: expected 1 <= clients <= k <= d")
    B = np.linalg.qr(random.standard_normal((d, k)))[0].T
    return World(B, random.standard_normal(k - clients), lam, eps)
