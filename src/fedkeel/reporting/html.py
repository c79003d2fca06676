"""A report as one page that needs nothing else: no network, no scripts; for a phone, a desk, the dark and paper."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli_w

from fedkeel.core.errors import FedkeelError
from fedkeel.reporting import balance, diagnostics, personal, plots
from fedkeel.reporting.plots import Look, Picture
from fedkeel.reporting.tables import IID, Group, cost_html, format_bytes, groups, html_table, summary_html, summary_rows
from fedkeel.runs.events import Record

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MOST_LINES = 6
"""More lines than this are too many for one figure: then each split has curves of its own."""
MOST_REFUSED = 100
MEANINGS = {
    "Accuracy": "Share of the test rows that the global model names rightly, after the last round.",
    "Personal": "Of methods that leave every client a model of its own: its accuracy on the client's own test rows or, "
    "where clients keep none, on all test rows weighted by the client's classes; mean over the clients.",
    "R(t)": "100 × accuracy after round t over the accuracy, after the same round, of the IID twin: the run with the "
    "same data, method, settings and seed whose clients hold random equal shares (or, if only some clients take part "
    "in a round and no IID run is like that, the one in which all do). 100 means that nothing was lost to the "
    "differences between clients.",
    "Acc@95": "The first round whose accuracy is at least 95 % of the run's own final accuracy.",
    "Bytes": "Whole messages, headers included, of all clients of the run together; 1 KB = 1024 bytes. Up: from "
    "clients to server. In all: with the exchange before round 1 that finds the mean feature, if there was one.",
    "Time": "Wall-clock seconds of the rounds on the machine that ran them, evaluation included.",
    "Client and server per round": "Mean seconds of work of one client, and of the server. Until Acc@95 the two are "
    "added up: clients work side by side.",
    "±": "Sample standard deviation over the seeds.",
}


@dataclass(frozen=True)
class Part:
    """Runs that belong together on a page of several such parts."""

    title: str
    records: Sequence[Record]


def build(records: Sequence[Record], out: Path, title: str | None = None) -> Path:
    """Write the report of one or many runs to ``out``; the file appears whole or not at all."""
    if not records:
        raise FedkeelError("a report needs at least one run folder, got none: name one, e.g. fedkeel report runs/first")
    for folder in (record.folder for record in records if record.post_hoc):
        where = folder.parent.parent
        raise FedkeelError(f"{folder} holds personal models, expected a run: give {where}, whose report shows them")
    return write(page(records, title), out)


def write(text: str, out: Path) -> Path:
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, out)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise FedkeelError(f"the report cannot be written to {out}: {error.strerror}; choose another place") from None
    return out


def page(records: Sequence[Record], title: str | None = None) -> str:
    """The report as text; the same records give the same text."""
    title = title or f"{_list(dict.fromkeys(r.method for r in records))} on {_list(_sources(records))}"
    found = groups(records)
    body = [
        f"<header>{_heading(title)}{_lead(records, found)}</header>",
        *_story(records, found, _how_to_get_r(found)),
        _meanings(),
        _section("Configuration", *_configurations(found)),
    ]
    return _document(title, body)


def book(title: str, about: str, command: str, notes: Sequence[str], opening: str, parts: Sequence[Part]) -> str:
    """A page of several parts, each like a report of its own, after an opening; ``command`` makes it again."""
    remarks = "".join(f"<li>{escape(note)}</li>" for note in notes)
    links = "".join(f'<li><a href="#part-{k}">{escape(part.title)}</a></li>' for k, part in enumerate(parts))
    made = f'<p class="note">Made by <code>{escape(command)}</code></p>'
    body = [f'<header>{_heading(title)}<p class="lead">{escape(about)}</p>{made}</header>']
    body += [f'<ul class="note">{remarks}</ul>'] if remarks else []
    body += [opening, f"<nav><p>The runs in full:</p><ul>{links}</ul></nav>" if parts else ""]
    for k, part in enumerate(parts):
        found = groups(part.records)
        runs = _count(sum(len(group.runs) for group in found), "run")
        story = "".join(_story(part.records, found))
        story += f"<section><h2>Configuration</h2><details><summary>{runs}</summary>"
        story += "".join(_configurations(found)) + "</details></section>"
        for level in (3, 2):  # one step down: the part has a heading of its own
            story = story.replace(f"<h{level}>", f"<h{level + 1}>").replace(f"</h{level}>", f"</h{level + 1}>")
        # Two parts may draw the same figure: their ids must differ all the same.
        story = re.sub(r'(\bid="|url\(#|href="#)(f[0-9a-f]{10}-)', rf"\1p{k}\2", story)
        lead = _lead(part.records, found)
        body.append(f'<section class="part" id="part-{k}"><h2>{escape(part.title)}</h2>{lead}{story}</section>')
    return _document(title, [*body, _meanings() if parts else ""])


def _story(records: Sequence[Record], found: Sequence[Group], more: str = "") -> Iterable[str]:
    """Results, curves, splits, balance, personal models, drift, features, cost and refusals of some runs."""
    rows, look = summary_rows(records), Look.of(found)
    together = _curves(found, found, look) if len(found) <= MOST_LINES else []
    yield _key_figures(rows)
    yield from _notices(records, found)
    yield _section("Results", summary_html(rows), _results_note(rows, records), more)
    yield _section("Round by round", _cards(together)) if together else ""
    yield from (_partition(name, found, look) for name in dict.fromkeys(group.partition for group in found))
    yield _balance(found, look)
    yield _personal(found)
    yield _drift(found, look)
    yield _geometry(found)
    note = "<p class='note'>Bytes of all clients together; means over the seeds.</p>"
    yield _section("Cost", cost_html(rows), note)
    yield _refused(found)


def _document(title: str, body: Iterable[str]) -> str:
    style = files("fedkeel.reporting").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en-GB"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>{''.join(body)}</main></body></html>\n"
    )


def _heading(title: str) -> str:
    words = " ".join(f"<span>{escape(word)}</span>" for word in title.split())
    return f'<p class="brand">fedkeel report</p><h1>{words}</h1>'


def _meanings() -> str:
    terms = (f"<dt>{k}</dt><dd>{v}</dd>" for k, v in MEANINGS.items())
    return _section("What the numbers mean", "<dl>", *terms, "</dl>")


def _lead(records: Sequence[Record], found: Sequence[Group]) -> str:
    first = records[0].start
    data, clients = first["data"], sorted({record.start["clients"]["count"] for record in records})
    rounds = sorted({record.start["config"]["method"].get("rounds", len(record.rounds)) for record in records})
    seeds = sorted({record.seed for record in records})
    encoders = dict.fromkeys(record.start["data"]["encoder"] for record in records)
    ran = f"{_count(len(records), 'run')}: " if len(records) > 1 else ""
    splits, methods = (
        _list(dict.fromkeys(map(_spoken, labels)))
        for labels in ([group.partition for group in found], [group.method for group in found])
    )
    sentence = (
        f"{ran}{_list(_sources(records))} (features: {_list(encoders)}), split over {_list(f'{n:,}' for n in clients)} "
        f"{'client' if clients == [1] else 'clients'} by {splits}, "
        f"trained with {methods} for {_list(map(str, rounds))} "
        f"{'round' if rounds == [1] else 'rounds'}, {'seed' if len(seeds) == 1 else 'seeds'} {_list(map(str, seeds))}."
    )
    facts = f"{data['train_rows']:,} training rows, {data['test_rows']:,} test rows, {len(data['classes'])} classes"
    facts += f", {data['dim']:,} features" if data.get("dim") else ""
    if data.get("mean_energy") is not None:
        facts += f", {100 * data['mean_energy']:.0f} % of the features' energy in their common mean"
    only = "" if len(set(_sources(records))) == 1 else f"{data['source']}: "
    return f'<p class="lead">{escape(sentence)}</p><p class="note">{escape(only + facts)}.</p>'


def _key_figures(rows: Sequence[dict[str, Any]]) -> str:
    """Of the most accurate method on the hardest split: a report is read for where things go wrong."""
    known = [row for row in rows if row["accuracy"] is not None]
    if not known:
        return ""
    splits = {row["partition"] for row in known if not row["iid"]} or {row["partition"] for row in known}
    best = {name: max((r for r in known if r["partition"] == name), key=lambda r: r["accuracy"]) for name in splits}
    row = min(best.values(), key=lambda r: (r["accuracy"], r["partition"]))
    figures = [("accuracy", f"{100 * row['accuracy']:.1f}", "%")]
    if row["retained"] is not None:
        figures.append(("of the IID accuracy kept", f"{row['retained']:.1f}", "%"))
    if row["acc95"] is not None:
        figures.append(("rounds to Acc@95", f"{row['acc95']:.1f}".removesuffix(".0"), ""))
    sent, unit = format_bytes(row["bytes_up"]).split(" ")
    figures.append(("sent up by all clients", sent, unit))
    cells = "".join(
        f"<div><dd>{value}<small> {unit}</small></dd><dt>{escape(name)}</dt></div>" for name, value, unit in figures
    )
    whose = f"{row['method']} on {row['partition']}"
    if len({r["method"] for r in known}) > 1:
        whose += ", the most accurate method" + (" on the hardest split" if len(splits) > 1 else "")
    elif len(splits) > 1:
        whose += ", the hardest split"
    return f'<section class="key"><p>{escape(whose)}</p><dl>{cells}</dl></section>'


def _notices(records: Sequence[Record], found: Sequence[Group]) -> Iterable[str]:
    for energy, source, features in sorted({_energy(record) for record in records}):
        if warning := diagnostics.common_mean(energy, source, features):
            yield _box("Most of the features is a common mean", warning)
    open_runs = [run for group in found for run in group.runs if run.end is None]
    if open_runs:
        yield _box(
            f"{_count(len(open_runs), 'run')} not finished",
            f"{_list(_name(run) for run in open_runs)}: left out of a mean over seeds where other seeds have finished, "
            "else marked with * and shown up to the last completed round.",
        )
    repeated = len(records) - sum(len(group.runs) for group in found)
    if repeated:
        yield _box(
            f"{_count(repeated, 'run')} given more than once",
            "The same configuration and seed as another run: one of each is shown, so that no seed counts twice.",
        )


def _energy(record: Record) -> tuple[float, str, str]:
    data = record.start["data"]
    return data.get("mean_energy") or 0.0, data["source"], record.start["config"]["data"].get("features", "centred")


def _results_note(rows: Sequence[dict[str, Any]], records: Sequence[Record]) -> str:
    ends = [record.end or {} for record in records]
    kept = sorted({f"round {end['kept_round']}" for end in ends if "kept_round" in end})
    text = ["Means over the seeds, ± sample standard deviation."] if any(row["seeds"] > 1 for row in rows) else []
    if any(row["retained"] is not None for row in rows):
        text.append("R(final) compares each run with its IID twin of the same seed.")
    if not all(row["finished"] for row in rows):
        text.append("* not finished: the last completed round.")
    if kept:
        text.append(f"The model is not that of the last round but of the best one on validation rows ({_list(kept)}).")
    return f"<p class='note'>{' '.join(text)}</p>" if text else ""


def _how_to_get_r(found: Sequence[Group]) -> str:
    """How to get R(t), where no run has an IID twin."""
    if any(twin for group in found for _, twin in group.shown):
        return ""
    methods = ",".join(dict.fromkeys(group.runs[0].method for group in found))
    kinds = [kind for kind in dict.fromkeys(group.runs[0].partition for group in found) if kind != IID]
    command = f"fedkeel compare CONFIG.toml --methods {methods} --partitions {','.join([IID, *kinds])}"
    if not kinds:
        command += ",bernoulli-dirichlet"
    return (
        "<p>R(t), the share that a run keeps of the accuracy it would have with IID clients, needs an IID twin of each "
        f"run. To get it: <code>{escape(command)}</code></p>"
    )


def _curves(part: Sequence[Group], found: Sequence[Group], look: Look) -> list[Picture]:
    """Accuracy, R(t) and traffic of some of the groups found, in the scale of all of them."""
    begun = [group for group in found if any(run.rounds for run, _ in group.shown)]
    twinned = [group for group in begun if any(twin and twin.rounds for _, twin in group.shown)]
    if max((len(run.rounds) for group in begun for run, _ in group.shown), default=0) < 2:
        return []
    draws = [(plots.retained_curves, twinned), (plots.accuracy_curves, begun)]
    if len(look.methods) > 1:
        draws.append((plots.traffic_curves, [group for group in begun if group.traffic().any()]))
    parts = [(draw, [group for group in among if group in part], among) for draw, among in draws]
    return [draw(mine, look, among) for draw, mine, among in parts if mine]


def _partition(name: str, found: Sequence[Group], look: Look) -> str:
    """One split: who holds what, how the methods serve classes and clients on it, and curves if not drawn before."""
    mine = [group for group in found if group.partition == name]
    pictures: list[Picture | None] = []
    if len(found) > MOST_LINES:
        pictures += _curves(mine, found, look)
    for classes in dict.fromkeys(tuple(group.runs[0].start["data"]["classes"]) for group in mine):
        alike = [group for group in mine if tuple(group.runs[0].start["data"]["classes"]) == classes]
        pictures.append(plots.label_map(alike[0].runs[0], name))
        ended = [group for group in alike if any(run.end for run in group.runs)]
        if ended:
            pictures += [plots.class_accuracy(ended, look), plots.client_accuracy(ended, look)]
    waiting = [group.method for group in mine if not any(run.end for run in group.runs)]
    note = ""
    if waiting:
        note = f"<p class='note'>Accuracy by class and client follows when {escape(_list(waiting))} has finished.</p>"
    return _section(f"Split: {name}", _cards(pictures), note)


def _balance(found: Sequence[Group], look: Look) -> str:
    """How frequent and rare classes are served, where there are such or the model knew all of them before."""
    parts = [part if isinstance(part, str) else _cards(part) for part in balance.parts(found, look)]
    return _section("Balance", *parts) if parts else ""


def _personal(found: Sequence[Group]) -> str:
    """How well the models serve that clients have for themselves, where there are any."""
    parts = [part if isinstance(part, str) else _cards(part) for part in personal.parts(found)]
    return _section("Personal models", *parts) if parts else ""


def _drift(found: Sequence[Group], look: Look) -> str:
    """How clients pull apart, where runs have measured it."""
    parts = [found]
    if len(found) > MOST_LINES:
        names = dict.fromkeys(group.partition for group in found)
        parts = [[group for group in found if group.partition == name] for name in names]
    cards = [pictures for part in parts if (pictures := diagnostics.drift_curves(part, found, look))]
    note = f"<p class='note'>{diagnostics.drift_note(found)}</p>"
    return _section("Drift", note, *map(_cards, cards)) if cards else ""


def _geometry(found: Sequence[Group]) -> str:
    table = diagnostics.geometry_table(found)
    return _section("Feature geometry", table, f"<p class='note'>{diagnostics.GEOMETRY_NOTE}</p>") if table else ""


def _refused(found: Sequence[Group]) -> str:
    rows = [
        [_name(run), str(event["round"]), refusal["client"], refusal["reason"]]
        for group in found
        for run in group.runs
        for event in run.exchanges
        for refusal in event["refused"]
    ]
    if not rows:
        return ""
    more = f" The first {MOST_REFUSED} of {len(rows):,}." if len(rows) > MOST_REFUSED else ""
    note = f"<p class='note'>Updates that the server did not take; the round went on without them.{more}</p>"
    return _section(
        "Refused updates", note, html_table(["Run", "Round", "Client", "Reason"], rows[:MOST_REFUSED], words=4)
    )


def _configurations(found: Sequence[Group]) -> list[str]:
    return [_configuration(group, run) for group in found for run in group.runs]


def _configuration(group: Group, run: Record) -> str:
    config = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in run.start["config"].items()
    }
    digest = f"digest <code>{escape(str(run.end['digest']))}</code>" if run.end else "not finished"
    return (
        f"<details><summary>{escape(f'{group.method}, {group.partition}, seed {run.seed}')}</summary>"
        f'<p class="note">run {escape(_name(run))} · fedkeel {escape(str(run.start["version"]))} · {digest}</p>'
        f'<pre tabindex="0">{escape(tomli_w.dumps(config))}</pre></details>'
    )


def _section(heading: str, *parts: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def _cards(pictures: Iterable[Picture | None]) -> str:
    cards = []
    for picture in filter(None, pictures):
        note = f"<p>{escape(picture.note)}</p>" if picture.note else ""
        svg = picture.svg.replace("<svg ", f'<svg aria-label="{escape(picture.title)}" ', 1)
        cards.append(f"<figure><figcaption><h3>{escape(picture.title)}</h3>{note}</figcaption>{svg}</figure>")
    return f'<div class="cards">{"".join(cards)}</div>'


def _box(heading: str, text: str) -> str:
    return f"<aside><strong>{escape(heading)}</strong><p>{escape(text)}</p></aside>"


def _sources(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(str(record.start["data"]["source"]) for record in records))


def _name(run: Record) -> str:
    return run.folder.name


def _spoken(label: str) -> str:
    """A label in a sentence that has commas of its own: ova-lp, stages=1 -> ova-lp (stages=1)."""
    name, comma, settings = label.partition(", ")
    return f"{name} ({settings})" if comma else name


def _list(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
