"""What a page tells of some runs, as plain values for its templates: results, curves, splits, cost and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from fedkeel.data.ownership import IID
from fedkeel.metrics.features import common_mean
from fedkeel.reporting import balance, diagnostics, personal, plots, trust
from fedkeel.reporting.balance import BalanceSection
from fedkeel.reporting.canvas import Picture
from fedkeel.reporting.class_names import Called, called
from fedkeel.reporting.commentary import Commentary
from fedkeel.reporting.grouping import Group, groups
from fedkeel.reporting.personal import PersonalSection
from fedkeel.reporting.plots import Look
from fedkeel.reporting.tables import Table, cost_table, format_bytes, results_table, summary_rows
from fedkeel.runs.events import SITES, Record

MOST_REFUSED = 100


@dataclass(frozen=True)
class Key:
    """Of the most accurate method on the hardest split: a report is read for where things go wrong."""

    whose: str
    figures: Sequence[tuple[str, str, str]]
    """name, value and unit"""


@dataclass(frozen=True)
class Split:
    """One split: who holds what, how the methods serve classes and clients on it, and curves if not drawn before."""

    name: str
    figures: Sequence[Picture]
    waiting: str
    """the methods of which nothing has finished"""


@dataclass(frozen=True)
class Configuration:
    """What a run was made with."""

    title: str
    name: str
    version: str
    digest: str | None
    """None while it has not finished"""
    config: str


@dataclass(frozen=True)
class Story:
    """All that a page shows of some runs; None and empty are not shown."""

    sentence: str
    facts: str
    classes: Sequence[Called]
    key: Key | None
    notices: Sequence[tuple[str, str]]
    results: Table
    results_note: str
    command: str
    """how to get R(t), where no run has an IID twin"""
    rounds: Sequence[Picture]
    splits: Sequence[Split]
    balance: BalanceSection | None
    personal: PersonalSection | None
    drift: Sequence[Sequence[Picture]]
    bands: str
    """what the bands in those figures are"""
    geometry: Table | None
    trust: Table | None
    uncalibrated: bool
    """whether some model's scores have no temperature"""
    cost: Table
    refused: Table | None
    refusals: int
    """how many there were; the table has the first"""
    lost: int
    """exchanges in which nobody's update was accepted"""
    configurations: Sequence[Configuration]


def tell(records: Sequence[Record], commentary: Commentary, alone: bool = False) -> Story:
    """The story of some runs; ``alone`` on their page, it says how to get what is missing."""
    found, rows = groups(records), summary_rows(records)
    look, refusals = Look.of(found), _refusals(found)
    sentence, facts = _lead(records, found)
    return Story(
        sentence=sentence,
        facts=facts,
        classes=called(records),
        key=_key_figures(rows),
        notices=list(_notices(records, found)),
        results=results_table(rows),
        results_note=_results_note(rows, records),
        command=_how_to_get_r(found) if alone else "",
        rounds=[] if look.apart else _curves(found, found, look),
        splits=[_split(name, found, look) for name in dict.fromkeys(group.partition for group in found)],
        balance=balance.section(found, look, commentary),
        personal=personal.section(found, commentary),
        drift=drift(found, look),
        bands=plots.band_note(found),
        geometry=diagnostics.geometry_table(found),
        trust=trust.trust_table(found),
        uncalibrated=trust.uncalibrated(found),
        cost=cost_table(rows),
        refused=Table(["Run", "Round", "Client", "Reason"], refusals[:MOST_REFUSED], words=4) if refusals else None,
        refusals=len(refusals),
        lost=sum(len(run.lost) for group in found for run in group.runs),
        configurations=[_configuration(group, run) for group in found for run in group.runs],
    )


def _lead(records: Sequence[Record], found: Sequence[Group]) -> tuple[str, str]:
    """What was run, in a sentence, and facts about the data."""
    first = records[0].start
    data, clients = first["data"], sorted({record.start["clients"]["count"] for record in records})
    rounds = sorted({record.start["config"]["method"].get("rounds", len(record.rounds)) for record in records})
    seeds = sorted({record.seed for record in records})
    encoders = dict.fromkeys(record.start["data"]["encoder"] for record in records)
    ran = f"{count(len(records), 'run')}: " if len(records) > 1 else ""
    splits, methods = (
        listed(dict.fromkeys(map(_spoken, labels)))
        for labels in ([group.partition for group in found], [group.method for group in found])
    )
    many, s = listed(f"{n:,}" for n in clients), "" if clients == [1] else "s"
    dealt = f"held by {many} site{s}" if splits == SITES else f"split over {many} client{s} by {splits}"
    sentence = (
        f"{ran}{listed(sources(records))} (features: {listed(encoders)}), {dealt}, "
        f"trained with {methods} for {listed(map(str, rounds))} "
        f"{'round' if rounds == [1] else 'rounds'}, {'seed' if len(seeds) == 1 else 'seeds'} {listed(map(str, seeds))}."
    )
    facts = f"{data['train_rows']:,} training rows, {data['test_rows']:,} test rows, {len(data['classes'])} classes"
    facts += f", {data['dim']:,} features" if data.get("dim") else ""
    if data.get("mean_energy") is not None:
        facts += f", {100 * data['mean_energy']:.0f} % of the features' energy in their common mean"
    if any(record.start.get("insecure") for record in records):
        facts += "; run with --insecure, without TLS: whoever listened could read all that was sent"
    only = "" if len(set(sources(records))) == 1 else f"{data['source']}: "
    return sentence, only + facts


