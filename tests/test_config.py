"""The configuration: one thing in three spellings, and mistakes told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedkeel as fk
from fedkeel import api
from fedkeel.api import experiment
from fedkeel.core.errors import FedkeelError
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.runs.config import Experiment, load
from fedkeel.runs.model import Model
from fedkeel.study.grid import cells


def test_file_overrides_and_keywords_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('[method]\nname = "fedavg"\nrounds = 7\n[run]\nseed = 3\n')
    from_file = load(file)
    from_texts = load(None, ["method.name=fedavg", "method.rounds=7", "run.seed=3"])
    from_python = experiment(method={"name": "fedavg", "rounds": 7}, run={"seed": 3})
    from_value = experiment(method=FedAvg(rounds=7), run={"seed": 3})
    assert from_file == from_texts == from_python == from_value
    assert from_file.digest() == from_python.digest()


@pytest.mark.parametrize("text", ["{}", "a post about {}", "a {} of {thing}"])
def test_a_template_may_be_given_on_the_command_line(text: str) -> None:
    """Braces alone would be a table in TOML."""
    assert load(None, ["method.name=fedpurel", f"method.template={text}"]).method["template"] == text


def test_the_written_file_is_complete_and_reads_back_equal(tmp_path: Path) -> None:
    first = load(None, ["partition.kind=zipf", "method.lr=0.5", "data.limit=100"])
    (tmp_path / "config.toml").write_text(first.toml())
    assert load(tmp_path / "config.toml") == first
    for key in (
        "source",
        "encoder",
        "features",
        "kind",
        "clients",
        "name",
        "rounds",
        "participation",
        "seed",
        "engine",
    ):
        assert f"\n{key} = " in first.toml()


def test_defaults_are_the_demo_s() -> None:
    default = load(None)
    assert default.data.source == "newsgroups20"
    assert (default.partition.kind, default.partition.clients) == ("bernoulli-dirichlet", 100)
    assert (default.partition.p, default.partition.alpha) == (0.1, 0.001)
    assert default.method["name"] == "ova-lp"


def test_another_method_keeps_the_settings_both_have() -> None:
    ova = load(None, ["method.rounds=9", "method.stages=1"])
    assert ova.with_values({"method.name": "fedavg"}).method["rounds"] == 9
    assert "stages" not in ova.with_values({"method.name": "fedavg"}).method


def test_a_misspelt_key_survives_a_change_of_method(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("[method]\nruonds = 3\n")
    with pytest.raises(FedkeelError, match="ruonds"):
        load(file, ["method.name=fedavg"])


MISTAKES = {
    "method.ruonds=3": "unknown key 'method.ruonds': did you mean 'method.rounds'?",
    "method.name=ova-pl": "unknown method 'ova-pl': did you mean 'ova-lp'?",
    "partion.clients=5": "unknown key 'partion': did you mean",
    "partition.client=5": "unknown key 'partition.client': did you mean 'partition.clients'?",
    "run.engine=turbo": "run.engine is 'turbo': input should be 'local', 'wire' or 'flower'",
    "method.rounds=0": "method.rounds is 0: input should be greater than or equal to 1",
    "method.rounds=many": "method.rounds is 'many'",
    "method.participation=1.5": "method.participation is 1.5",
    "run=5": "run is a section",
    "seed=5": "unknown key 'seed': did you mean 'run.seed'?",
    "method.rounds": "expected key=value",
    "shift.noise_ratio=1.2": "shift.noise_ratio is 1.2",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items())
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(FedkeelError) as caught:
        load(None, [text])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("[method]\nruonds = 3\n")
    with pytest.raises(FedkeelError, match=r"study\.toml: unknown key 'method\.ruonds'"):
        load(file)
    file.write_text("[method\n")
    with pytest.raises(FedkeelError, match=r"study\.toml is not valid TOML"):
        load(file)
    with pytest.raises(FedkeelError, match="there is no config file"):
        load(tmp_path / "none.toml")


def test_experiments_are_values() -> None:
    assert hash(Experiment().data) == hash(Experiment().data)
    with pytest.raises(Exception, match="frozen"):
        Experiment().run.seed = 4  # type: ignore[misc]


def test_another_kind_of_split_keeps_the_settings_both_have() -> None:
    first = load(None, ["partition.kind=dirichlet", "partition.alpha=0.3", "partition.balance=true"])
    assert first.with_values({"partition.kind": "pachinko"}).partition.said() == {"kind": "pachinko", "alpha": 0.3}
    assert first.with_values({"partition.kind": "iid"}).partition.said() == {"kind": "iid"}


def test_another_source_keeps_the_settings_both_have() -> None:
    first = load(None, ["data.source=csv:a.csv", "data.label_column=kind", "data.text_column=words", "data.limit=9"])
    there = first.with_values({"data.source": "hf:somebody/something"}).data
    assert (there.label_column, there.text_column, there.limit) == ("kind", "words", 9)  # type: ignore[attr-defined]
    assert first.with_values({"data.source": "digits"}).data.said() == {"source": "digits", "limit": 9}


STRAYS = {
    ("partition.kind=iid", "partition.alpha=1"): "'bernoulli-dirichlet', 'dirichlet', 'pachinko' only, not with 'iid'",
    (
        "partition.kind=zipf",
        "partition.correlation=1",
    ): "partition.kind = 'spurious' only, not with 'zipf'",
    ("data.source=digits", "data.label_column=y"): "'csv', 'hf', 'table' only, not with 'digits'; leave it out",
    ("partition.exponent=1",): "partition.kind = 'zipf' only, not with 'bernoulli-dirichlet'",
    ("partition.kind=iid", "partition.alfa=1"): "unknown key 'partition.alfa': did you mean 'partition.alpha'?",
    ("partition.kind=idd",): "unknown partition 'idd': did you mean 'iid'?",
    ("data.source=digitts",): "unknown source 'digitts': did you mean 'digits'?",
    ("data.source=npz",): "needs to say which: npz:FILE",
}


@pytest.mark.parametrize(("texts", "message"), STRAYS.items())
def test_settings_that_do_not_go_with_what_is_named(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(FedkeelError) as caught:
        load(None, texts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_written_file_holds_only_what_the_kind_has() -> None:
    text = load(None, ["partition.kind=iid", "data.source=digits"]).toml()
    for key in ("alpha", "exponent", "label_column", "text_column"):
        assert f"\n{key} = " not in text


def test_in_a_grid_a_setting_goes_to_the_partitions_that_have_it() -> None:
    base = {"data": {"source": "digits"}, "partition": {"clients": 7, "alpha": 0.4, "exponent": 3.0}}
    found = {cell.partition.name: cell.experiment.partition for cell in cells(
        base, ["ova-lp"], ["iid", "zipf", "dirichlet", "pachinko:alpha=2"], [0])}  # fmt: skip
    assert {kind: split.said() for kind, split in found.items()} == {
        "iid": {"kind": "iid", "clients": 7},
        "zipf": {"kind": "zipf", "clients": 7, "exponent": 3.0},
        "dirichlet": {"kind": "dirichlet", "clients": 7, "alpha": 0.4},
        "pachinko": {"kind": "pachinko", "clients": 7, "alpha": 2.0},
    }
    along = cells({}, ["ova-lp"], ["iid", "dirichlet"], [0], {"partition.alpha": [0.1, 1.0]})
    assert [cell.label for cell in along] == [
        "ova-lp-iid-seed0",
        "ova-lp-dirichlet-alpha=0.1-seed0",
        "ova-lp-dirichlet-alpha=1.0-seed0",
    ]
    with pytest.raises(FedkeelError, match=r"partition iid:alpha=1: partition\.alpha goes with"):
        cells({}, ["ova-lp"], ["iid:alpha=1"], [0])
    with pytest.raises(FedkeelError, match=r"partition iid: unknown key 'partition\.clinets'"):
        cells({"partition": {"clinets": 3}}, ["ova-lp"], ["iid"], [0])


def test_public_names_are_those_of_their_homes() -> None:
    """Modules behind them have names of their own that are spelt alike."""
    assert fk.Split is api.Split
    assert fk.Model is Model
    assert fk.Experiment is Experiment


def test_one_observer_needs_no_list() -> None:
    assert load(None, ["run.observe=geometry"]).run.observe == ("geometry",)
    assert load(None, ['run.observe=["geometry", "drift"]']).run.observe == ("geometry", "drift")
    with pytest.raises(FedkeelError, match="unknown observer 'nrom'"):
        load(None, ["run.observe=nrom"])
