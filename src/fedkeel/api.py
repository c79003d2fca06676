"""What a user can do, one function per command; the command line only parses and prints."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fedkeel.core.errors import FedkeelError, Stopped, unknown
from fedkeel.core.method import METHODS, Method, settings
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.describe import Figures, describe
from fedkeel.data.loading import load
from fedkeel.data.manifest import Manifest
from fedkeel.data.new_rows import load_rows
from fedkeel.data.sources.base import SOURCES
from fedkeel.data.splits.base import SPLITS
from fedkeel.methods.dual.peft.module import MODULES
from fedkeel.models.cache import Encoded, features
from fedkeel.models.encoders import ENCODERS
from fedkeel.papers import PAPERS
from fedkeel.papers import RECIPES as PUBLISHED
from fedkeel.papers.commentary import COMMENTARY
from fedkeel.papers.comparison import section
from fedkeel.papers.comparison import text as beside_text
from fedkeel.papers.figures import FIGURES
from fedkeel.papers.measures import Ran
from fedkeel.personal.models import personal_model, with_settings
from fedkeel.personal.models import personalize as make_personal
from fedkeel.personal.strategy import STRATEGIES
from fedkeel.reporting import html
from fedkeel.reporting.grouping import iid_twin
from fedkeel.reporting.html import Part, book, write
from fedkeel.reporting.tables import as_text
from fedkeel.result import Result
from fedkeel.runs import events
from fedkeel.runs.config import Experiment, build, given, laid
from fedkeel.runs.config import load as load_config
from fedkeel.runs.events import EVENTS
from fedkeel.runs.federation import assemble, divide
from fedkeel.runs.folder import CONFIG, begin, check, fresh, stored
from fedkeel.runs.model import MODEL, Model
from fedkeel.runs.observers.base import OBSERVERS
from fedkeel.runs.simulate import simulate
from fedkeel.runs.summary import SUMMARY
from fedkeel.runs.variant import Variant
from fedkeel.study.grid import Cell, cells, shared
from fedkeel.study.recipe import Plan, Recipe, Scale
from fedkeel.study.recipe import find as find_recipe
from fedkeel.study.recipe import recipes as all_recipes

Config = str | Path | Experiment | None
REPORT = "report.html"
DRAWING = "drawing the page"


@dataclass(frozen=True)
class Split:
    """Who owns which row, and how skewed that is."""

    manifest: Manifest
    labels: np.ndarray
    class_names: tuple[str, ...]
    figures: Figures


def experiment(config: Config = None, *, set: Iterable[str] = (), **sections: Any) -> Experiment:
    """The experiment of a file, of a value or of the defaults, with ``key=value`` texts and sections laid over it.

    ``experiment(method={"name": "fedavg", "rounds": 5}, run={"seed": 42})``; ``method`` may also be a Method.
    """
    texts = list(set)
    base = config.with_texts(texts) if isinstance(config, Experiment) else load_config(config, texts)
    return build(_plain(sections), base=given(config, texts)) if sections else base


def _plain(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings(value) if isinstance(value, Method) else value for name, value in sections.items()}


def run(
    config: Config = None,
    *,
    set: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch = SILENT,
    **sections: Any,
) -> Result:
    """Run one federation from data to report, or continue the one in ``out``."""
    if resume and out is None:
        raise FedkeelError("--resume needs --out: the folder of the run to continue")
    if resume and config is None:
        config = stored(Path(out or ""))
    exp = experiment(config, set=set, **sections)
    return _carry_out(
        exp, Path(out) if out is not None else fresh(exp), resume, watch, lambda: load(exp.data, notice=watch.notice)
    )


def _carry_out(
    exp: Experiment, folder: Path, resume: bool, watch: Watch, rows: Callable[[], Dataset], page: bool = True
) -> Result:
    """Run or continue an experiment in a folder, which is made only once the experiment is known to be sound."""
    try:
        check(folder, exp, resume)
        if not finished(folder):
            federation = assemble(exp, rows(), watch)
            begin(folder, exp, federation.manifest)
            simulate(exp, federation, folder, watch)
        if page and not (folder / REPORT).exists():
            build_page(with_twin(events.read(folder)), folder / REPORT)
    except KeyboardInterrupt:
        if not (folder / CONFIG).exists():
            raise Stopped("stopped before round 1: the same command continues") from None
        raise Stopped(f"stopped: fedkeel run --out {folder} --resume continues") from None
    except OSError as error:
        again = f"continue with fedkeel run --out {folder} --resume" if (folder / CONFIG).exists() else "run again"
        what = f"{error.filename or folder}: {(error.strerror or str(error)).lower()}"
        raise FedkeelError(f"{what}; mend that and {again}, or choose another --out") from None
    return Result.load(folder)


def build_page(records: Sequence[events.Record], out: Path) -> Path:
    """The page of some runs, with what papers say of them."""
    return html.build(records, out, commentary=COMMENTARY)


def finished(folder: Path) -> bool:
    return (folder / SUMMARY).exists() and events.read(folder).end is not None


def with_twin(record: events.Record) -> list[events.Record]:
    """The run, and the finished run beside it that differs in being IID, if there is one: R(t) needs it."""
    beside = []
    for path in sorted(record.folder.absolute().parent.glob(f"*/{SUMMARY}")):
        with suppress(FedkeelError):  # a damaged neighbour is no reason to fail
            beside.append(events.read(path.parent))
    twin = iid_twin(record, beside)
    return [record] if twin is None else [record, twin]


def compare(
    config: Config = None,
    *,
    methods: Sequence[str],
    partitions: Sequence[str],
    seeds: Sequence[int] = (0,),
    out: str | Path = "runs/compare",
    set: Iterable[str] = (),
    watch: Watch = SILENT,
    **sections: Any,
) -> list[Result]:
    """Run every method on every partition with every seed, and one report of them all; finished cells are kept.

    A method or partition may carry settings: ``ova-lp:stages=1``, ``dirichlet:alpha=0.1``.
    """
    texts, folder = list(set), Path(out)
    base = laid(given(config, texts), _plain(sections))
    build({}, base=shared(given(config)), where=str(config))  # mistakes are told with where they were made
    build({}, base=shared(base), where="--set")
    results = _carry_out_all(cells(base, methods, partitions, seeds), folder, watch, pages=True)
    report([result.folder for result in results], out=folder / REPORT, watch=watch)
    return results


def _carry_out_all(grid: Sequence[Cell], folder: Path, watch: Watch, pages: bool) -> list[Result]:
    """Run or continue the cells of a grid, each in its folder; with a page for each of them if asked."""
    rows = lru_cache(maxsize=1)(lambda data: load(data, notice=watch.notice))  # read once for the cells that share it
    results = []
    for number, cell in enumerate(grid, 1):
        watch.notice(f"{number}/{len(grid)} {cell.label}")
        data = cell.experiment.data
        try:
            results.append(_carry_out(cell.experiment, folder / cell.label, True, watch, partial(rows, data), pages))
        except Stopped:
            raise Stopped(f"stopped in {cell.label}: the same command continues there") from None
    return results


@dataclass(frozen=True)
class Reproduction:
    """A recipe that was run: its page, and as plain text what it has beside the paper, or its results."""

    page: Path
    text: str
    results: list[Result]


def reproduce(
    name: str,
    *,
    scale: Scale = "laptop",
    seeds: Sequence[int] | None = None,
    out: str | Path | None = None,
    set: Iterable[str] = (),
    watch: Watch = SILENT,
) -> Reproduction:
    """Run a recipe, and set the paper's numbers beside ours on one page; finished cells are kept."""
    recipe, folder, texts = find_recipe(name), Path(out or f"runs/reproduce/{name}-{scale}"), list(set)
    if scale not in recipe.scales:
        raise unknown(f"scale of {name}", scale, recipe.scales)
    plan = recipe.scales[scale]
    if texts and not plan.grids:
        raise FedkeelError(f"{name} has no runs: --set {texts[0]} can change nothing there, leave --set out")
    # All cells before any of them runs: mistakes are told first.
    to_runs, to_models = _sorted_out(texts, plan)
    grids = [
        (grid, grid.cells(seeds or grid.seeds or plan.seeds, to_runs), grid.strategies(to_models))
        for grid in plan.grids
    ]
    parts, ran, results = [], [], []
    for grid, cells_of_it, strategies_of_it in grids:
        watch.notice(f"{grid.title}:")
        done = _carry_out_all(cells_of_it, folder / grid.name, watch, pages=False)
        _personalize_all(cells_of_it, done, strategies_of_it, watch)
        records = [result.record for result in done]
        parts.append(Part(grid.title, records))
        ran += [
            Ran(grid.column or grid.title, str(cell.method), str(cell.partition), record, iid_twin(record, records))
            for cell, record in zip(cells_of_it, records, strict=True)
        ]
        results += done
        made = [str(one) for one in strategies_of_it]
        ran += [own for run in ran[-len(done) :] for own in run.personalised(made, grid.personal)]
    watch.notice(DRAWING)
    claimed = PUBLISHED.get(name, ())
    drawn = [FIGURES[figure](seeds or plan.seeds) for figure in plan.figures]
    opening = Markup().join(page for page, _ in drawn)
    if recipe.paper is not None:
        opening = section(PAPERS[recipe.paper], recipe.shows, claimed, ran) + opening
    command = f"fedkeel reproduce {name} --scale {scale}"
    command += f" --seeds {','.join(map(str, seeds))}" if seeds else ""
    command += f" --set {shlex.join(texts)}" if texts else ""
    page = write(book(recipe.title, recipe.about, command, recipe.notes, opening, parts, COMMENTARY), folder / REPORT)
    text = beside_text(claimed, ran) or "\n\n".join(f"{part.title}\n{as_text(part.records)}" for part in parts)
    text = "\n\n".join(filter(None, [*(words for _, words in drawn), text]))
    return Reproduction(page, text, results)


