"""Commands that show something: a split, features, a page, what there is to choose from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fedkeel.cli.app import Set, app, console

Listed = Literal["methods", "strategies", "partitions", "sources", "encoders", "modules", "observers"]


@app.command
def partition(config: Path | None = None, /, *, set: Set = (), png: Path = Path("partition.png")) -> None:
    """Show who would own which rows, before anything is trained.

    For example:

        fedkeel partition study.toml
        fedkeel partition --set partition.kind=dirichlet partition.alpha=0.1

    Parameters
    ----------
    config
        TOML file
    png
        where to draw the heat map
    """
    from fedkeel import api
    from fedkeel.data.describe import heatmap_png, render
    from fedkeel.screen import say, show, watched

    with watched(console(), "splitting") as watch:
        split = api.partition(config, set=set, watch=watch)
    counts = split.manifest.train.label_counts(split.labels, len(split.class_names))
    show(render(split.manifest, split.labels, split.class_names))
    heatmap_png(png, counts, split.manifest.names, split.class_names)
    say(f"manifest {split.manifest.hash[:16]}, heat map: {png}")


@app.command
def encode(config: Path | None = None, /, *, set: Set = ()) -> None:
    """Fill the feature cache; an interrupted encode continues where it stopped.

    For example:

        fedkeel encode --set data.source=cifar10
        fedkeel encode --set data.source=images:photos data.encoder=hf:models/vit

    Parameters
    ----------
    config
        TOML file
    """
    from fedkeel import api
    from fedkeel.screen import say, watched

    with watched(console(), "encoding") as watch:
        features = api.encode(config, set=set, watch=watch)
    rows, dim = len(features.train) + len(features.test), features.train.shape[1]
    say(f"{rows:,} rows of {dim} features by {features.encoder}: {features.where}")


@app.command
def report(*runs: Path, out: Path = Path("report.html")) -> None:
    """Build the page of one or several runs again, from their event files alone.

    For example:

        fedkeel report runs/mine
        fedkeel report runs/compare runs/mine --out all.html

    Parameters
    ----------
    runs
        run folders, or folders of compare
    out
        where to write the page
    """
    from fedkeel import api
    from fedkeel.screen import say, watched

    with watched(console(), "reporting") as watch:
        page = api.report(runs, out=out, watch=watch)
    say(f"report: {page}")


@app.command(name="list")
def list_(what: Listed, /) -> None:
    """List what exists, one line each, with the paper.

    For example:

        fedkeel list methods
        fedkeel list partitions

    Parameters
    ----------
    what
        methods, strategies (ways to personalise), partitions, sources, encoders, modules (that adapt a dual encoder)
        or observers (of a run)
    """
    from fedkeel import api
    from fedkeel.screen import print_entries

    print_entries(api.catalogue(what))
