"""The feature cache under crashes, damage, full disks, changed encoders and company."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedkeel as fk
from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.models import cache, encoders
from fedkeel.models.cache import features
from fedkeel.models.encoders import Encoder, Model

ROWS, TESTED, CHUNK = 40, 12, 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CHUNK", CHUNK)


def settings(tmp_path: Path, where: str = "cache", encoder: str = "pixels", **more: Any) -> Source:
    """Images of 32 x 32 random pixels, written once."""
    path = tmp_path / "images.npz"
    if not path.exists():
        x = np.random.default_rng(0).integers(0, 256, (ROWS + TESTED, 32, 32, 3), dtype=np.uint8)
        y = np.arange(ROWS + TESTED) % 2
        np.savez(path, x=x[:ROWS], y=y[:ROWS], x_test=x[ROWS:], y_test=y[ROWS:])
    return Source.of(source=f"npz:{path}", encoder=encoder, cache=str(tmp_path / where), **more)


def make(data: Source, **arguments: Any) -> cache.Encoded:
    return features(data, load(data), **arguments)


def only_folder(tmp_path: Path, where: str = "cache") -> Path:
    (folder,) = (path for path in (tmp_path / where / "features").iterdir() if path.is_dir())
    return folder


def stored(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("train.npy", "test.npy")}


SCRIPT = """
import sys, time, resource
from fedkeel.data.sources.base import Source
from fedkeel.models import cache
from fedkeel.data.loading import load
import fedkeel as fk
from fedkeel.core.errors import FedkeelError
data = Source.model_validate_json(sys.argv[1])
cache.CHUNK = int(sys.argv[2])
pause = float(sys.argv[3])
if len(sys.argv) > 4:  # no file may grow beyond this: what a full disk looks like to a process
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
def progress(done, total):
    print("done", done, flush=True)
    time.sleep(pause)
try:
    made = cache.features(data, load(data), progress=progress, notice=lambda line: print("notice", line, flush=True))
    print("cached", made.cached, flush=True)
except FedkeelError as error:
    print("error", error, flush=True)
