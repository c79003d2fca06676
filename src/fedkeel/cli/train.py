"""Commands that train: one run, a grid of them, a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fedkeel.cli.app import Data, Flag, Names, Set, app, console, names_in, numbers_in, places_in
from fedkeel.core.errors import FedkeelError


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
    from fedkeel.core.wrap import width_of
    from fedkeel.screen import say, tell_refusals, watched

    with watched(console(), "training") as watch:
        result = api.run(config, set=set, out=out, resume=resume, watch=watch)
    tell_refusals([result])
    if json:
        print((result.folder / "summary.json").read_text(), end="")
        return
    print(result.table(width_of()))
    say(f"report: {result.folder / 'report.html'}")


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

        fedkeel compare study.toml --methods fedavg,ova-lp,ridge --seeds 0,42
        fedkeel compare --methods ova-lp --partitions iid,dirichlet:alpha=0.1
        fedkeel compare --methods ova-lp:stages=1,ova-lp --out runs/stages

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
    from fedkeel.core.wrap import width_of
    from fedkeel.reporting.tables import as_text
    from fedkeel.screen import say, tell_refusals, watched

    with watched(console(), "comparing") as watch:
        results = api.compare(
            config, methods=names_in(methods), partitions=names_in(partitions), seeds=numbers_in(seeds), out=out,
            set=set, watch=watch,
        )  # fmt: skip
    tell_refusals(results)
    if json:
        print(json_module.dumps([result.summary for result in results], indent=2))
        return
    print(as_text([result.record for result in results], width_of()))
    say(f"report: {out / 'report.html'}")


@app.command
def reproduce(
    name: str | None = None,
    /,
    *,
    scale: Literal["laptop", "paper"] = "laptop",
    seeds: Annotated[str | None, Parameter(help="instead of the recipe's own, separated by commas")] = None,
    grid: Annotated[str, Parameter(help="only these, separated by commas; by default all", show_default=False)] = "",
    data: Data = (),
    set: Set = (),
    out: Path | None = None,
    dry_run: Flag = False,
    list: Flag = False,
) -> None:
    """Run a recipe: a paper's figures and tables, with the paper's numbers beside ours on one page.

    At the laptop scale data and encoders come with fedkeel or are fetched once; the paper scale takes the paper's own,
    which --dry-run lists. A grid whose data are missing is skipped. Finished cells are not run again, an interrupted
    one continues; the page shows all that are finished, whatever part of the recipe was run last.

    For example:

        fedkeel reproduce --list
        fedkeel reproduce ova-lp/ablation
        fedkeel reproduce ova-lp/ablation --seeds 0 --set method.rounds=10
        fedkeel reproduce ova-lp/encoders --scale paper --dry-run
        fedkeel reproduce lp-ft/main --grid digits5,coloured
        fedkeel reproduce lp-ft/main --scale paper --data domainnet=/data/domainnet

    Parameters
    ----------
    name
        the recipe
    scale
        laptop ends within minutes on two cores; paper has the paper's data and encoders
    out
        folder of its runs; by default runs/reproduce/NAME-SCALE
    dry_run
        run nothing: show its grids and cells, how much there is to do, the data it needs and what of them is missing
    list
        list the recipes
    """
    from fedkeel import api
    from fedkeel.core.wrap import width_of
    from fedkeel.screen import print_entries, say, tell_refusals, watched

    if list:
        print_entries({name: f"{recipe.title} ({recipe.shows})" for name, recipe in api.recipes().items()})
        return
    if name is None:
        raise FedkeelError("reproduce needs the name of a recipe, e.g. ova-lp/ablation: fedkeel reproduce --list")
    asked: dict[str, Any] = {"scale": scale, "grids": names_in(grid), "data": places_in(data), "set": set, "out": out}
    asked["seeds"] = None if seeds is None else numbers_in(seeds)
    if dry_run:
        print(api.plan(name, **asked).told(width_of()))
        return
    with watched(console(), "reproducing") as watch:
        done = api.reproduce(name, **asked, watch=watch)
    tell_refusals(done.results)
    print(done.told(width_of()))
    say(f"report: {done.page}")