def _key_figures(rows: Sequence[dict[str, Any]]) -> Key | None:
    known = [row for row in rows if row["accuracy"] is not None]
    if not known:
        return None
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
    whose = f"{row['method']} on {row['partition']}"
    if len({r["method"] for r in known}) > 1:
        whose += ", the most accurate method" + (" on the hardest split" if len(splits) > 1 else "")
    elif len(splits) > 1:
        whose += ", the hardest split"
    return Key(whose, figures)


def _notices(records: Sequence[Record], found: Sequence[Group]) -> Iterable[tuple[str, str]]:
    for energy, source, features in sorted({_energy(record) for record in records}):
        if warning := common_mean(energy, source, features):
            yield "Most of the features is a common mean", warning
    open_runs = [run for group in found for run in group.runs if run.end is None]
    if open_runs:
        yield (
            f"{count(len(open_runs), 'run')} not finished",
            f"{listed(run.folder.name for run in open_runs)}: left out of a mean over seeds where other seeds have "
            "finished, else marked with * and shown up to the last completed round.",
        )
    repeated = len(records) - sum(len(group.runs) for group in found)
    if repeated:
        yield (
            f"{count(repeated, 'run')} given more than once",
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
        text.append(f"The model is not that of the last round but of the best one on validation rows ({listed(kept)}).")
    return " ".join(text)


def _how_to_get_r(found: Sequence[Group]) -> str:
    """How to get R(t), where no run has an IID twin; real sites cannot have one."""
    shown = [pair for group in found for pair in group.shown]
    if any(twin for _, twin in shown) or any(run.start.get("contract") for run, _ in shown):
        return ""
    methods = ",".join(dict.fromkeys(group.runs[0].method for group in found))
    kinds = [kind for kind in dict.fromkeys(group.runs[0].partition for group in found) if kind != IID]
    command = f"fedkeel compare CONFIG.toml --methods {methods} --partitions {','.join([IID, *kinds])}"
    return command if kinds else f"{command},bernoulli-dirichlet"


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


def _split(name: str, found: Sequence[Group], look: Look) -> Split:
    mine = [group for group in found if group.partition == name]
    pictures: list[Picture | None] = []
    if look.apart:
        pictures += _curves(mine, found, look)
    for classes in dict.fromkeys(tuple(group.runs[0].start["data"]["classes"]) for group in mine):
        alike = [group for group in mine if tuple(group.runs[0].start["data"]["classes"]) == classes]
        pictures.append(plots.label_map(alike[0].runs[0], name))
        ended = [group for group in alike if any(run.end for run in group.runs)]
        if ended:
            pictures += [plots.class_accuracy(ended, look), plots.client_accuracy(ended, look)]
    waiting = [group.method for group in mine if not any(run.end for run in group.runs)]
    return Split(name, [picture for picture in pictures if picture], listed(waiting) if waiting else "")


def drift(found: Sequence[Group], look: Look) -> list[list[Picture]]:
    """How clients pull apart, where runs have measured it."""
    parts = [found]
    if look.apart:
        names = dict.fromkeys(group.partition for group in found)
        parts = [[group for group in found if group.partition == name] for name in names]
    return [pictures for part in parts if (pictures := diagnostics.drift_curves(part, found, look))]


def _refusals(found: Sequence[Group]) -> list[list[str]]:
    return [
        [run.folder.name, str(event["round"]), refusal["client"], refusal["reason"]]
        for group in found
        for run in group.runs
        for event in run.traffic
        for refusal in event["refused"]
    ]


def _configuration(group: Group, run: Record) -> Configuration:
    config = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in run.start["config"].items()
    }
    title = f"{group.method}, {group.partition}, seed {run.seed}"
    digest = str(run.end["digest"]) if run.end else None
    return Configuration(title, run.folder.name, str(run.start["version"]), digest, tomli_w.dumps(config))


def sources(records: Sequence[Record]) -> list[str]:
    """Of the data of some runs, each once."""
    return list(dict.fromkeys(str(record.start["data"]["source"]) for record in records))


def _spoken(label: str) -> str:
    """A label in a sentence that has commas of its own: ova-lp, stages=1 -> ova-lp (stages=1)."""
    name, comma, settings = label.partition(", ")
    return f"{name} ({settings})" if comma else name


def listed(words: Iterable[str]) -> str:
    """One or more in a sentence: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def count(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
