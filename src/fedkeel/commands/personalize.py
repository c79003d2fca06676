"""``fedkeel personalize``: a model of its own for every client of a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedkeel.commands.page import DRAWING, REPORT, build_page, with_twin
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.loading import load
from fedkeel.data.sources.arrays import Arrays
from fedkeel.personal.models import personalize as make_personal
from fedkeel.personal.models import with_settings
from fedkeel.personal.plan import Wish, usual
from fedkeel.runs import events
from fedkeel.runs.config import Experiment
from fedkeel.runs.federation import Federation, assemble
from fedkeel.runs.folder import stored
from fedkeel.runs.model import Model
from fedkeel.runs.variant import Variant


def personalize(
    run: str | Path,
    *,
    method: str | None = None,
    set: Iterable[str] = (),
    engine: str = "local",
    clients: Sequence[str] = (),
    watch: Watch = SILENT,
    page: bool = True,
    data: Any = None,
) -> events.Record:
    """One personal model per client of a finished run, in ``RUN/personal``; finished clients are kept.

    ``method`` may carry settings, ``lp-ft:probe=10``; ``set`` takes ``method.probe=10``. Without a method it is lp-ft
    where the run trained a network, and lp, which trains the head alone, where it trained a head on features. The run's
    page is made anew, unless ``page`` is false. ``data`` are the rows of a run that was given rows: the same again.
    """
    folder, texts = Path(run), list(set)
    experiment = stored(folder)
    rows = None if data is None else Arrays.of(data)
    if rows is not None and rows.source != experiment.data.source:
        raise FedkeelError(
            f"data are {rows.source}, but the run in {folder} has {experiment.data.source}: give the rows it was run on"
        )
    model = Model.of(folder)
    if method is None:
        method, why = usual(model.method)
        watch.notice(why)
    variant = with_settings(Variant.parse(method), texts)
    wish = Wish.of(method, texts, clients, engine)

    def federation(experiment: Experiment) -> Federation:
        return assemble(experiment, load(experiment.data, notice=watch.notice), watch)

    try:
        record = make_personal(folder, variant, federation, wish, watch)
    except KeyboardInterrupt:
        raise Stopped(f"stopped: {wish.command(folder)} continues") from None
    if page:
        watch.notice(DRAWING)
        build_page(with_twin(events.read(folder), watch), folder / REPORT, watch)
    return record