def _sorted_out(texts: Sequence[str], plan: Plan) -> tuple[list[str], list[str]]:
    """The settings of runs, and those of personal models."""
    to_models = [text for text in texts if text.strip().startswith("personal.")]
    if to_models and not any(grid.personal for grid in plan.grids):
        raise FedkeelError(f"--set {to_models[0]}: this recipe has no personal models, leave it out")
    return [text for text in texts if text not in to_models], to_models


def _personalize_all(grid: Sequence[Cell], runs: Sequence[Result], strategies: Sequence[Variant], watch: Watch) -> None:
    """Personalise every run of a grid in every way, as far as that was not done."""
    rows = lru_cache(maxsize=1)(lambda data: load(data, notice=watch.notice))
    for number, (cell, run) in enumerate(zip(grid, runs, strict=True), 1):
        for variant in strategies:
            if any(made.folder.name == variant.label and made.end for made in events.personalised(run.folder)):
                continue
            watch.notice(f"{number}/{len(grid)} {cell.label}: {variant}")
            try:
                make_personal(run.folder, variant, rows(cell.experiment.data), "local", (), watch)
            except KeyboardInterrupt:
                raise Stopped(f"stopped in {cell.label}, {variant}: the same command continues there") from None


def recipes() -> dict[str, Recipe]:
    """Every recipe that ``reproduce`` knows, by name."""
    return all_recipes()


