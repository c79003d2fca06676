"""Pickles as data: what the official files hold is read, and of all else one line is told and nothing is run."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedkeel.core.errors import FedkeelError
from fedkeel.data import safe_pickle
from fedkeel.data.safe_pickle import read_pickle
from small_cifar import array_2, pickle_0, pickle_2

ROOT = Path(__file__).parents[2]
TOUCH = "open('canary', 'w')"


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(FedkeelError) as caught:
        read_pickle(path)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    return line


def entry(value: bytes) -> bytes:
    """A pickle of one entry."""
    return b"\x80\x02}(U\x04data" + value + b"u."


def test_what_python_2_wrote_is_read(tmp_path: Path) -> None:
    data = np.arange(24, dtype=np.uint8).reshape(2, 12)
    names = [f"photo {k}" for k in range(2500)]
    whole = {"batch_label": "x" * 300, "labels": [0, 255, 256, 70_000], "data": data, "filenames": names, "none": []}
    (tmp_path / "batch").write_bytes(pickle_2(whole))
    found = read_pickle(tmp_path / "batch")
    assert np.array_equal(found.pop("data"), whole.pop("data"))  # type: ignore[arg-type]
    assert found == whole
    about = {"num_cases_per_batch": 10_000, "label_names": ["it's", "b\\c"], "num_vis": 3072}
    for content in (pickle_0(about), pickle_2(about)):
        (tmp_path / "meta").write_bytes(content)
        assert read_pickle(tmp_path / "meta") == about


def test_the_small_copies_are_pickles_that_python_reads_alike(tmp_path: Path) -> None:
    """Python's own reader, in a process of its own, has the last word on how these files are written."""
    whole = {"labels": [1, 300, 70_000], "data": np.arange(6, dtype=np.uint8).reshape(2, 3), "meta": ["a", "b" * 300]}
    (tmp_path / "2").write_bytes(pickle_2(whole))
    (tmp_path / "0").write_bytes(pickle_0({"label_names": ["a", "b"], "num_vis": 3072}))
    code = """
import pickle, warnings
warnings.simplefilter("ignore")
for name in "20":
    found = pickle.load(open(name, "rb"), encoding="latin1")
    print({key: getattr(value, "tolist", lambda: value)() for key, value in found.items()})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, second = map(ast.literal_eval, done.stdout.splitlines())
    assert first == {**whole, "data": [[0, 1, 2], [3, 4, 5]]}
    assert second == {"label_names": ["a", "b"], "num_vis": 3072}


def test_arrays_in_either_order(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(entry(array_2((2, 3), bytes(range(6)))))
    (tmp_path / "f").write_bytes(entry(array_2((2, 3), bytes(range(6)), fortran=True)))
    assert read_pickle(tmp_path / "c")["data"].tolist() == [[0, 1, 2], [3, 4, 5]]  # type: ignore[union-attr]
    assert read_pickle(tmp_path / "f")["data"].tolist() == [[0, 2, 4], [1, 3, 5]]  # type: ignore[union-attr]


CALL = f"(S{TOUCH!r}\ntR".encode()
SAID = f"X{chr(len(TOUCH))}\0\0\0{TOUCH}".encode()
BUILT = b"cbuiltins\neval\n"
RUNS = {
    "eval": BUILT + CALL + b".",
    "eval of Python 2": b"c__builtin__\neval\n" + CALL + b".",
    "a shell": b"cos\nsystem\n(S'echo > canary'\ntR.",
    "the module under its other name": b"cposix\nsystem\n(S'echo > canary'\ntR.",
    "an instance": f"(S{TOUCH!r}\nibuiltins\neval\n.".encode(),
    "an object": b"(" + BUILT + f"S{TOUCH!r}\no.".encode(),
    "a name from the stack": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93" + SAID + b"\x85R.",
    "attributes of a name": b"\x80\x04\x8c\x02os\x8c\x0epath.os.system\x93X\x0d\0\0\0echo > canary\x85R0N.",
    "a name that was kept": b"\x80\x02" + BUILT + b"q\x000]h\x00" + SAID + b"\x85Ra.",
    "inside of an entry": entry(BUILT + CALL),
    "inside of a list": entry(b"](" + BUILT + CALL + b"e"),
    "in the state of an array": entry(
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR" + BUILT + CALL + b"b"
    ),
    "before it ends": BUILT + CALL + b"0" + pickle_2({"a": 1})[2:],
    "two pickles": pickle_2({"a": 1})[:-1] + b"0" + BUILT + CALL + b".",
}  # fmt: skip
"""Python's reader runs each of these."""


