"""How far scores can be trusted, and the one number that makes them trustworthy: a temperature.

Guo, Pleiss, Sun, Weinberger, On Calibration of Modern Neural Networks, ICML 2017: scores are softmax(z / T) with the T
that has the least log loss on rows held back from training. No prediction changes. The expected calibration error is
    ECE = sum_b n_b / n |right_b / n_b - confidence_b / n_b|
over 15 bins of equal width of the confidence, which is the score of the class predicted.

Here nobody sees a row: each client sends the log loss of its validation rows, summed, at every T of a grid, and the
server adds up and takes the least, between the points of the grid by a polynomial in log T through five of them.

Our choices: one more row, of which every class is equally likely, is added to those of all clients (their mean row),
so that a few rows that are all predicted right do not make every score a 1; of a score, no less than ``LEAST`` counts.

What leaks: of a client with a single validation row the server learns how likely the model finds its class. Add the
sums under secure aggregation where it must not.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Polynomial

from fedkeel.core.method import AnyMethod, Method, Phase, State, Update, Visit, from_settings
from fedkeel.core.tree import Tensor, Tree

POINTS, WIDEST = 61, 100.0
STEP = 2 * math.log(WIDEST) / (POINTS - 1)
BETWEEN = np.linspace(-2, 2, 4001)
"""Where the least is looked for around a point of the grid, in steps of it."""
LEAST = 1e-30
ENTRIES = 2**22
"""Scores at all temperatures that are in memory at once."""
BINS = 15

ASKED = "calibration."
LOSS, ANY, ROWS = f"{ASKED}sum.loss", f"{ASKED}sum.any", f"{ASKED}sum.rows"
BEFORE, AFTER, TEMPERATURE = f"{ASKED}bins.before", f"{ASKED}bins.after", f"{ASKED}temperature"


def grid() -> Tensor:
    """Temperatures from 1 / 100 to 100, evenly spaced in their logarithm."""
    return torch.linspace(-math.log(WIDEST), math.log(WIDEST), POINTS, dtype=torch.float64).exp()


def loss_sums(method: AnyMethod, logits: Tensor, y: Tensor) -> Tree:
    """Sums over rows, at every temperature: the log loss, and what it is on average if any class may be right."""
    loss, of_any = torch.zeros(2, POINTS, dtype=torch.float64)
    part = max(1, ENTRIES // (POINTS * logits.shape[1]))
    for first in range(0, len(y), part):
        z, label = logits[first : first + part].double(), y[first : first + part]
        losses = -method.scores(z / grid()[:, None, None]).clamp(min=LEAST).log()
        loss += losses.gather(-1, label.expand(POINTS, -1).unsqueeze(-1)).sum((1, 2))
        of_any += losses.mean(-1).sum(1)
    return {LOSS: loss, ANY: of_any, ROWS: torch.tensor([len(y)], dtype=torch.float64)}


def temperature_of(sums: Tree) -> float | None:
    """The temperature with the least loss; None without rows."""
    rows = float(sums[ROWS])
    if not rows:
        return None
    losses = (sums[LOSS] + sums[ANY] / rows).numpy()
    at = int(np.clip(losses.argmin(), 2, POINTS - 3))
    curve = Polynomial.fit(np.arange(-2, 3), losses[at - 2 : at + 3], 4)
    steps = BETWEEN[curve(BETWEEN).argmin()]
    return float(grid()[at]) * math.exp(STEP * steps)


def own_temperature(method: AnyMethod, logits: Tensor, y: Tensor) -> float | None:
    """Of a client's own model, by itself."""
    return temperature_of(loss_sums(method, logits, y))


