"""Settings and data that no method could work on: one clear line, before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedkeel as fk
from fedkeel.core.errors import FedkeelError
from fedkeel.core.rng import generator

DIGITS = {"source": "digits"}


def run(folder: Path, **sections: object) -> None:
    fk.run(out=folder / "run", **{"data": DIGITS, "partition": {"kind": "iid", "clients": 6}, **sections})


def refused(folder: Path, line: str, **sections: object) -> None:
    with pytest.raises(FedkeelError, match=line) as error:
        run(folder, **sections)
    assert "\n" not in str(error.value)
    assert not (folder / "run").exists(), "nothing is left behind"


def test_a_partition_that_leaves_a_class_unseen(tmp_path: Path) -> None:
    line = "4 clients x 1 classes per client make 4 shards, but the data have 10 classes and each needs one"
    refused(tmp_path, line, partition={"kind": "shard-1", "clients": 4})


def test_a_class_whose_rows_were_all_kept_for_validation(tmp_path: Path) -> None:
    """One row of class 2, and nearly all rows are kept for validation: this seed's split leaves no client with it."""
    y = np.append(np.repeat([0, 1], 40), 2)
    x = generator(0, "x").normal(size=(91, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x[:81], y=y, x_test=x[81:], y_test=np.arange(10) % 3)
    line = r"class '2' has 3 test rows but no training rows at any client \(1 such classes\): change the partition"
    split = {"kind": "iid", "clients": 2, "validation": 0.9}
    refused(tmp_path, line, data={"source": f"npz:{tmp_path / 'rows.npz'}"}, partition=split)


def test_participation_that_samples_nobody(tmp_path: Path) -> None:
    line = r"method.participation = 0.01 of 6 clients with rows samples nobody: one of them would be 0.167"
    refused(tmp_path, line, method={"participation": 0.01})
    run(tmp_path, method={"participation": 0.167, "rounds": 1})


def test_co_teaching_with_a_client_of_one_class(tmp_path: Path) -> None:
    refused(tmp_path, "co-teaching", partition={"kind": "shard-1", "clients": 10}, method={"name": "co-teaching"})


def test_ridge_without_a_penalty_on_singular_statistics(tmp_path: Path) -> None:
    """Some pixels of the digits are always 0, so the sum of x x^T has no full rank."""
    with pytest.raises(FedkeelError, match=r"singular with penalty 0 \(rank \d+ of 64\): set method.penalty > 0"):
        run(tmp_path, method={"name": "ridge", "penalty": 0})


@pytest.mark.parametrize("ratio", [-0.1, 1.5])
def test_a_noise_ratio_outside_of_0_and_1(tmp_path: Path, ratio: float) -> None:
    refused(tmp_path, "shift.noise_ratio", shift={"noise": "symmetric", "noise_ratio": ratio})


def test_an_encoder_that_is_no_transformer(tmp_path: Path) -> None:
    refused(tmp_path, "encoder cnn is no transformer", method={"name": "lora"})


POSTS = {"source": "newsgroups20", "limit": 200}
DUAL_MISTAKES = {
    "numbers for names": (DIGITS, {}, r"digits has no class names, only numbers such as 0"),
    "no place for the name": (POSTS, {"template": "a post"}, r"method.template is 'a post': a template has one \{\}"),
    "one tower": ({**POSTS, "encoder": "pixels"}, {}, r"encoder pixels has one tower and reads no class names"),
    "words of another length": (POSTS, {"words": "a post"}, r"'a post' is 2 tokens for minilm: expected 4"),
    "no such layer": (
        POSTS,
        {"name": "clip-lora", "targets": ["foo"]},
        r"no linear layer of encoder minilm is called foo; its blocks have query, key, value, dense",
    ),
    "no such block": (POSTS, {"name": "clip-lora", "blocks": [9]}, r"minilm has 6 blocks, expected 0 to 5"),
}


@pytest.mark.parametrize("mistake", DUAL_MISTAKES)
def test_what_a_dual_encoder_cannot_work_with(tmp_path: Path, mistake: str) -> None:
    data, settings, line = DUAL_MISTAKES[mistake]
    refused(tmp_path, line, data=data, method={"name": "promptfl", **settings})


def test_a_dual_encoder_that_the_hub_does_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = {"source": "coloured-digits", "encoder": "hf:nobody/no-such-clip"}
    refused(tmp_path, r"hf:nobody/no-such-clip cannot be fetched from the hub .*hf:FOLDER", data=data,
            method={"name": "promptfl"})  # fmt: skip


def test_personalising_a_run_that_has_personal_models_already(tmp_path: Path) -> None:
    split = {"kind": "iid", "clients": 2}
    run(tmp_path, data=POSTS, partition=split, method={"name": "zero-shot"})
    with pytest.raises(FedkeelError, match=r"zero-shot has a dual encoder, .*fedkeel predict .*--client"):
        fk.personalize(tmp_path / "run", method="lp")