"""


def start(data: Source, pause: float = 0.0, *limit: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, data.model_dump_json(), str(CHUNK), str(pause), *map(str, limit)]
    source = str(Path(cache.__file__).parents[2])
    one_thread = {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}  # as in this process: sums in the same order
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | one_thread)


def kill_after(process: subprocess.Popen[str], rows: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("done") and int(line.split()[1]) >= rows:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


# --- what is encoded, and when --------------------------------------------------------------------------------------


def test_encoded_once_then_read(tmp_path: Path) -> None:
    data = settings(tmp_path)
    told: list[tuple[int, int]] = []
    first = make(data, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, ROWS + TESTED)
    assert told[-1] == (ROWS + TESTED, ROWS + TESTED)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    second = make(data, progress=lambda *_: pytest.fail("encoded again"))
    assert (first.cached, second.cached) == (False, True)
    assert isinstance(second.train, np.memmap)
    expected = (np.asarray(load(data).train) @ [0.299, 0.587, 0.114]).reshape(ROWS, -1) / 255  # grey, ITU-R 601-2
    assert second.train.dtype == np.float16
    assert np.abs(second.train - expected).max() < 5e-3
    assert np.array_equal(first.test, second.test)
    assert sorted(path.name for path in only_folder(tmp_path).iterdir()) == ["meta.json", "test.npy", "train.npy"]
    meta = json.loads((only_folder(tmp_path) / "meta.json").read_text())
    assert (meta["dataset"], meta["encoder"]) == (data.source, "pixels")
    assert meta["train"]["shape"] == [ROWS, 32 * 32]


def test_another_type_cut_or_content_is_another_entry(tmp_path: Path) -> None:
    make(settings(tmp_path))
    assert not make(settings(tmp_path, dtype="float32")).cached
    limited = make(settings(tmp_path, limit=10))
    assert not limited.cached
    assert limited.train.shape[0] == 10
    with np.load(tmp_path / "images.npz") as file:
        arrays = dict(file)
    arrays["x"][0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "images.npz", **arrays)
    assert not make(settings(tmp_path)).cached
    assert make(settings(tmp_path, limit=10)).cached is False


def test_features_that_exist_are_not_cached(tmp_path: Path) -> None:
    data = Source.of(cache=str(tmp_path / "cache"))
    posts = load(data)
    assert features(data, posts).train is posts.ready["minilm"].train
    np.savez(tmp_path / "f.npz", x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2)
    mine = load(Source.of(source=f"npz:{tmp_path / 'f.npz'}"))
    given = features(data, mine)
    assert np.array_equal(given.train, mine.train)
    assert given.encoder == "none"
    assert not (tmp_path / "cache").exists()


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder(Source.of()) == tmp_path / "xdg" / "fedkeel"
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "env"))
    assert cache.cache_folder(Source.of()) == tmp_path / "env"
    assert cache.cache_folder(Source.of(cache="~/mine")) == Path.home() / "mine"


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [4, 20, 44])
def test_killed_and_continued_is_bit_identical(tmp_path: Path, rows: int) -> None:
    """Killed in the first chunks, in the middle and in the test rows; no finished chunk is encoded twice."""
    data = settings(tmp_path)
    kill_after(start(data, pause=0.02), rows)
    partial = only_folder(tmp_path)
    assert partial.name.endswith(".partial")
    with (partial / "train.npy").open("ab") as file:
        file.write(b"torn")  # half a chunk that was never confirmed
    told: list[int] = []
    continued = make(data, progress=lambda done, _: told.append(done))
    assert told[0] >= min(rows, ROWS)
    make(settings(tmp_path, "whole"))
    assert stored(only_folder(tmp_path)) == stored(only_folder(tmp_path, "whole"))
    assert np.isfinite(continued.train).all()


def test_killed_and_continued_with_a_real_network(tmp_path: Path) -> None:
    data = settings(tmp_path, encoder="efficientnet-lite0", limit=12)
    kill_after(start(data, pause=0.2), CHUNK)
    told: list[int] = []
    make(data, progress=lambda done, _: told.append(done))
    assert told[0] >= CHUNK
    make(settings(tmp_path, "whole", encoder="efficientnet-lite0", limit=12))
    assert stored(only_folder(tmp_path)) == stored(only_folder(tmp_path, "whole"))


def test_what_was_begun_long_ago_and_nobody_holds_is_deleted(tmp_path: Path) -> None:
    """What is newer may be continued, and what is held is being written."""
    parent = tmp_path / "cache" / "features"
    for name in ("old", "new", "held"):
        (parent / f"{name}.partial").mkdir(parents=True)
    for name in ("old", "held"):
        os.utime(parent / f"{name}.partial", (0, 0))
    with (parent / "held.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(settings(tmp_path))
    assert sorted(path.stem for path in parent.glob("*.partial")) == ["held", "new"]


def test_half_a_note_of_a_killed_process_does_not_stay_with_the_features(tmp_path: Path) -> None:
    data = settings(tmp_path)
    kill_after(start(data, pause=0.02), 20)
    (only_folder(tmp_path) / ".train.progress.7.partial").write_bytes(b"half")
    make(data)
    assert sorted(path.name for path in only_folder(tmp_path).iterdir()) == ["meta.json", "test.npy", "train.npy"]


def test_a_changed_partial_is_started_over(tmp_path: Path) -> None:
    data = settings(tmp_path)
    kill_after(start(data, pause=0.02), 20)
    path = only_folder(tmp_path) / "train.npy"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(bytes(content))
    told: list[int] = []
    make(data, progress=lambda done, _: told.append(done))
    assert told[0] == 0
    make(settings(tmp_path, "whole"))
    assert stored(only_folder(tmp_path)) == stored(only_folder(tmp_path, "whole"))


def test_a_full_disk_is_named_and_then_continued(tmp_path: Path) -> None:
    """A row is 2,048 bytes and a chunk 8,192: at most 33,300 bytes stop in the fifth of ten chunks."""
    data = settings(tmp_path)
    output, _ = start(data, 0.0, 33_300).communicate()
    error = output.splitlines()[-1]
    assert error.startswith("error cannot write the feature cache")
    assert str(tmp_path / "cache") in error
    assert "data.cache" in error
    assert "FEDKEEL_CACHE" in error
    told: list[int] = []
    make(data, progress=lambda done, _: told.append(done))
    assert told[0] == 16
    make(settings(tmp_path, "whole"))
    assert stored(only_folder(tmp_path)) == stored(only_folder(tmp_path, "whole"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FedkeelError, match=r"file/cache/features.*data\.cache"):
        make(settings(tmp_path, "file/cache"))


def test_two_processes_encode_once(tmp_path: Path) -> None:
    """The first is held still in the middle until the second says that it waits."""
    data = settings(tmp_path)
    first = start(data)
    assert first.stdout is not None
    first.stdout.readline()
    first.send_signal(signal.SIGSTOP)
    second = start(data)
    assert second.stdout is not None
    heard = second.stdout.readline()
    first.send_signal(signal.SIGCONT)
    assert "another process is encoding" in heard
    assert first.communicate()[0].splitlines()[-1] == "cached False"
    assert second.communicate()[0].splitlines() == ["cached True"]
    assert len(stored(only_folder(tmp_path))) == 2


# --- damage and change ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.npy", "test.npy"])
def test_one_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    data = settings(tmp_path)
    make(data)
    path = only_folder(tmp_path) / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FedkeelError, match=rf"{name} is damaged.*delete the folder {path.parent}"):
        make(data)
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    assert not make(data).cached


@pytest.mark.parametrize("damage", ["{", "[]", '{"train": 1}', None])
def test_a_damaged_record_is_noticed(tmp_path: Path, damage: str | None) -> None:
    data = settings(tmp_path)
    make(data)
    meta = only_folder(tmp_path) / "meta.json"
    if damage is None:
        meta.unlink()
    else:
        meta.write_text(damage)
    with pytest.raises(FedkeelError, match="delete the folder"):
        make(data)


def test_a_changed_encoder_is_noticed(tmp_path: Path) -> None:
    import torch
    import transformers
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**size, image_size=16, patch_size=8)
    data = settings(tmp_path, encoder=f"hf:{tmp_path / 'vit'}")
    told: list[str] = []
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        transformers.ViTModel(config).save_pretrained(str(tmp_path / "vit"))
        ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(str(tmp_path / "vit"))
        assert len(told) == 0
        made.append(make(data, notice=told.append))
    assert len(told) == 1
    assert f"the encoder hf:{tmp_path / 'vit'} has changed since 20" in told[0]
    assert not made[1].cached
    assert made[0].weights != made[1].weights
    assert not np.array_equal(made[0].train, made[1].train)
    assert make(data, notice=told.append).cached
    assert len(told) == 1


# --- bad rows -------------------------------------------------------------------------------------------------------


def with_encoder(monkeypatch: pytest.MonkeyPatch, value: float, row: int) -> None:
    """An encoder whose output for one row of the training rows is broken."""

    def open_broken(data: Source, dataset: Dataset) -> Encoder:
        target = np.asarray(dataset.train[row])

        def encode(rows: Any) -> np.ndarray:
            return np.array([[value if np.array_equal(r, target) else 1.0] * 2 for r in rows], dtype=np.float32)

        return Encoder("pixels", "images", "", "broken", lambda: Model(2, encode))

    monkeypatch.setattr(cache, "open_encoder", open_broken)


def test_features_that_are_no_numbers_name_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_encoder(monkeypatch, float("nan"), 17)
    with pytest.raises(FedkeelError, match="train row 17: encoder pixels gave NaN or infinity"):
        make(settings(tmp_path))
    with_encoder(monkeypatch, 1e5, 9)
    with pytest.raises(FedkeelError, match=r"train row 9: .* 1e\+05, too large for float16; set data\.dtype"):
        make(settings(tmp_path, "other"))
    assert make(settings(tmp_path, "other", dtype="float32")).train[9, 0] == 1e5


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    for i in range(12):
        path = tmp_path / "folder" / f"class-{i % 2}" / f"{i:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(path)
    data = Source.of(source=f"images:{tmp_path / 'folder'}", encoder="pixels", cache=str(tmp_path / "cache"))
    last = load(data).train[-1]
    last.write_bytes(b"no image")
    dataset = load(data)
    at = [*dataset.train, *dataset.test].index(last)
    number = at if at < len(dataset.train) else at - len(dataset.train)
    with pytest.raises(FedkeelError, match=rf"row {number}: .*{last.name} cannot be read as an image"):
        features(data, dataset)


def test_reading_needs_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = settings(tmp_path)
    make(data)
    dataset = load(data)

    def open_unloadable(*arguments: Any) -> Encoder:
        return replace(encoders.open_encoder(*arguments), load=lambda: pytest.fail("the model was loaded"))

    monkeypatch.setattr(cache, "open_encoder", open_unloadable)
    assert features(data, dataset).cached


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_cache_keeps_nothing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    data = settings(tmp_path, "kept")
    kept = features(data, load(data))

    def refuses(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    assert features(data, load(data)).cached, "what is there already is read"
    other = data.model_copy(update={"cache": str(tmp_path / "locked")})
    said: list[str] = []
    told: list[tuple[int, int]] = []
    made = features(other, load(other), notice=said.append, progress=lambda done, total: told.append((done, total)))
    assert np.array_equal(made.train, kept.train)
    assert np.array_equal(made.test, kept.test)
    assert made.train.dtype == kept.train.dtype
    assert told[-1] == (ROWS + TESTED, ROWS + TESTED)
    assert len(said) == 1
    assert "locked/features cannot be written" in said[0]
    assert "set data.cache" in said[0]
    assert not list((tmp_path / "locked" / "features").iterdir())


def test_encode_says_that_a_cache_is_read_only(tmp_path: Path) -> None:
    """Encoding is all that it does: not to keep it would be to do nothing. /sys takes no folder from anybody."""
    with pytest.raises(FedkeelError, match=r"cannot write the feature cache in /sys/fedkeel.*set data.cache"):
        fk.encode(data={"source": "digits", "cache": "/sys/fedkeel"})
