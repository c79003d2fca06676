"""Drift and geometry on the page: what is drawn is what was measured, and the warning is said where it matters."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_browser import write_run

import fedkeel as fk
from fedkeel.reporting import diagnostics, html, plots, tables
from fedkeel.runs.events import Log, Record, read

GEOMETRY = {"alignment": 1.714, "intra": 0.8557, "inter": 0.3016, "ratio": 2.838, "intra_distance": 0.92,
            "inter_distance": 0.54}  # fmt: skip


def measured_run(folder: Path, *args: Any, scale: float = 1.0, drift: bool = True, **settings: Any) -> Record:
    """A run of the report's tests that measured its geometry and, before training and after each round, its drift."""
    rounds = len(write_run(folder, *args, **settings).rounds)
    with Log(folder / "events.jsonl") as log:
        log.write("geometry", **GEOMETRY)
        for t in range(rounds + 1) if drift else ():
            ratio = None if t == 0 else scale * 17 / (t + 1)
            numbers = {"decision_bias": scale * (4 + t), "variance": scale / 20, "cross_class_local": ratio}
            log.write("drift", round=t, phase="train", **numbers)
    return read(folder)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[plots._Curves]:
    """What is drawn instead of the drawing, which takes most of the time."""
    seen: list[plots._Curves] = []

    class Kept(plots._Curves):
        def paint(self, axes: Any, what: str, over: str) -> None:
            seen.append(self)
            super().paint(axes, what, over)

    monkeypatch.setattr(plots, "_Curves", Kept)
    return seen


def test_the_curves_are_the_numbers_of_the_events(tmp_path: Path, drawn: list[plots._Curves]) -> None:
    records = [measured_run(tmp_path / str(seed), seed=seed, rounds=4, scale=1 + seed) for seed in (0, 1)]
    found = tables.groups(records)
    pictures = diagnostics.drift_curves(found, found, plots.Look.of(found))
    assert [picture.title.split(" (")[0] for picture in pictures] == [m.title for m in diagnostics.MEASURES]
    bias, variance, covariance = drawn
    mean, low, high = plots._band(found[0], bias.values)
    assert np.allclose([mean, low, high], np.outer([1.5, 1, 2], [4, 5, 6, 7, 8]))
    assert list(bias.places(found[0])) == [0, 1, 2, 3, 4]
    assert bias.scale[0] < 4 < 16 < bias.scale[1]
    assert np.allclose(plots._band(found[0], variance.values)[0], 0.075)
    mean = plots._band(found[0], covariance.values)[0]
    assert np.isnan(mean[0]), "nothing varied before training"
    assert np.allclose(mean[1:], 1.5 * 17 / np.arange(2, 6))


def test_the_sections_are_there_when_something_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_draw", lambda *_: "<svg></svg>")
    watched = measured_run(tmp_path / "a", rounds=2)
    plain = measured_run(tmp_path / "b", "fedavg", rounds=2, drift=False)
    bare = write_run(tmp_path / "c", "fedavg", "iid", rounds=2)
    text = html.page([watched, plain, bare])
    assert "<h2>Drift</h2>" in text
    assert text.count("<h2>Feature geometry</h2>") == 1
    assert text.count("<td>minilm</td>") == 1, "one row for the features that the runs share"
    for cell in ("1.71", "0.856", "0.302", "2.84", "8.0 %"):
        assert f">{cell}</td>" in text
    assert "<h2>Drift</h2>" not in html.page([plain, bare])
    assert "<h2>Feature geometry</h2>" not in html.page([bare])


def test_many_lines_are_drawn_split_by_split_in_one_scale(tmp_path: Path, drawn: list[plots._Curves]) -> None:
    methods, partitions = ["ova-lp", "fedavg", "fedprox", "scaffold"], ["iid", "shards"]
    records = [
        measured_run(tmp_path / f"{m}{p}", m, p, rounds=2, clients=5, scale=k + 1.0)
        for k, m in enumerate(methods) for p in partitions
    ]  # fmt: skip
    found = tables.groups(records)
    text = html._drift(found, plots.Look.of(found))
    assert text.count("<figure>") == 2 * len(diagnostics.MEASURES)
    assert {curves.groups[0].partition for curves in drawn} == {"iid", "shards"}
    assert len({curves.scale for curves in drawn}) == len(diagnostics.MEASURES)


def test_runs_that_measured_drift_are_no_experiment_of_their_own(tmp_path: Path) -> None:
    records = [measured_run(tmp_path / "a", rounds=2), write_run(tmp_path / "b", seed=1, rounds=2)]
    records[0].start["config"]["run"]["drift"] = True
    (group,) = tables.groups(records)
    assert group.method == "ova-lp"
    assert diagnostics.drift_curves([group], [group], plots.Look.of([group]))


@pytest.mark.parametrize(
    ("energy", "features", "warns"),
    [(0.51, "l2", True), (0.9, "raw", True), (0.9, "centred", False), (0.5, "l2", False), (None, "raw", False)],
)
def test_a_common_mean_that_is_left_in_is_warned_of(energy: float | None, features: str, warns: bool) -> None:
    text = diagnostics.common_mean(energy, "my rows", features)
    assert bool(text) == warns
    if text:
        assert f"{100 * (energy or 0):.0f} % of the energy of the features of my rows" in text
        assert text.endswith('Set data.features = "centred".')
        assert "\n" not in text


def test_the_warning_is_said_at_the_start_and_on_the_page(tmp_path: Path) -> None:
    said: list[str] = []
    small: dict[str, Any] = {"partition": {"kind": "iid", "clients": 3}, "method": {"rounds": 1, "epochs": 1}}
    for features in ("l2", "centred"):
        result = fk.run(out=tmp_path / features, data={"source": "digits", "features": features}, **small,
                        watch=fk.Watch(notice=said.append))  # fmt: skip
        geometry = result.record.geometry
        assert geometry is not None
        assert geometry["ratio"] == pytest.approx(geometry["intra"] / geometry["inter"])
    (warning,) = said
    data = read(tmp_path / "l2").start["data"]
    assert warning == diagnostics.common_mean(data["mean_energy"], "digits", "l2")
    assert escape(warning) in (tmp_path / "l2" / "report.html").read_text()
    assert "common mean</strong>" not in (tmp_path / "centred" / "report.html").read_text()
