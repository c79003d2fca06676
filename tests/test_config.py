"""The configuration: one thing in three spellings, and mistakes told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkeel.api import experiment
from fedkeel.core.errors import FedkeelError
from fedkeel.methods.heads.fedavg import FedAvg
from fedkeel.runs.config import Experiment, load


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
    "run.engine=turbo": "run.engine is 'turbo': input should be 'local' or 'wire'",
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