def test_the_canary_sings_where_python_reads(tmp_path: Path) -> None:
    """Otherwise the next test would show nothing."""
    code = f"import pickle, os\nfor data in {list(RUNS.values())!r}:\n" + (
        "  try: pickle.loads(data)\n  except Exception: pass\n"
        "  print(os.path.exists('canary'))\n  if os.path.exists('canary'): os.remove('canary')\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert dict(zip(RUNS, done.stdout.split(), strict=True)) == dict.fromkeys(RUNS, "True")


@pytest.mark.parametrize("content", RUNS.values(), ids=RUNS.keys())
def test_nothing_is_ever_run(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(tmp_path / "batch", content)
    assert "batch is refused (it " in line
    assert "nothing in it was run" in line
    assert not (tmp_path / "canary").exists()


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY, DTYPE = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
ODD = {
    "numpy's own reader": (entry(b"cnumpy\nload\n(S'x'\nI00\nI01\ntR"), "it asks for numpy.load"),
    "another class of numpy's": (entry(b"cnumpy.core.multiarray\nscalar\n(tR"), "it asks for numpy.core.multiarray.sc"),
    "a name that is no text": (entry(b"cnumpy\n\x1b[31m\n"), "it asks for numpy."),
    "an array that is called": (entry(NDARRAY + b"(J\xff\xff\xff\x7ftR"), "it calls something that is no array"),
    "an array of another class": (entry(ARRAY + b"(" + DTYPE + b"(K\x00tU\x01btR"), "it calls something"),
    "objects": (entry(array_2((1,), b"x", "O8")), "it holds an array of O8"),
    "objects, shortly": (entry(array_2((1,), b"x", "O")), "it holds an array of O"),
    "fields": (entry(array_2((1,), b"x", "u1,O")), "it holds an array of u1,O"),
    "a kind that is a list": (entry(DTYPE + b"(](U\x01aU\x01OetK\x00K\x01\x87R"), "it calls something"),
    "a state of objects": (
        entry(ARRAY + b"(" + NDARRAY + b"(K\x00tU\x01btR(K\x01(K\x01t" + DTYPE + b"(U\x02u1K\x00K\x01tR\x89](K\x01etb"),
        "something else than bytes",
    ),
    "no state": (entry(ARRAY + b"(" + NDARRAY + b"(K\x00tU\x01btR(K\x01tb"), "without a state"),
    "an array that is not filled": (entry(ARRAY + b"(" + NDARRAY + b"(K\x00tU\x01btR"), "under 'data' it holds"),
    "a shape of more than there is": (entry(array_2((2**31 - 1,), b"x")), "another size than it says"),
    "a shape of less than nothing": (entry(array_2((-1, -1), b"x")), "no shape"),
    "many sides": (entry(array_2((1,) * 40, b"x")), "no shape"),
    "a class that is filled": (entry(NDARRAY + b"}b"), "it adds to something"),
    "a key that is nested": (b"\x80\x02}(" + b"K\x00" + b"\x85" * 50 + b"K\x01u.", "a key that is no text"),
    "a pair of one": (b"\x80\x02}(U\x01au.", "zip()"),
    "a huge text": (entry(b"\x8e" + (2**62).to_bytes(8, "little")), "expected 4611686018427387904 bytes"),
    "a text that is shorter than it says": (entry(b"T\xff\xff\xff\x7fx"), "expected 2147483647 bytes"),
    "a number of too many digits": (entry(b"L" + b"9" * 9000 + b"L\n"), "4300"),
    "what it never gave": (b"\x80\x02R.", "it takes what it never gave"),
    "what it never said": (b"\x80\x02h\x07.", "it repeats what it never said"),
    "a mark that is gone": (b"\x80\x02}K\x01(0u.", "instruction POP"),
    "a mark above all": (b"\x80\x02K\x01K\x02(R.", "it calls something"),
    "nothing to keep": (b"\x80\x02q\x01.", "values to unpack"),
    "Python 3": (b"\x80\x04\x95\x05\0\0\0\0\0\0\0}\x94.", "instruction FRAME"),
    "numbers that lie": (entry(b"I01\n"), "under 'data' it holds something else"),
    "a list of lists": (entry(b"]]a"), "under 'data' it holds something else"),
    "a list": (b"\x80\x02].", "it adds to something"),
    "two things": (b"\x80\x02}}.", "it ends in the middle"),
    "no end": (pickle_2({"a": 1})[:-1], "before seeing STOP"),
    "nothing": (b"", "before seeing STOP"),
    "an archive": (b"\x1f\x8b\x08\0\0\0\0\0", "unknown"),
}


@pytest.mark.parametrize(("content", "words"), ODD.values(), ids=ODD.keys())
def test_what_is_odd_is_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path / "batch", content)


def test_one_text_does_not_become_many_arrays(tmp_path: Path) -> None:
    """What the file has once, arrays hold once: kept and repeated, 100 MB would be any number of them."""
    once = array_2((60,), bytes(60))[:-2] + b"q\x0ctb"
    again = array_2((60,), b"")[:-7] + b"h\x0ctb"
    (tmp_path / "batch").write_bytes(b"\x80\x02}(U\x01a" + once + b"U\x01b" + again + b"u.")
    assert set(read_pickle(tmp_path / "batch")) == {"a", "b"}
    many = b"".join(b"U\x01" + bytes([65 + k]) + again for k in range(20))
    big = once.replace(b"K<", b"M\x10\x27").replace(b"T<\0\0\0" + bytes(60), b"T\x10\x27\0\0" + bytes(10_000))
    content = b"\x80\x02}(U\x01a" + big + many.replace(b"K<", b"M\x10\x27") + b"u."
    assert "another size than it says" in refused(tmp_path / "batch", content)


def test_its_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_pickle, "MOST", 1000)
    assert "more than 1,000 instructions" in refused(tmp_path / "batch", b"\x80\x02" + b"]" * 2000 + b".")
    monkeypatch.setattr(safe_pickle, "LARGEST", 100)
    assert "has 101 bytes, expected 100 at most" in refused(tmp_path / "batch", bytes(101))
    with pytest.raises(FedkeelError, match=r"cannot read .*nothing: No such file"):
        read_pickle(tmp_path / "nothing")


def test_places_far_away_and_nests_of_any_depth_cost_nothing(tmp_path: Path) -> None:
    """Python's reader makes room for all places before, and both may end the process."""
    (tmp_path / "batch").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert read_pickle(tmp_path / "batch") == {}
    refused(tmp_path / "batch", entry(b"(" + b"]" * 100_000 + b"a" * 99_999 + b"e"))
    refused(tmp_path / "batch", entry(b")" + b"\x85" * 100_000))


def test_it_has_no_way_to_call_anything() -> None:
    """Neither Python's reader nor anything that finds a name is in the file."""
    source = (ROOT / "src/fedkeel/data/safe_pickle.py").read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not imported & {"pickle", "_pickle", "importlib", "copyreg", "operator", "builtins", "sys"}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert not names & {"getattr", "setattr", "eval", "exec", "compile", "__import__", "globals", "vars"}