def partition(config: Config = None, *, set: Iterable[str] = (), watch: Watch = SILENT, **sections: Any) -> Split:
    """The split of an experiment, before anything is trained."""
    exp = experiment(config, set=set, **sections)
    dataset = load(exp.data, notice=watch.notice)
    manifest, labels, _ = divide(exp, dataset, watch)
    return Split(manifest, labels, dataset.class_names, describe(manifest, labels, dataset.class_names))


def encode(config: Config = None, *, set: Iterable[str] = (), watch: Watch = SILENT, **sections: Any) -> Encoded:
    """Fill the feature cache, or find that it is full already."""
    exp = experiment(config, set=set, **sections)
    return features(exp.data, load(exp.data, notice=watch.notice), progress=watch.encoded, notice=watch.notice)


def report(runs: Sequence[str | Path], *, out: str | Path, watch: Watch = SILENT) -> Path:
    """Build the page of runs, or of all runs in a folder of ``compare`` or ``reproduce``, from event files alone."""
    folders = [folder for run in runs if Path(run).name != REPORT for folder in _run_folders(Path(run))]
    watch.notice(DRAWING)
    return build_page([events.read(folder) for folder in folders], Path(out))


def _run_folders(path: Path) -> list[Path]:
    inside = sorted([*path.glob(f"*/{EVENTS}"), *path.glob(f"*/*/{EVENTS}")])
    return [found.parent for found in inside] if inside and not (path / EVENTS).exists() else [path]


