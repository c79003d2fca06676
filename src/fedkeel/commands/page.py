"""``fedkeel report``: the page of runs, from their events alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import SILENT, Watch
from fedkeel.runs import events
from fedkeel.runs.events import EVENTS
from fedkeel.runs.provenance import must_agree
from fedkeel.runs.summary import SUMMARY

REPORT = "report.html"
DRAWING = "drawing the page"


def report(runs: Sequence[str | Path], *, out: str | Path, watch: Watch = SILENT) -> Path:
    """Build the page of runs, or of all runs in a folder of ``compare`` or ``reproduce``, from event files alone."""
    folders = [folder for run in runs if Path(run).name != REPORT for folder in _run_folders(Path(run))]
    records = [events.read(folder) for folder in folders]
    must_agree(records)
    watch.notice(DRAWING)
    return build_page(records, Path(out), watch)


def _run_folders(path: Path) -> list[Path]:
    inside = sorted([*path.glob(f"*/{EVENTS}"), *path.glob(f"*/*/{EVENTS}")])
    return [found.parent for found in inside] if inside and not (path / EVENTS).exists() else [path]


def build_page(records: Sequence[events.Record], out: Path, watch: Watch = SILENT) -> Path:
    """The page of some runs, with what papers say of them; damaged records of personal models are told and left out."""
    from fedkeel.papers.commentary import COMMENTARY
    from fedkeel.reporting import html

    for record in records:
        events.personalised(record.folder, lambda text: watch.notice(f"passed over: {text}"))
    return html.build(records, out, commentary=COMMENTARY)


def with_twin(record: events.Record, watch: Watch) -> list[events.Record]:
    """The run, and the finished run beside it that differs in being IID, if there is one: R(t) needs it."""
    from fedkeel.reporting.grouping import iid_twin

    beside = []
    for path in sorted(record.folder.absolute().parent.glob(f"*/{SUMMARY}")):
        try:
            beside.append(events.read(path.parent))
        except (FedkeelError, OSError) as error:  # a damaged neighbour is no reason to fail
            watch.notice(f"passed over: {error}")
    twin = iid_twin(record, beside)
    return [record] if twin is None else [record, twin]
