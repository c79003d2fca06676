"""Temperature and calibration error: against direct computations on pooled rows, the same on every engine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from federations import CLASSES, DIM, clients
from fedkeel import api
from fedkeel.commands.run import carry_out
from fedkeel.core.errors import Stopped
from fedkeel.core.method import METHODS, State, settings
from fedkeel.core.rng import generator
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.loading import load
from fedkeel.data.ownership import Ownership
from fedkeel.engines.base import choose
from fedkeel.engines.local import LocalEngine
from fedkeel.engines.wire import WireEngine
from fedkeel.methods.heads.base import BIAS, WEIGHT, logits
from fedkeel.metrics.calibration import (
    BINS,
    Reliable,
    Temperature,
    bins_of,
    grid,
    judged,
    loss_sums,
    own_temperature,
    reliability,
    temperature_of,
)  # fmt: skip
from fedkeel.reporting.tables import summary_row
from fedkeel.runs.config import Experiment
from fedkeel.runs.events import Record, read
from fedkeel.runs.federation import assemble
from fedkeel.runs.folder import stored
from fedkeel.runs.model import Model

HEADS = ("fedavg", "ridge", "ncm", "ova-lp")


def drawn(rows: int, seed: int, right: float = 0.6, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    """Logits, and labels that agree with the highest one as often as that."""
    draw = generator(seed, "logits")
    z = torch.from_numpy(scale * draw.normal(size=(rows, 5)))
    other = torch.from_numpy(draw.integers(0, 5, rows))
    return z, torch.where(torch.from_numpy(draw.random(rows) < right), z.argmax(1), other)


def fitted(name: str, z: Tensor, y: Tensor) -> float:
    """Directly, on rows in one place: the log loss of all of them, and of one more that may be of any class."""
    method = METHODS[name]()

    def loss(log_t: float) -> float:
        losses = -method.scores(z.double() / math.exp(log_t)).log()
        return float(losses[torch.arange(len(y)), y].sum() + losses.mean())

    return math.exp(minimize_scalar(loss, bounds=(math.log(0.02), math.log(50)), method="bounded").x)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("rows", "right", "scale"), [(400, 0.6, 3.0), (30, 0.9, 0.5), (2, 1.0, 1.0)])
def test_the_temperature_is_that_of_all_rows_in_one_place(name: str, rows: int, right: float, scale: float) -> None:
    z, y = drawn(rows, rows, right, scale)
    method = METHODS[name]()
    parts = [loss_sums(method, z[rows], y[rows]) for rows in torch.arange(len(y)).split(11)]
    sums = {key: torch.stack([part[key] for part in parts]).sum(0) for key in parts[0]}
    found = temperature_of(sums)
    assert found == pytest.approx(fitted(name, z, y), rel=1e-3)
    assert found == pytest.approx(own_temperature(method, z, y) or 0.0, rel=1e-9)


def test_many_rows_outweigh_the_one_that_is_added() -> None:
    """Labels drawn from softmax(z / 2.5): that is the temperature, whatever the logits were multiplied by."""
    draw = generator(0, "labels")
    z = torch.from_numpy(2 * draw.normal(size=(40000, 4)))
    chances = (z / 2.5).softmax(1).cumsum(1)
    y = (torch.from_numpy(draw.random((40000, 1))) > chances).sum(1).clamp(max=3)
    assert own_temperature(METHODS["fedavg"](), z, y) == pytest.approx(2.5, rel=0.02)
    assert own_temperature(METHODS["fedavg"](), 10 * z, y) == pytest.approx(25, rel=0.02)


def test_a_few_rows_that_are_all_right_make_no_score_a_one() -> None:
    z, y = drawn(10, 1, right=1.0)
    temperature = own_temperature(METHODS["fedavg"](), z, y)
    assert temperature is not None
    assert grid()[2] < temperature < grid()[-3]
    assert (z / temperature).softmax(1).max(1).values.mean() < 0.97


def test_a_class_that_the_model_finds_impossible_does_not_decide_alone() -> None:
    """As a class that nobody trained on has with ncm: its logit is -1e9."""
    z, y = drawn(300, 2)
    expected = own_temperature(METHODS["ncm"](), z / 30, y)
    z = torch.cat([z / 30, torch.full((300, 1), -1e9)], 1)
    found = own_temperature(METHODS["ncm"](), z, torch.cat([torch.tensor([5]), y[1:]]))
    assert found == pytest.approx(expected, rel=0.1)


def test_without_rows_there_is_none() -> None:
    assert temperature_of(Temperature(of=settings(METHODS["fedavg"]())).nothing()) is None


def test_scores_are_probabilities_and_leave_the_best_class_as_it_is() -> None:
    z = torch.from_numpy(generator(0, "scores").normal(size=(50, 6))).float()
    for name, method in METHODS.items():
        scores = method().scores(z)
        torch.testing.assert_close(scores.sum(1), torch.ones(50))
        assert torch.equal(scores.argmax(1), z.argmax(1)), name
        assert torch.equal(method().scores(z / 7).argmax(1), z.argmax(1)), name


def test_of_one_vs_all_units_the_score_is_that_one_alone_is_right() -> None:
    z = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    q = z.sigmoid()[0]
    alone = torch.stack([q[c] * torch.prod(1 - q[[j for j in range(3) if j != c]]) for c in range(3)])
    for name in ("ova-lp", "fedova", "fedabc"):
        torch.testing.assert_close(METHODS[name]().scores(z)[0], alone / alone.sum())


# --- the expected calibration error ---------------------------------------------------------------------------------


def test_the_error_of_four_rows_by_hand() -> None:
    """0.9 and 0.92 in one bin, one of them right: 2 |0.91 - 0.5|; 0.5 right: 0.5; 0.6, an upper edge, wrong: 0.6."""
    scores = torch.tensor([[0.9, 0.1], [0.92, 0.08], [0.5, 0.5], [0.4, 0.6]], dtype=torch.float64)
    found = reliability(bins_of(scores, torch.tensor([0, 1, 0, 0])))
    assert found["ece"] == pytest.approx((0.82 + 0.5 + 0.6) / 4)
    assert found["confidence"] == pytest.approx((0.9 + 0.92 + 0.5 + 0.6) / 4)
    assert (found["rows"], found["accuracy"]) == (4, 0.5)
    assert [count for count in found["bins"][0] if count] == [1, 1, 2]
    assert found["bins"][0][8] == 1, "0.6 is the upper edge of the ninth bin"


def test_the_error_of_many_rows_directly() -> None:
    z, y = drawn(3000, 3)
    scores = z.softmax(1)
    confidence, hits = scores.max(1).values.numpy(), (scores.argmax(1) == y).numpy()
    edges = np.linspace(0, 1, BINS + 1)
    expected = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            expected += inside.mean() * abs(confidence[inside].mean() - hits[inside].mean())
    assert reliability(bins_of(scores, y))["ece"] == pytest.approx(expected)
    found = judged(scores.numpy(), y.numpy())
    assert found["ece"] == pytest.approx(expected)
    assert found["accuracy"] == hits.mean()
    assert found["macro"] == pytest.approx(np.mean([hits[y.numpy() == label].mean() for label in range(5)]))
    assert found["log_loss"] == pytest.approx(float(torch.nn.functional.nll_loss(scores.log(), y)))


# --- among clients --------------------------------------------------------------------------------------------------


def federation() -> tuple[Any, State, Tensor]:
    """Clients that hold every fifth row back, and a head for them."""
    who = clients()
    rows, owner = np.arange(len(who.y)), np.repeat(np.arange(7), who.owned.sizes)
    train, held = (Ownership.of_owners(np.where(part, owner, -1), 7) for part in (rows % 5 > 0, rows % 5 == 0))
    who = replace(who, owned=train, validation=held)
    draw = generator(0, "head")
    head = {WEIGHT: torch.from_numpy(draw.normal(size=(CLASSES, DIM)).astype(np.float32)), BIAS: torch.zeros(CLASSES)}
    return who, State(head), torch.from_numpy(np.flatnonzero(rows % 5 == 0))


def test_clients_fit_it_from_sums_on_every_engine() -> None:
    found = []
    for kind in (LocalEngine, WireEngine):
        who, state, held = federation()
        engine, asks = kind(who), Temperature(of=settings(METHODS["fedavg"]()))
        (phase,) = asks.plan(9)
        before = engine.accepted.copy()
        exchange = engine.exchange(asks, asks.asking(state), phase, 9, choose(engine.roster, asks, phase, 9, []))
        assert not exchange.refused
        assert (engine.accepted == before).all(), "who looks changes nothing"
        found.append((asks.found(exchange.update), exchange.bytes_up, exchange.bytes_down))
    assert found[0] == found[1]
    temperature, rows = found[0][0]
    z = logits(state.shared, who.x.tensor[held])
    assert rows == len(held)
    assert temperature == pytest.approx(fitted("fedavg", z, who.y[held]), rel=1e-3)


def test_a_lost_exchange_leaves_scores_as_they_are() -> None:
    assert Temperature(of=settings(METHODS["fedavg"]())).found(None) == (None, 0)
    nothing = Reliable(of=settings(METHODS["fedavg"]())).found(None)
    assert all(not value.any() for value in nothing.values())


# --- in a run -------------------------------------------------------------------------------------------------------


def experiment(folder: Path, **run: Any) -> Experiment:
    return api.experiment(
        data={"source": "digits", "limit": 300, "cache": str(folder.parent)},
        partition={"kind": "dirichlet", "clients": 4, "alpha": 1.0, "validation": 0.2, "test": 0.2},
        method={"name": "fedavg", "rounds": 3},
        run={"threads": 1, **run},
    )


def carried_out(exp: Experiment, folder: Path, resume: bool = False, watch: Watch = SILENT) -> Record:
    carry_out(exp, folder, resume, watch, lambda: load(exp.data), False)
    return read(folder)


def ended(record: Record) -> dict[str, Any]:
    assert record.end is not None
    return dict(record.end)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("calibrated") / "whole"
    return carried_out(experiment(folder), folder)


def test_a_run_fits_it_on_validation_rows_and_measures_it_on_test_rows(whole: Record) -> None:
    exp = stored(whole.folder)
    rows = assemble(exp, load(exp.data))
    model, told = Model.load(whole.folder / "model.safetensors"), ended(whole)["calibration"]
    held = rows.manifest.validation.rows
    assert told["validation_rows"] == len(held) > 0
    features = rows.rows.train.tensor.numpy()
    plain = np.log(replace(model, temperature=None).scores(features[held]))  # logits but for a constant of each row
    labels = torch.from_numpy(rows.labels[held])
    assert model.temperature == told["temperature"]
    assert told["temperature"] == pytest.approx(fitted("fedavg", torch.from_numpy(plain), labels), rel=1e-3)
    tested = rows.tested()
    for key, scoring in (("before", replace(model, temperature=None)), ("after", model)):
        scores = scoring.scores(tested.x.tensor.numpy())
        found = judged(scores, tested.y.numpy())
        assert told[key]["ece"] == pytest.approx(found["ece"], abs=1e-4)
        assert told[key]["confidence"] == pytest.approx(scores.max(1).mean(), abs=1e-5)
        assert told[key]["accuracy"] == pytest.approx(ended(whole)["accuracy"])
    summary = json.loads((whole.folder / "summary.json").read_text())["calibration"]
    assert summary["temperature"] == told["temperature"]
    assert summary["after"] == {"confidence": told["after"]["confidence"], "ece": told["after"]["ece"]}


def test_its_exchange_is_on_record_and_in_no_rounds_costs(whole: Record) -> None:
    last = whole.exchanges[-1]
    assert (last["round"], last["phase"], last["clients"]) == (4, "calibration", 4)
    assert last["bytes_up"] > 4 * 8 * 2 * len(grid())
    without = replace(whole, exchanges=whole.exchanges[:-1])
    row, other = summary_row(whole, None), summary_row(without, None)
    assert row["bytes_up"] == other["bytes_up"] + last["bytes_up"]
    for key in ("round_up", "round_down", "client_seconds", "server_seconds", "bytes_until", "seconds_until"):
        assert row[key] == other[key]


def test_engines_and_places_to_test_agree(whole: Record, tmp_path: Path) -> None:
    told = ended(whole)
    for number, run in enumerate(({"engine": "wire"}, {"evaluate": "federated"})):
        other = ended(carried_out(experiment(whole.folder, **run), tmp_path / str(number)))
        if "evaluate" in run:
            assert other["digest"] == told["digest"]
        assert other["calibration"]["temperature"] == pytest.approx(told["calibration"]["temperature"], rel=1e-4)
        for key in ("before", "after"):
            assert other["calibration"][key]["ece"] == pytest.approx(told["calibration"][key]["ece"], abs=1e-4)
            assert other["calibration"][key]["rows"] == told["calibration"][key]["rows"]


def test_an_interrupted_run_fits_the_same(whole: Record, tmp_path: Path) -> None:
    def stop(round: int, rounds: int, accuracy: float) -> None:
        if round == rounds:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        carried_out(experiment(whole.folder), tmp_path / "run", watch=Watch(round=stop))
    record = carried_out(stored(tmp_path / "run"), tmp_path / "run", resume=True)
    assert ended(record)["calibration"] == ended(whole)["calibration"]
    assert ended(record)["digest"] == ended(whole)["digest"]


def test_without_validation_rows_nothing_is_asked(tmp_path: Path) -> None:
    exp = experiment(tmp_path / "run").with_values({"partition.validation": 0.0})
    record = carried_out(exp, tmp_path / "run")
    told = ended(record)["calibration"]
    assert (told["temperature"], told["validation_rows"]) == (None, 0)
    assert "before" in told
    assert "after" not in told
    assert {event["phase"] for event in record.exchanges} == {"mean", "tell-mean", "train"}
    assert Model.load(tmp_path / "run" / "model.safetensors").temperature is None


def test_test_labels_have_no_say(tmp_path: Path) -> None:
    draw = generator(2, "noisy")
    y = draw.integers(0, 3, 150)
    x = (draw.normal(size=(150, 4)) + np.eye(4)[y]).astype(np.float32)
    found = []
    for turned in (0, 1):
        np.savez(tmp_path / "a.npz", x=x[:120], y=y[:120], x_test=x[120:], y_test=(y[120:] + turned) % 3)
        exp = api.experiment(data={"source": f"npz:{tmp_path / 'a.npz'}"}, method={"name": "ridge"},
                             partition={"kind": "iid", "clients": 3, "validation": 0.3})  # fmt: skip
        found.append(ended(carried_out(exp, tmp_path / str(turned)))["calibration"])
    assert found[0]["temperature"] == found[1]["temperature"]
    assert found[0]["after"] != found[1]["after"]