def personalize(
    run: str | Path,
    *,
    method: str = "lp-ft",
    set: Iterable[str] = (),
    engine: str = "local",
    clients: Sequence[str] = (),
    watch: Watch = SILENT,
    page: bool = True,
) -> events.Record:
    """One personal model per client of a finished run, in ``RUN/personal``; finished clients are kept.

    ``method`` may carry settings, ``lp-ft:probe=10``; ``set`` takes ``method.probe=10``. The run's page is made anew,
    unless ``page`` is false.
    """
    folder, variant = Path(run), with_settings(Variant.parse(method), set)
    experiment = stored(folder)
    Model.load(folder / MODEL)
    try:
        dataset = load(experiment.data, notice=watch.notice)
        record = make_personal(folder, variant, dataset, engine, clients, watch)
    except KeyboardInterrupt:
        raise Stopped(f"stopped: fedkeel personalize {folder} --method {variant} continues") from None
    if page:
        build_page(with_twin(events.read(folder)), folder / REPORT)
    return record


def predict(run: str | Path, *, input: str | Path, client: str | None = None, personal: str | None = None) -> str:
    """Class and score of new rows by a finished run's model, as CSV text with the columns row, class and score.

    With ``client`` by that client's own model; ``personal`` says which, where the run was personalised in several ways.
    """
    if personal is not None and client is None:
        raise FedkeelError(f"--personal {personal}: whose model? Add --client NAME, or leave --personal out")
    model = Model.load(Path(run) / MODEL) if client is None else personal_model(Path(run), client, personal)
    if client is None and not model.method.common:
        raise FedkeelError(f"{model.method.name} has no global model: say whose model to use with --client NAME")
    rows = load_rows(Path(input), model.kind, model.settings)
    names, scores = model.predict(rows.rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "class", "score"])
    writer.writerows((row, name, f"{score:.6f}") for row, name, score in zip(rows.names, names, scores, strict=True))
    return text.getvalue()


def catalogue(what: str) -> dict[str, str]:
    """What exists of methods, strategies, partitions, sources, encoders, modules or observers: name -> one line."""
    match what:
        case "methods":
            return {name: method.paper for name, method in sorted(METHODS.items())}
        case "strategies":
            return {name: strategy.paper for name, strategy in sorted(STRATEGIES.items())}
        case "partitions":
            return {name: kind.about for name, kind in sorted(SPLITS.items())}
        case "sources":
            return {text: about for _, source in sorted(SOURCES.items()) for text, about in source.spellings.items()}
        case "encoders":
            return ENCODERS
        case "modules":
            return {name: _first_line(kind) for name, kind in sorted(MODULES.items())}
        case "observers":
            return {name: _first_line(kind) for name, kind in sorted(OBSERVERS.items())}
    raise unknown("list", what, ("methods", "strategies", "partitions", "sources", "encoders", "modules", "observers"))


def _first_line(kind: type) -> str:
    """What the file of a class says first."""
    return (sys.modules[kind.__module__].__doc__ or "").partition("\n")[0]
