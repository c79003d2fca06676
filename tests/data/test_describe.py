"""The figures are right on splits worked out by hand, and the views fit and show what they should."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from fedkeel.data.describe import LINES, Figures, Spread, describe, heatmap_png, render
from fedkeel.data.manifest import Manifest
from fedkeel.data.ownership import Ownership


def manifest(counts: np.ndarray, names: tuple[str, ...] | None = None) -> tuple[Manifest, np.ndarray]:
    """A manifest whose clients hold ``counts`` rows per class, and the labels of those rows."""
    clients, classes = counts.shape
    labels = np.tile(np.arange(classes), clients).repeat(counts.ravel())
    train = Ownership.of_owners(np.arange(clients).repeat(counts.sum(axis=1)), clients)
    nobody = Ownership(np.zeros(clients + 1, dtype=np.int64), np.empty(0, dtype=np.int64))
    names = names or tuple(f"client-{k:03d}" for k in range(clients))
    settings = {"kind": "dirichlet", "clients": clients, "alpha": 0.1, "validation": 0.0, "test": 0.0, "seed": 0}
    return Manifest(names, train, nobody, nobody, "train", settings, "f00d"), labels


def shown(counts: np.ndarray, class_names: list[str], **more: object) -> str:
    split, labels = manifest(counts, **more)  # type: ignore[arg-type]
    console = Console(width=80, record=True, force_terminal=False, color_system=None, file=io.StringIO())
    console.print(render(split, labels, class_names))
    return console.export_text()


def test_figures_by_hand():
    """Clients (4, 0), (2, 2), (0, 0): the whole is (.75, .25).

    Distances from it: (|1 - .75| + |0 - .25|) / 2 = .25 and (.25 + .25) / 2 = .25. Effective classes: 1 and 2.
    """
    split, labels = manifest(np.array([[4, 0], [2, 2], [0, 0]]))
    assert describe(split, labels, ["a", "b"]) == Figures(
        clients=3,
        empty=1,
        train_rows=8,
        validation_rows=0,
        test_rows=0,
        rows=Spread(4, 4, 4, 4),
        tests=Spread(0, 0, 0, 0),
        classes_per_client=Spread(1, 1.5, 1.5, 2),
        clients_per_class=Spread(1, 1.5, 1.5, 2),
        largest_share=0.5,
        skew=0.25,
        effective_classes=pytest.approx(1.5),
    )


def test_nothing_at_all_has_figures_too():
    split, labels = manifest(np.zeros((2, 3), dtype=int))
    figures = describe(split, labels, ["a", "b", "c"])
    assert (figures.empty, figures.skew, figures.largest_share) == (2, 0, 0)
    assert "no client has training rows" in shown(np.zeros((2, 3), dtype=int), ["a", "b", "c"])


def test_terminal_view_fits_and_is_right():
    counts = np.array([[96, 4, 0], [10, 60, 30], [0, 0, 0]])
    text = shown(counts, ["cat", "dog", "owl"])
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("client-0")] == [
        "client-000 ███░░░···       100",
        "client-001 ▒▒▒███▓▓▓       100",
    ]
    assert "left out: 1 without training rows" in text
    assert "0:cat, 1:dog, 2:owl" in text
    assert "0  1  2" in text


@pytest.mark.parametrize(("clients", "classes"), [(100, 20), (100, 100), (700, 1000), (41, 51), (1, 1)])
def test_terminal_view_never_exceeds_80_columns_or_40_clients(clients, classes):
    counts = np.random.default_rng(0).integers(0, 3, (clients, classes))
    counts[:, 0] += np.arange(clients, 0, -1)  # no two clients alike, nobody empty
    text = shown(counts, [f"a long class name {c}" for c in range(classes)])
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    drawn = [line for line in lines if line.startswith("client-")]
    assert len(drawn) == min(clients, LINES)
    sizes = np.array([int(line.split()[-1].replace(",", "")) for line in drawn])
    assert (np.diff(sizes) <= 0).all()
    assert {int(sizes[0]), int(sizes[-1])} == {int(counts.sum(axis=1).max()), int(counts.sum(axis=1).min())}
    assert (f"40 of {clients} non-empty clients" in text) == (clients > LINES)
    assert ("a cell stands for" in text) == (classes > 50)


def test_names_cannot_disturb_the_terminal():
    """Markup, escape codes and line breaks in names are shown, not obeyed; wide letters count as two columns."""
    text = shown(np.array([[3], [2]]), ["[red]x"], names=("evil\x1b[31m\nname", "病院のとても長い名前です"))
    assert "\x1b" not in text
    assert "0:[red]x" in text
    assert "evil?[31m?name" in text
    assert max(map(cell_len, text.splitlines())) <= 80


@pytest.mark.parametrize(("clients", "classes"), [(100, 20), (3, 2)])
def test_png_shows_where_rows_are(tmp_path: Path, clients, classes):
    """A full matrix colours most of the picture, an empty one leaves it white; "$" in a name is no formula."""
    inked = []
    for rows in (0, 50):
        path = tmp_path / f"{rows}.png"
        names = [f"client $ {k}" for k in range(clients)]
        heatmap_png(path, np.full((clients, classes), rows), names, ["$a_$b", *map(str, range(1, classes))])
        with Image.open(path) as image:
            assert image.format == "PNG"
            pixels = np.asarray(image.convert("RGB")).astype(int)
        inked.append(float((np.ptp(pixels, axis=2) > 20).mean()))
    assert inked[0] < 0.1 < 0.4 < inked[1]
