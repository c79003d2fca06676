"""``fedkeel personalize``: a model of its own for every client of a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedkeel.commands.page import DRAWING, REPORT, build_page, with_twin
from fedkeel.core.errors import Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.loading import load
from fedkeel.personal.models import personalize as make_personal
from fedkeel.personal.models import with_settings
from fedkeel.personal.plan import Wish, usual
from fedkeel.runs import events
from fedkeel.runs.folder import stored
from fedkeel.runs.model import MODEL, Model
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
) -> events.Record:
    """One personal model per client of a finished run, in ``RUN/personal``; finished clients are kept.

    ``method`` may carry settings, ``lp-ft:probe=10``; ``set`` takes ``method.probe=10``. Without a method it is lp-ft
    where the run trained a network, and lp, which trains the head alone, where it trained a head on features. The run's
    page is made anew, unless ``page`` is false.
    """
    folder, texts = Path(run), list(set)
    experiment, model = stored(folder), Model.load(folder / MODEL)
    if method is None:
        method, why = usual(model.method)
        watch.notice(why)
    variant = with_settings(Variant.parse(method), texts)
    wish = Wish.of(method, texts, clients, engine)
    try:
        dataset = load(experiment.data, notice=watch.notice)
        record = make_personal(folder, variant, dataset, wish, watch)
    except KeyboardInterrupt:
        raise Stopped(f"stopped: {wish.command(folder)} continues") from None
    if page:
        watch.notice(DRAWING)
        build_page(with_twin(events.read(folder)), folder / REPORT)
    return record
