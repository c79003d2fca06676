"""CLIP from a folder to predictions: a tiny one, on pictures of three colours, with every kind of module."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedkeel as fk
from duals import COLOURS, clip_folder, pictures_in
from fedkeel import api
from fedkeel.models import transformers_encoder
from fedkeel.personal.models import personal_model

METHODS: dict[str, dict[str, Any]] = {
    "zero-shot": {"name": "zero-shot"},
    "promptfl": {"name": "promptfl", "rounds": 2},
    "fedclip": {"name": "fedclip", "rounds": 2},
    "clip-lora": {"name": "clip-lora", "rounds": 2, "blocks": [1, 2]},
    "fedsa-clip-lora": {"name": "fedsa-clip-lora", "rounds": 2, "blocks": [2]},
    "fedpurel, prompt": {"name": "fedpurel", "rounds": 2, "tokens": 2},
    "fedpurel, lora": {"name": "fedpurel", "rounds": 2, "peft": "lora", "schedule": "interleaved"},
    "fedpurel, adapter": {"name": "fedpurel", "rounds": 2, "peft": "adapter"},
}
TRAIN, TEST = np.arange(48) % 3, np.arange(21) % 3


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the encoder, the pictures, and some more as files."""
    folder = tmp_path_factory.mktemp("clip")
    clip_folder(folder / "tiny-clip")
    pictures = pictures_in(np.concatenate([TRAIN, TEST]))
    rows = {"x": pictures[: len(TRAIN)], "y": TRAIN, "x_test": pictures[len(TRAIN) :], "y_test": TEST}
    np.savez(folder / "pictures.npz", class_names=np.array(COLOURS), **rows)
    (folder / "new").mkdir()
    for index, picture in enumerate(rows["x_test"]):
        Image.fromarray(picture).save(folder / "new" / f"{index:02d}.png")
    return folder


def settings(home: Path, method: dict[str, Any], **run: Any) -> dict[str, Any]:
    """In float32, so that what is kept and what is computed anew are the same."""
    data = {"source": f"npz:{home / 'pictures.npz'}", "encoder": f"hf:{home / 'tiny-clip'}", "dtype": "float32"}
    trained = {} if method["name"] == "zero-shot" else {"batch": 8, "lr": 0.02, "personal_epochs": 2}
    return {
        "data": {**data, "cache": str(home / "cache")},
        "partition": {"kind": "dirichlet", "clients": 3, "alpha": 1.0},
        "method": {**trained, **method},
        "run": {"threads": 1, **run},
    }


@pytest.fixture(scope="module")
def finished(home: Path) -> dict[str, fk.Result]:
    return {
        name: fk.run(out=home / "runs" / f"{index}", **settings(home, method))
        for index, (name, method) in enumerate(METHODS.items())
    }


def classified(text: str) -> list[str]:
    return [row["class"] for row in csv.DictReader(io.StringIO(text))]


def test_zero_shot_is_transformers_own(home: Path, finished: dict[str, fk.Result]) -> None:
    """``CLIPModel`` on the test pictures and the filled templates."""
    import transformers

    folder = home / "tiny-clip"
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with np.load(home / "pictures.npz") as arrays:
        seen = processor(images=list(arrays["x_test"]), return_tensors="pt")
    read = tokenizer([f"a photo of a {name}." for name in COLOURS], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**read, **seen).logits_per_image
    result = finished["zero-shot"]
    assert result.accuracy == float((logits.argmax(1).numpy() == TEST).mean())
    _, scores = result.predict([str(path) for path in sorted((home / "new").iterdir())])
    np.testing.assert_allclose(scores, logits.softmax(1).max(1).values.numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_predicted_is_what_was_measured(home: Path, finished: dict[str, fk.Result], name: str) -> None:
    """The same pictures from files, through the model that was saved, hit as often as the run says."""
    result = finished[name]
    found = classified(api.predict(result.folder, input=home / "new"))
    assert np.mean([one == COLOURS[label] for one, label in zip(found, TEST, strict=True)]) == pytest.approx(
        result.accuracy
    )


@pytest.mark.parametrize("name", [name for name in METHODS if name != "zero-shot"])
def test_every_kind_learns_and_personal_models_are_others(
    home: Path, finished: dict[str, fk.Result], name: str
) -> None:
    result = finished[name]
    assert any(value.abs().max() > 0 for value in result.model.shared.values())
    pictures = [str(path) for path in sorted((home / "new").iterdir())]
    client = result.record.start["clients"]["names"][0]
    _, common = result.predict(pictures)
    _, own = personal_model(result.folder, client, None).predict(pictures)
    assert np.abs(common - own).max() > 1e-4
    _, untouched = finished["zero-shot"].predict(pictures)
    assert (np.abs(common - untouched).max() > 1e-4) == (name != "fedsa-clip-lora")


@pytest.mark.parametrize("name", ["zero-shot", "promptfl", "fedpurel, adapter", "fedpurel, lora"])
def test_a_second_run_reads_no_picture_again(
    home: Path, finished: dict[str, fk.Result], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the item tower's frozen part gives comes from the cache: of images only a single blank one is seen."""
    seen: list[int] = []
    processed = transformers_encoder._images

    def spied(processor: Any) -> Any:
        read = processed(processor)
        return lambda rows, positions: seen.append(len(rows)) or read(rows, positions)

    monkeypatch.setattr(transformers_encoder, "_images", spied)
    again = fk.run(out=tmp_path / "again", **settings(home, METHODS[name]))
    assert again.digest == finished[name].digest
    assert set(seen) <= ({1} if "lora" in name else set())


@pytest.mark.parametrize("name", ["promptfl", "fedpurel, lora"])
def test_a_run_that_was_stopped_goes_on(home: Path, finished: dict[str, fk.Result], name: str, tmp_path: Path) -> None:
    def stop(round: int, rounds: int, accuracy: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(fk.FedkeelError, match="--resume continues"):
        fk.run(out=tmp_path / "run", watch=fk.Watch(round=stop), **settings(home, METHODS[name]))
    resumed = fk.run(out=tmp_path / "run", resume=True)
    assert resumed.digest == finished[name].digest
    assert resumed.summary["personal_mean"] == finished[name].summary["personal_mean"]


@pytest.mark.parametrize("name", ["promptfl", "fedpurel, lora"])
def test_threads_change_nothing(home: Path, finished: dict[str, fk.Result], name: str, tmp_path: Path) -> None:
    two = fk.run(out=tmp_path / "two", **settings(home, METHODS[name], threads=2))
    for tensor, value in finished[name].model.shared.items():
        torch.testing.assert_close(two.model.shared[tensor], value, rtol=1e-4, atol=1e-6)


def test_on_the_command_line(home: Path, finished: dict[str, fk.Result], tmp_path: Path) -> None:
    chosen = settings(home, METHODS["clip-lora"])
    words = [f"{section}.{key}={value}" for section, values in chosen.items() for key, value in values.items()]
    command = [sys.executable, "-m", "fedkeel", "run", "--out", str(tmp_path / "run"), "--set", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "Warning" not in ran.stderr
    assert fk.Result.load(tmp_path / "run").digest == finished["clip-lora"].digest


def test_targets_that_match_nothing_leave_nothing_behind(home: Path, tmp_path: Path) -> None:
    method = {"name": "clip-lora", "targets": ["nothing"]}
    line = "is called nothing; its blocks have k_proj, v_proj, q_proj, out_proj, fc1, fc2: choose among them"
    with pytest.raises(fk.FedkeelError, match=line):
        fk.run(out=tmp_path / "run", **settings(home, method))
    assert not (tmp_path / "run").exists()