def bins_of(scores: Tensor, y: Tensor) -> Tensor:
    """(3, bins): rows, summed confidence and right answers by confidence; a bin holds its upper edge."""
    highest, best = scores.max(1)
    confidence = highest.double()
    at = ((confidence * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    parts = (torch.ones_like(confidence), confidence, (best == y).double())
    return torch.stack([torch.zeros(BINS, dtype=torch.float64).index_add(0, at, part) for part in parts])


def reliability(bins: Tensor) -> dict[str, Any]:
    """Accuracy, mean confidence and expected calibration error of the rows in the bins, and the bins."""
    rows, confidence, right = bins
    count = max(1.0, float(rows.sum()))
    return {
        "rows": int(rows.sum()),
        "accuracy": float(right.sum()) / count,
        "confidence": float(confidence.sum()) / count,
        "ece": float((confidence - right).abs().sum()) / count,
        "bins": bins.tolist(),
    }


def judged(scores: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """A model on rows with labels, in numbers: of every row, and ``macro`` the mean over the classes that they have."""
    found = reliability(bins_of(torch.from_numpy(scores), torch.from_numpy(labels)))
    hits = scores.argmax(1) == labels
    macro = np.mean([hits[labels == label].mean() for label in np.unique(labels)])
    losses = -np.log(np.maximum(scores[np.arange(len(labels)), labels], LEAST))
    numbers = {key: found[key] for key in ("rows", "accuracy", "confidence", "ece")}
    return {**numbers, "macro": float(macro), "log_loss": float(losses.mean())}


class Looking(Method[Any]):
    """Not registered: it looks at the model of another method, and changes nothing."""

    of: dict[str, Any]
    """the [method] section of the method whose model is looked at"""

    @cached_property
    def base(self) -> AnyMethod:
        return from_settings(self.of)

    def logits(self, x: Any, visit: Visit) -> Tensor:
        model = State({name: value for name, value in visit.down.items() if not name.startswith(ASKED)})
        with torch.inference_mode():
            return self.base.predict(model, {}, x)


class Temperature(Looking):
    name = "temperature"

    def asking(self, state: State) -> State:
        return State(state.shared, self.nothing())

    def nothing(self) -> Tree:
        return {
            name: torch.zeros(size, dtype=torch.float64) for name, size in {LOSS: POINTS, ANY: POINTS, ROWS: 1}.items()
        }

    def plan(self, round: int) -> list[Phase]:
        sums = (f"{ASKED}sum.",)
        return [Phase("calibration", sends=sums, uniform=sums, cohort="all", epochs=0, on="validation", looks=True)]

    def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        return loss_sums(self.base, self.logits(x, visit), y) if len(y) else self.nothing(), {}

    def found(self, update: Update | None) -> tuple[float | None, int]:
        """The temperature, and on how many rows it was fitted."""
        if update is None:
            return None, 0
        sums = {name: len(update.clients) * value for name, value in update.mean.items()}
        return temperature_of(sums), round(float(sums[ROWS]))


class Reliable(Looking):
    """How far the scores of a model can be trusted on the clients' own test rows."""

    name = "reliability"

    def asking(self, state: State, temperature: float) -> State:
        return State(state.shared, {TEMPERATURE: torch.tensor([temperature], dtype=torch.float64), **self.nothing()})

    def nothing(self) -> Tree:
        return {name: torch.zeros(3, BINS, dtype=torch.float64) for name in (BEFORE, AFTER)}

    def plan(self, round: int) -> list[Phase]:
        bins = (f"{ASKED}bins.",)
        return [Phase("reliability", sends=bins, uniform=bins, cohort="all", epochs=0, on="test", looks=True)]

    def measure(self, x: Any, y: Tensor, visit: Visit) -> tuple[Tree, Tree]:
        if not len(y):
            return self.nothing(), {}
        logits, temperature = self.logits(x, visit), float(visit.down[TEMPERATURE])
        return both_bins(self.base, logits, y, temperature), {}

    def found(self, update: Update | None) -> Tree:
        return self.nothing() if update is None else {n: len(update.clients) * v for n, v in update.mean.items()}


def both_bins(method: AnyMethod, logits: Tensor, y: Tensor, temperature: float) -> Tree:
    """The rows binned by their confidence before and after the temperature."""
    before = bins_of(method.scores(logits), y)
    return {BEFORE: before, AFTER: before if temperature == 1 else bins_of(method.scores(logits / temperature), y)}
