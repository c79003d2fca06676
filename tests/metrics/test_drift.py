"""Drift against one autograd call per row, finite differences, numbers by hand and what must hold for any head."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedkeel as fk
from federations import CLASSES, TASK, clients
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import METHODS, Batch, Method, State, Visit
from fedkeel.core.rng import generator
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import going_down
from fedkeel.engines.local import LocalEngine, first_of, gradients
from fedkeel.engines.sites import Sites
from fedkeel.methods.heads.base import LinearProbe
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.methods.heads.fednova import FedNova
from fedkeel.methods.heads.fedprox import FedProx
from fedkeel.methods.heads.ova_lp import OvaLP
from fedkeel.methods.heads.scaffold import Scaffold
from fedkeel.methods.heads.server_optimizers import FedAdam, FedAvgM
from fedkeel.metrics import drift as module
from fedkeel.metrics.drift import Drift, drift, linear_head, stepping
from fedkeel.rows.features import Features
from fedkeel.runs.events import read

METHODS_AND_ROUNDS = pytest.mark.parametrize(
    ("method", "round"),
    [
        (FedAvg(), 1),
        (FedAvg(bias=True), 3),
        (OvaLP(stages=1), 1),
        (OvaLP(bias=True), 1),
        (OvaLP(positives=0.07, bias=True), 2),
        (OvaLP(positive_mode="sample"), 2),
        (FedProx(mu=0.5, bias=True), 2),
        (Scaffold(bias=True), 2),
        (FedNova(momentum=0.5), 2),
        (FedAvgM(), 1),
        (FedAdam(bias=True), 3),
    ],
    ids=[
        *("softmax", "softmax with bias", "one-vs-all", "stage 1", "stage 2", "stage 2 by rows"),
        *("fedprox", "scaffold", "fednova", "fedavgm", "fedadam"),
    ],
)


def doubles(who: Sites) -> Sites:
    return replace(who, x=Features(who.x.tensor.double()))


def random_state(method: LinearProbe) -> State:
    """Also of what the server keeps beside the heads, which corrects gradients but is no part of them."""
    draw, start = generator(0, "heads"), method.start(TASK)
    trees = start.shared, start.server
    return State(*({name: torch.from_numpy(draw.normal(size=v.shape)) for name, v in tree.items()} for tree in trees))


def measured(method: LinearProbe, who: Sites, state: State, round: int = 1) -> Drift:
    found = drift(method, who, state, round)
    assert found is not None
    return found


def close(found: Drift, expected: Drift, rel: float) -> None:
    numbers, others = asdict(found), asdict(expected)
    assert numbers.pop("phase") == others.pop("phase")
    assert numbers == pytest.approx(others, rel=rel)


def row_gradients(
    method: LinearProbe, who: Sites, state: State, round: int, client: int
) -> tuple[np.ndarray, np.ndarray]:
    """(gradients, chances): one autograd call per row; a row of stage 2 keeps its positive with the chance set."""
    phase = method.plan(round)[0]
    visit = Visit(state.down, {}, phase, round)
    outcomes = [(0.0, 1.0)]
    if phase.draws:
        assert isinstance(method, OvaLP)
        outcomes = [(0.0, method.positives), (0.999, 1 - method.positives)]
    gradients, chances = [], []
    for row in who.owned.of(client):
        for u, chance in outcomes:
            params = {name: value.clone().requires_grad_() for name, value in state.shared.items()}
            drawn = torch.tensor([u]) if phase.draws else torch.empty(0)
            batch = Batch(who.x.tensor[row : row + 1], who.y[row : row + 1], torch.ones(1), drawn)
            method.loss(params, batch, visit).backward()  # type: ignore[no-untyped-call]
            gradients.append(np.hstack([value.grad.reshape(CLASSES, -1) for value in params.values()]))
            chances.append(chance / len(who.owned.of(client)))
    return np.array(gradients), np.array(chances)


def by_definition(method: LinearProbe, who: Sites, state: State, round: int) -> Drift:
    """Everything from the definitions and the gradients of all rows."""
    able = [k for k in range(who.owned.clients) if len(who.owned.of(k))]
    p = np.array([len(who.owned.of(k)) for k in able]) / len(who.owned.rows)
    rows = [row_gradients(method, who, state, round, k) for k in able]
    local = np.array([np.einsum("r,rcd->cd", chance, g) for g, chance in rows])
    whole = np.einsum("i,icd->cd", p, local)
    bias = local - whole
    lengths = np.sqrt((bias**2).sum((1, 2)))

    def covariance(g: np.ndarray, chance: np.ndarray) -> np.ndarray:
        apart = g - np.einsum("r,rcd->cd", chance, g)
        return np.einsum("r,rcd,rjd->cj", chance, apart, apart)

    def off(matrix: np.ndarray) -> float:
        return float(sum(abs(matrix[c, j]) for c in range(CLASSES) for j in range(CLASSES) if c != j))

    inside = [covariance(*row) for row in rows]
    everything = covariance(
        np.concatenate([g for g, _ in rows]),
        np.concatenate([share * chance for share, (_, chance) in zip(p, rows, strict=True)]),
    )
    v = np.array([np.trace(matrix) for matrix in inside])
    rms = math.sqrt(p @ lengths**2)
    deciding = bias - bias.mean(1, keepdims=True)
    return Drift(
        phase=method.plan(round)[0].name,
        gradient=float(np.linalg.norm(whole)),
        local_bias=float(lengths.mean()),
        local_bias_max=float(lengths.max()),
        local_bias_rms=rms,
        relative_bias=rms / float(np.linalg.norm(whole)),
        decision_bias=math.sqrt(p @ (deciding**2).sum((1, 2))) / float(np.linalg.norm(whole - whole.mean(0))),
        global_bias=float(np.linalg.norm(local.mean(0) - whole)),
        local_variance=float(v.mean()),
        variance=float(p**2 @ v),
        cross_class=off(everything) / float(np.trace(everything)),
        cross_class_local=float(p @ [off(matrix) for matrix in inside] / (p @ v)),
    )


@METHODS_AND_ROUNDS
def test_every_number_is_the_one_of_its_definition(method: LinearProbe, round: int) -> None:
    who, state = doubles(clients()), random_state(method)
    close(measured(method, who, state, round), by_definition(method, who, state, round), 1e-9)


def test_rows_in_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    method, who = OvaLP(bias=True), doubles(clients())
    state = random_state(method)
    whole = measured(method, who, state, 2)
    monkeypatch.setattr(module, "ROOM", 3 * 100 * CLASSES)  # three rows at a time
    close(measured(method, who, state, 2), whole, 1e-9)


def test_a_single_precision_head_is_measured_as_well() -> None:
    method, who = OvaLP(stages=1), clients()
    state = random_state(method)
    single = State({name: value.float() for name, value in state.shared.items()})
    close(measured(method, who, single), measured(method, doubles(who), state), 1e-5)


def test_the_gradient_by_finite_differences() -> None:
    """|grad L| from central differences of the mean loss of all rows, for softmax with a bias."""
    method, who = FedAvg(bias=True), doubles(clients())
    state, phase = random_state(method), method.plan(1)[0]
    weight = torch.full((len(who.y),), 1 / len(who.y), dtype=torch.float64)
    batch = Batch(who.x.tensor, who.y, weight, torch.empty(0))

    def loss(name: str, index: tuple[int, ...], step: float) -> float:
        moved = {key: value.clone() for key, value in state.shared.items()}
        moved[name][index] += step
        return float(method.loss(moved, batch, Visit(state.down, {}, phase)))

    h = 1e-5
    slopes = [
        (loss(name, index, h) - loss(name, index, -h)) / (2 * h)
        for name, value in state.shared.items()
        for index in np.ndindex(*value.shape)
    ]
    assert measured(method, who, state).gradient == pytest.approx(np.linalg.norm(slopes), rel=1e-7)


def test_two_clients_by_hand() -> None:
    """Softmax at zero, two classes, one feature. Client a: one row x = 2 of class 0, residual (-1/2, 1/2), gradient
    (-1, 1). Client b: three rows x = 1 of class 1, gradient (1/2, -1/2) each, so no variance within clients.
    grad L = (-1, 1) / 4 + 3 (1/2, -1/2) / 4 = (1/8, -1/8). In units of (1, -1), which has length sqrt 2:
    b_a = -9/8, b_b = 3/8, mean length 6/8, B = (-1 + 1/2) / 2 - 1/8 = -3/8,
    rms = sqrt(81/64 / 4 + 9/64 * 3/4) = sqrt(27) / 8. The covariance of all rows is that of (-1, 1) times a number."""
    owned = Ownership.of_lists([np.array([0]), np.array([1, 2, 3])])
    x = torch.tensor([[2.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
    who = Sites(["a", "b"], Features(x), torch.tensor([0, 1, 1, 1]), owned, seed=0, classes=2)
    found = measured(FedAvg(), who, State({"head.weight": torch.zeros(2, 1, dtype=torch.float64)}))
    unit = math.sqrt(2)
    assert found.gradient == pytest.approx(unit / 8)
    assert found.local_bias == pytest.approx(6 / 8 * unit)
    assert found.local_bias_max == pytest.approx(9 / 8 * unit)
    assert found.local_bias_rms == pytest.approx(math.sqrt(27) / 8 * unit)
    assert found.relative_bias == found.decision_bias == pytest.approx(math.sqrt(27))
    assert found.global_bias == pytest.approx(3 / 8 * unit)
    assert found.local_variance == found.variance == pytest.approx(0, abs=1e-15)
    assert found.cross_class == pytest.approx(1)
    assert found.cross_class_local is None, "nothing varies within a client"


@METHODS_AND_ROUNDS
def test_clients_with_the_same_rows_have_no_bias(method: LinearProbe, round: int) -> None:
    """Three copies of one client: b_i = 0, B = 0, V = v / 3, and within a client is as over all."""
    one = doubles(clients((20,)))
    owned = Ownership.of_lists([np.arange(20) + 20 * k for k in range(3)])
    three = Sites(["a", "b", "c"], Features(one.x.tensor.repeat(3, 1)), one.y.repeat(3), owned, seed=0, classes=CLASSES)
    found = measured(method, three, random_state(method), round)
    assert found.local_bias_max < 1e-12
    assert found.global_bias < 1e-12
    assert found.variance == pytest.approx(found.local_variance / 3)
    assert found.cross_class == pytest.approx(found.cross_class_local)


def test_clients_of_equal_size_have_no_global_bias() -> None:
    """Equal sizes make the uniform mean over clients that over rows, however different the clients are."""
    found = measured(FedAvg(), doubles(clients((9, 9, 9))), random_state(FedAvg()))
    assert found.global_bias < 1e-12 < found.local_bias


@pytest.mark.parametrize("seed", range(5))
def test_the_covariance_of_softmax_cannot_be_below_its_variance(seed: int) -> None:
    """Residuals of softmax sum to 0 over classes, so each row of the covariance does: sum |off| >= sum diagonal."""
    who, method = doubles(clients(seed=seed)), FedAvg()
    found = measured(method, who, State({"head.weight": 3 * torch.randn(CLASSES, 6, dtype=torch.float64)}))
    assert found.cross_class is not None
    assert found.cross_class_local is not None
    assert min(found.cross_class, found.cross_class_local) >= 1 - 1e-12


def test_before_training_one_vs_all_is_softmax_plus_a_push_that_all_classes_share() -> None:
    """Residuals at zero: 1/C - 1[y = c] and 1/2 - 1[y = c]. They differ by the same number for all classes: the
    same decision bias."""
    who, zero = doubles(clients()), State({"head.weight": torch.zeros(CLASSES, 6, dtype=torch.float64)})
    softmax, ova = measured(FedAvg(), who, zero), measured(OvaLP(stages=1), who, zero)
    assert ova.decision_bias == pytest.approx(softmax.decision_bias)


def test_one_vs_all_heads_at_zero_covary() -> None:
    """Each of C = 20 classes has the rows x = 1 and x = -1, so E g_c = 0 and Cov(g_c, g_j) = E[r_c r_j], with
    r_c = 1/2 - 1[y = c]: 1/4 on the diagonal and 1/4 - 1/C off it. The ratio is (C - 1) (1 - 4 / C) = 15.2, as it is
    on 20 Newsgroups; softmax has r_c = 1/C - 1[y = c], 1/C - 1/C^2 and -1/C^2: a ratio of 1. In stage 1 no two classes
    share a row: 0."""
    y = torch.arange(20).repeat_interleave(2)
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(20, 1)
    who = Sites(["a"], Features(x), y, Ownership.of_lists([np.arange(40)]), seed=0, classes=20)
    zero = State({"head.weight": torch.zeros(20, 1, dtype=torch.float64)})
    assert measured(OvaLP(stages=1), who, zero).cross_class == pytest.approx(15.2)
    assert measured(FedAvg(), who, zero).cross_class == pytest.approx(1)
    assert measured(OvaLP(), who, zero).cross_class == pytest.approx(0, abs=1e-12)


def linear_methods() -> list[str]:
    import fedkeel.methods  # noqa: F401  registers every method file

    found = [name for name, cls in METHODS.items() if issubclass(cls, LinearProbe) and cls().in_closed_form]
    assert {"fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "ova-lp"} <= set(found)
    return found


@pytest.mark.parametrize("name", linear_methods())
def test_it_is_the_gradient_that_each_method_steps_with(name: str) -> None:
    """One client, so |grad L| is the length of its first full-batch gradient as the engine computes it; at random
    heads and in the first three rounds."""
    method = METHODS[name](rounds=3)
    assert isinstance(method, LinearProbe)
    who = clients((40,))
    for round in (1, 2, 3):
        state = method.start(replace(TASK, clients=1))
        head = {key: value + torch.linspace(-1, 1, value.numel()).view_as(value) for key, value in state.shared.items()}
        state, phase = replace(state, shared=head), stepping(method, round)
        if phase is None or phase.draws:
            continue
        told = {key: value[:1] for key, value in state.per_client.items()}
        mine = {key: value[None] for key, value in LocalEngine(who).mine(method, state, 0).items()}
        visit = Visit(going_down(state, phase), mine, phase, round, who.counts, told)
        params = {key: value[None] for key, value in method.begin(first_of(visit)).items()}
        batch = Batch(who.x.tensor[None], who.y[None], torch.full((1, 40), 1 / 40), torch.empty(1, 0))
        grads = gradients(method, params, batch, visit)
        expected = math.sqrt(sum(float(grad.square().sum()) for grad in grads.values()))
        assert measured(method, who, state, round).gradient == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_measured_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoHead(Method):
        name = "no-head"

    class Counting(FedAvg):
        """A linear head that is never trained in steps."""

        name = "counting"

        def plan(self, round: int) -> list[fk.Phase]:
            return [self.phase("count", self.tuned, self.tuned, epochs=0)]

    for method in (NoHead(), Counting()):
        with pytest.raises(FedkeelError, match=rf"run.drift needs .*a linear head .*{method.name}.*run.drift = false"):
            linear_head(method)
    assert stepping(Counting(), 1) is None
    assert drift(Counting(), clients(), Counting().start(TASK), 1) is None
    monkeypatch.setitem(METHODS, "no-head", NoHead)
    with pytest.raises(FedkeelError, match=r"run\.drift needs .*a linear head"):
        fk.experiment(method={"name": "no-head"}, run={"drift": True})
    fk.experiment(method={"name": "no-head"})


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam"])
def test_of_the_family_of_fedavg_the_head_is_measured_and_a_network_is_not(name: str) -> None:
    head = METHODS[name]()
    assert linear_head(head) is head
    assert fk.experiment(method={"name": name}, run={"drift": True}).run.drift
    with pytest.raises(FedkeelError, match=rf"run\.drift needs .*{name} has none"):
        fk.experiment(method={"name": name, "tune": "network"}, run={"drift": True})


# --- in a run ---------------------------------------------------------------------------------------------------------

SMALL = {
    "data": {"source": "digits"},
    "partition": {"kind": "dirichlet", "clients": 8, "alpha": 0.3},
    "method": {"name": "ova-lp", "rounds": 3},
}


@pytest.fixture(scope="module", autouse=True)
def no_pages() -> Iterator[None]:
    """Drawing takes most of a small run's time, and these tests read the events."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkeel.commands.run.build_page", lambda records, out, watch: out)
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> fk.Result:
    return fk.run(out=tmp_path_factory.mktemp("runs") / "watched", **SMALL, run={"drift": True})


