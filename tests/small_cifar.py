"""Small copies of CIFAR-10, CIFAR-100, CIFAR-10-C, CIFAR-100-C and TinyImageNet-200, as they are downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FINE = ("apple", "aquarium_fish", "bear", "beaver")
COARSE = ("aquatic_mammals", "fish", "fruit_and_vegetables", "large_carnivores")
COARSE_OF = (2, 1, 3, 0)
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
WNIDS = {
    "n01443537": "goldfish, Carassius auratus",
    "n01629819": "European fire salamander, Salamandra salamandra",
    "n02012849": "crane",
    "n03126707": "crane",
}


# ---- pickles as Python 2 wrote them


def pickle_2(value: Any) -> bytes:
    """As ``cPickle.dumps(value, 2)`` of Python 2 with a numpy of its time: texts are its strings of bytes."""
    return b"\x80\x02" + _written(value) + b"."


def _written(value: Any) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        code, size = (b"K", 1) if value in range(2**8) else (b"M", 2) if value in range(2**16) else (b"J", 4)
        return code + value.to_bytes(size, "little", signed=size == 4)
    if isinstance(value, str):
        content = value.encode("latin-1")
        code, size = (b"U", 1) if len(content) < 256 else (b"T", 4)
        return code + len(content).to_bytes(size, "little") + content + b"q\x01"
    if isinstance(value, list):
        batches = (value[at : at + 1000] for at in range(0, len(value), 1000))
        return b"]q\x02" + b"".join(b"(" + b"".join(map(_written, batch)) + b"e" for batch in batches)
    if isinstance(value, dict):
        return b"}q\x03(" + b"".join(_written(key) + _written(entry) for key, entry in value.items()) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_written, value)) + b"t"
    return array_2(value.shape, value.tobytes())


def array_2(shape: tuple[int, ...], content: bytes, kind: str = "u1", fortran: bool = False) -> bytes:
    """The instructions for an array, whatever they say of it."""
    made = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
    order = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    of = b"cnumpy\ndtype\nq\x0a" + _written(kind) + b"K\x00K\x01\x87Rq\x0b" + order
    text = b"T" + len(content).to_bytes(4, "little") + content
    return made + _written(shape) + of + _written(fortran) + text + b"tb"


def pickle_0(value: Any) -> bytes:
    """As ``cPickle.dumps(value)``, which batches.meta was written with."""
    return _said(value).encode() + b"."


def _said(value: Any) -> str:
    if isinstance(value, str):
        return f"S{value!r}\np1\n"
    if isinstance(value, int):
        return f"I{value}\n"
    if isinstance(value, list):
        return "(lp2\n" + "".join(f"{_said(entry)}a" for entry in value)
    return "(dp3\n" + "".join(f"{_said(key)}{_said(entry)}s" for key, entry in value.items())


# ---- CIFAR


def photos(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Rows of 3,072 bytes: noise, with a red that the label makes."""
    rows = np.random.default_rng(seed).integers(0, 128, (len(labels), 3072), dtype=np.uint8)
    rows[:, :1024] += (12 * (labels[:, None] % 10)).astype(np.uint8)
    return rows


def _batch(rows: np.ndarray, name: str, **labels: list[int]) -> dict[str, Any]:
    return {"batch_label": name, **labels, "data": rows, "filenames": [f"{at:05}.png" for at in range(len(rows))]}


def cifar_10(folder: Path, version: str = "py", each: int = 20) -> Path:
    """cifar-10-batches-py or -bin, with so many rows in each file."""
    folder = folder / f"cifar-10-batches-{version}"
    folder.mkdir(parents=True)
    labels = np.arange(each) % 10
    for seed, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = photos(labels, seed)
        if version == "py":
            (folder / name).write_bytes(pickle_2(_batch(rows, f"{name} of 5", labels=labels.tolist())))
        else:
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None].astype(np.uint8), rows]).tobytes())
    meta = {"num_cases_per_batch": each, "label_names": list(TEN), "num_vis": 3072}
    (folder / "readme.html").write_text("<meta>")
    if version == "py":
        (folder / "batches.meta").write_bytes(pickle_0(meta))
    else:
        (folder / "batches.meta.txt").write_text("\n".join([*TEN, "", ""]))
    return folder


def cifar_100(folder: Path, version: str = "python", train: int = 120, test: int = 40) -> Path:
    """cifar-100-python or cifar-100-binary, of four classes in four superclasses."""
    folder = folder / f"cifar-100-{version}"
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate({"train": train, "test": test}.items()):
        fine = np.arange(count) % len(FINE)
        coarse, rows = np.array(COARSE_OF)[fine], photos(fine, seed)
        if version == "python":
            labels = {"fine_labels": fine.tolist(), "coarse_labels": coarse.tolist()}
            (folder / name).write_bytes(pickle_2(_batch(rows, f"{name}ing batch 1 of 1", **labels)))
        else:
            whole = np.hstack([coarse[:, None].astype(np.uint8), fine[:, None].astype(np.uint8), rows])
            (folder / f"{name}.bin").write_bytes(whole.tobytes())
    if version == "python":
        meta = {"fine_label_names": list(FINE), "coarse_label_names": list(COARSE)}
        (folder / "meta").write_bytes(pickle_2(meta))
    else:
        (folder / "fine_label_names.txt").write_text("\n".join([*FINE, ""]))
        (folder / "coarse_label_names.txt").write_text("\n".join([*COARSE, ""]))
    return folder


def cifar_c(folder: Path, classes: int = 10, kinds: Sequence[str] = ("brightness", "fog"), each: int = 3) -> Path:
    """CIFAR-10-C or CIFAR-100-C: as many photos of each class, all five severities of each kind."""
    folder = folder / f"CIFAR-{classes}-C"
    folder.mkdir(parents=True)
    labels = np.arange(classes * each) % classes
    clean = photos(labels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    for at, kind in enumerate(kinds):
        worse = [clean + np.uint8(10 * severity + at) for severity in range(1, 6)]
        np.save(folder / f"{kind}.npy", np.concatenate(worse))
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    return folder


# ---- TinyImageNet-200


def tiny_imagenet(folder: Path, train: int = 8, test: int = 2) -> Path:
    """tiny-imagenet-200 with so many images of each class; the classes in wnids.txt are in no order."""
    folder = folder / "tiny-imagenet-200"
    draw = np.random.default_rng(0)

    def photo(path: Path, label: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 100, (64, 64, 3), dtype=np.uint8) + np.array([40 * label, 0, 0], np.uint8)
        Image.fromarray(pixels).save(path, "JPEG")

    annotations = []
    for label, wnid in enumerate(WNIDS):
        for k in range(train):
            photo(folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", label)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    for k in range(test * len(WNIDS)):
        wnid = list(WNIDS)[k % len(WNIDS)]
        photo(folder / "val" / "images" / f"val_{k}.JPEG", k % len(WNIDS))
        annotations.append(f"val_{k}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(annotations))
    photo(folder / "test" / "images" / "test_0.JPEG", 0)
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(WNIDS)))
    words = {"n00001740": "entity", **WNIDS, "n02012850": "crane, bird"}
    (folder / "words.txt").write_text("".join(f"{wnid}\t{names}\n" for wnid, names in words.items()))
    return folder
