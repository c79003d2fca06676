"""A report as one page that needs nothing else: no network, no scripts; for a phone, a desk, the dark and paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.reporting.commentary import SILENCE, Commentary
from fedkeel.reporting.render import render
from fedkeel.reporting.story import count, listed, sources, tell
from fedkeel.runs.events import Record

MOST_NAMED = 4
"""More methods than this make a title too long."""
POLICY = Markup("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


@dataclass(frozen=True)
class Part:
    """Runs that belong together on a page of several such parts."""

    title: str
    records: Sequence[Record]


@dataclass(frozen=True)
class About:
    """What a page of several parts says of itself."""

    title: str
    lead: str
    notes: Sequence[str]
    command: str
    """makes it again"""
    changed: str = ""
    """settings that are not those which title, lead and notes speak of"""


def build(records: Sequence[Record], out: Path, title: str | None = None, commentary: Commentary = SILENCE) -> Path:
    """Write the report of one or many runs to ``out``; the file appears whole or not at all."""
    if not records:
        raise FedkeelError("a report needs at least one run folder, got none: name one, e.g. fedkeel report runs/first")
    for folder in (record.folder for record in records if record.post_hoc):
        where = folder.parent.parent
        raise FedkeelError(f"{folder} holds personal models, expected a run: give {where}, whose report shows them")
    return write(page(records, title, commentary), out)


def write(text: str, out: Path) -> Path:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    except OSError as error:
        raise FedkeelError(f"the report cannot be written to {out}: {error.strerror}; choose another place") from None
    return out


def page(records: Sequence[Record], title: str | None = None, commentary: Commentary = SILENCE) -> str:
    """The report as text; the same records give the same text."""
    methods = dict.fromkeys(record.method for record in records)
    named = listed(methods) if len(methods) <= MOST_NAMED else count(len(methods), "method")
    title = title or f"{named} on {listed(sources(records))}"
    return render("page.html", policy=POLICY, title=title, story=tell(records, commentary, alone=True))


def book(about: About, opening: str, parts: Sequence[Part], commentary: Commentary = SILENCE) -> str:
    """A page of several parts, each like a report of its own, after an opening.

    The opening is text, or markup that a template made.
    """
    told = [(part.title, tell(part.records, commentary)) for part in parts]
    shown = [{"title": name, "story": story, "runs": count(len(story.configurations), "run")} for name, story in told]
    title = f"{about.title} (changed)" if about.changed else about.title
    return render("book.html", policy=POLICY, title=title, about=about, opening=opening, parts=shown)
