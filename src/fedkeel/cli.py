"""The command line: one function per command, no logic. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from fedkeel import __version__
from fedkeel.core.errors import FedkeelError

if TYPE_CHECKING:
    from rich.console import Console


app = App(
    name="fedkeel",
    version=__version__,
    help="Fine-tune a foundation model across clients whose data differ, and keep it from drifting.",
    help_format="markdown",
)
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        consume_multiple=True,
        negative="",
        show_default=False,
        help="override keys, e.g. --set method.rounds=20",
    ),
]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Listed = Literal["methods", "strategies", "partitions", "sources", "encoders", "modules", "observers"]
Names = Annotated[str, Parameter(help="separated by commas")]


def console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


@app.command
def run(
    config: Path | None = None,
    /,
    *,
    set: Set = (),
    out: Path | None = None,
    resume: Flag = False,
    json: Flag = False,
) -> None:
    """Run one federation from data to report.

    Without CONFIG: OvA-LP on the embedded 20 Newsgroups federation, 100 clients, Bernoulli-Dirichlet split.

    For example:

        fedkeel run
        fedkeel run study.toml --set method.rounds=20 run.seed=42 --out runs/mine
        fedkeel run --out runs/mine --resume
        fedkeel run --set data.source=npz:features.npz partition.kind=column --json

    Parameters
    ----------
    config
        TOML file; every key it leaves out has a default
    out
        the run's own folder; by default a new one under runs/
    resume
        continue the run in --out
    json
        print the summary as JSON
    """
    from fedkeel import api
    from fedkeel.screen import tell_refusals, watched

    with watched(console(), "training") as watch:
        result = api.run(config, set=set, out=out, resume=resume, watch=watch)
    tell_refusals([result])
    if json:
        print((result.folder / "summary.json").read_text(), end="")
        return
    print(result.table())
    print(f"report: {result.folder / 'report.html'}")


@app.command
def compare(
    config: Path | None = None,
    /,
    *,
    methods: Names = "fedavg,ova-lp",
    partitions: Names = "iid,bernoulli-dirichlet",
    seeds: Names = "0",
    set: Set = (),
    out: Path = Path("runs/compare"),
    json: Flag = False,
) -> None:
    """Run a grid of methods, partitions and seeds, with one table and one report.

    A method or partition may carry settings of its own, as in ova-lp:stages=1. Finished cells are not run again, an
    interrupted one continues. R is the share of the accuracy on the iid partition that a run retains, so include iid.

    For example:

        fedkeel compare study.toml --methods fedavg,ova-lp --partitions iid,shard-1,bernoulli-dirichlet --seeds 0,42
        fedkeel compare --methods fedavg,ova-lp:stages=1,ova-lp --partitions iid,dirichlet:alpha=0.1
        fedkeel compare --methods ova-lp --partitions iid,zipf --set method.rounds=10 --out runs/zipf

    Parameters
    ----------
    config
        TOML file that all cells share
    out
        folder of the grid; each cell is a run folder in it
    json
        print all summaries as JSON
    """
    import json as json_module

    from fedkeel import api
    from fedkeel.reporting.tables import as_text
    from fedkeel.screen import tell_refusals, watched

    with watched(console(), "comparing") as watch:
        results = api.compare(
            config, methods=_names(methods), partitions=_names(partitions), seeds=_numbers(seeds), out=out, set=set,
            watch=watch,
        )  # fmt: skip
    tell_refusals(results)
    if json:
        print(json_module.dumps([result.summary for result in results], indent=2))
        return
    print(as_text([result.record for result in results]))
    print(f"report: {out / 'report.html'}")


@app.command
def reproduce(
    name: str | None = None,
    /,
    *,
    scale: Literal["laptop", "paper"] = "laptop",
    seeds: Annotated[str | None, Parameter(help="instead of the recipe's own, separated by commas")] = None,
    set: Set = (),
    out: Path | None = None,
    list: Flag = False,
) -> None:
    """Run a recipe: a paper's figures and tables, with the paper's numbers beside ours on one page.

    At the laptop scale data and encoders come with fedkeel or are fetched once; the paper scale takes its own from the
    Hugging Face hub. Finished cells are not run again, an interrupted one continues.

    For example:

        fedkeel reproduce --list
        fedkeel reproduce ova-lp/ablation
        fedkeel reproduce ova-lp/ablation --seeds 0 --set method.rounds=10 --out runs/quick
        fedkeel reproduce ova-lp/encoders --scale paper

    Parameters
    ----------
    name
        the recipe
    scale
        laptop ends within minutes on two cores; paper has the paper's data and encoders
    out
        folder of its runs; by default runs/reproduce/NAME-SCALE
    list
        list the recipes
    """
    from fedkeel import api
    from fedkeel.screen import print_entries, tell_refusals, watched

    if list:
        print_entries({name: f"{recipe.title} ({recipe.shows})" for name, recipe in api.recipes().items()})
        return
    if name is None:
        raise FedkeelError("reproduce needs the name of a recipe, e.g. ova-lp/ablation: fedkeel reproduce --list")
    with watched(console(), "reproducing") as watch:
        numbers = None if seeds is None else _numbers(seeds)
        done = api.reproduce(name, scale=scale, seeds=numbers, out=out, set=set, watch=watch)
    tell_refusals(done.results)
    print(done.text)
    print(f"report: {done.page}")


@app.command
def partition(config: Path | None = None, /, *, set: Set = (), png: Path = Path("partition.png")) -> None:
    """Show who would own which rows, before anything is trained.

    For example:

        fedkeel partition study.toml
        fedkeel partition --set partition.kind=dirichlet partition.alpha=0.1 --png split.png

    Parameters
    ----------
    config
        TOML file
    png
        where to draw the heat map
    """
    from rich import print as show

    from fedkeel import api
    from fedkeel.data.describe import heatmap_png, render
    from fedkeel.screen import watched

    with watched(console(), "splitting") as watch:
        split = api.partition(config, set=set, watch=watch)
    counts = split.manifest.train.label_counts(split.labels, len(split.class_names))
    show(render(split.manifest, split.labels, split.class_names))
    heatmap_png(png, counts, split.manifest.names, split.class_names)
    print(f"manifest {split.manifest.hash[:16]}, heat map: {png}")


@app.command
def encode(config: Path | None = None, /, *, set: Set = ()) -> None:
    """Fill the feature cache; an interrupted encode continues where it stopped.

    For example:

        fedkeel encode --set data.source=cifar10
        fedkeel encode --set data.source=images:photos data.encoder=hf:facebook/dinov2-small

    Parameters
    ----------
    config
        TOML file
    """
    from fedkeel import api
    from fedkeel.screen import watched

    with watched(console(), "encoding") as watch:
        features = api.encode(config, set=set, watch=watch)
    rows, dim = len(features.train) + len(features.test), features.train.shape[1]
    print(f"{rows:,} rows of {dim} features by {features.encoder}: {features.where}")


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
    from fedkeel.screen import watched

    with watched(console(), "reporting") as watch:
        page = api.report(runs, out=out, watch=watch)
    print(f"report: {page}")


@app.command
def personalize(
    run: Path,
    /,
    *,
    method: str = "lp-ft",
    set: Set = (),
    engine: Literal["local", "wire"] = "local",
    clients: Annotated[str, Parameter(help="only these, separated by commas; by default all", show_default=False)] = "",
) -> None:
    """Give every client of a finished run a model of its own, trained from the global one; nothing leaves a client.

    The run's report then shows how good these models are on the clients' own test rows and on those of the others.
    Finished clients are not trained again, an interrupted one is.

    For example:

        fedkeel personalize runs/mine
        fedkeel personalize runs/mine --method lp-ft --set method.probe=10 method.epochs=20
        fedkeel personalize runs/mine --method proximal-ft --clients site-1,site-2
        fedkeel list strategies

    Parameters
    ----------
    run
        the folder of a finished run
    method
        the way to personalise: see fedkeel list strategies
    engine
        wire puts every message through bytes
    """
    from fedkeel import api
    from fedkeel.reporting.personal import as_text
    from fedkeel.screen import watched

    with watched(console(), "personalising") as watch:
        record = api.personalize(run, method=method, set=set, engine=engine, clients=_names(clients), watch=watch)
    print(as_text([record]))
    print(f"models: {record.folder / 'clients'}\nreport: {run / 'report.html'}")


@app.command
def predict(
    run: Path,
    /,
    *,
    input: Annotated[Path, Parameter(name="--input")],
    client: str | None = None,
    personal: str | None = None,
    out: Path | None = None,
) -> None:
    """Use a finished model on new rows: a CSV of texts, a folder of images or an npz of features.

    Prints CSV with the columns row, class and score.

    For example:

        fedkeel predict runs/mine --input posts.csv
        fedkeel predict runs/mine --input features.npz --out classes.csv
        fedkeel predict runs/mine --input posts.csv --client site-1

    Parameters
    ----------
    run
        the run's folder
    input
        file or folder of new rows
    client
        use this client's own model instead of the global one
    personal
        which of its models, where the run was personalised in several ways
    out
        write the CSV here instead of printing it
    """
    from fedkeel import api

    text = api.predict(run, input=input, client=client, personal=personal)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, encoding="utf-8")


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


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError:
        raise FedkeelError(f"--seeds {text!r}: expected whole numbers separated by commas, e.g. 0,42") from None


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        return
    except (FedkeelError, CycloptsError) as error:
        line = " ".join(str(error).split())
    except KeyboardInterrupt:
        line = "stopped: the same command continues"
    except OSError as error:
        line = f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
    print(f"fedkeel: {line}", file=sys.stderr)
    sys.exit(2)