def drift_lines(folder: Path) -> list[dict[str, object]]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [{key: event[key] for key in event if key != "check"} for event in events if event["event"] == "drift"]


def test_a_run_tells_its_drift_before_training_and_after_each_round(watched: fk.Result, tmp_path: Path) -> None:
    found = watched.record.drift
    assert [event["round"] for event in found] == [0, 1, 2, 3]
    assert [event["phase"] for event in found] == ["stage-1", "stage-2", "stage-2", "stage-2"], "of the next round"
    assert all(event["local_bias"] > 0 for event in found)
    plain = fk.run(out=tmp_path / "plain", **SMALL)
    assert plain.digest == watched.digest, "looking changes nothing"
    assert plain.record.drift == []


def test_a_resumed_run_measures_each_round_once(watched: fk.Result, tmp_path: Path) -> None:
    def stop(round: int, rounds: int, accuracy: float) -> None:
        if round == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(fk.FedkeelError, match="--resume continues"):
        fk.run(out=folder, watch=fk.Watch(round=stop), **SMALL, run={"drift": True})
    log = folder / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert '"event":"round","round":2' in lines[-1]
    log.write_text("".join(lines[:-1]))  # killed between the drift of round 2 and its accuracy, and any checkpoint
    for saved in (folder / "journal").glob("*.safetensors"):
        saved.unlink()
    fk.run(out=folder, resume=True)
    assert drift_lines(folder) == drift_lines(watched.folder)
    assert read(folder).drift == watched.record.drift
    assert log.read_text().count('"event":"geometry"') == 1
