"""What classes are called: in plain words, as the user's own file says, and to be seen on the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import fedkeel as fk
from duals import COLOURS, bert_folder, clip_folder, pictures_in
from fedkeel.core.errors import FedkeelError
from fedkeel.core.watch import SILENT
from fedkeel.data.class_names import clean, of_wordnet
from fedkeel.data.loading import load
from fedkeel.data.sources.base import Source
from fedkeel.deploy.init import init, planned
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.settings import read_site
from fedkeel.models.dual import open_dual
from test_cli import says, within


def test_names_are_said_as_words() -> None:
    said = {
        "n02085620-Chihuahua": "Chihuahua", "n02099267-flat-coated_retriever": "flat-coated retriever",
        "001.Black_footed_Albatross": "Black footed Albatross", "n01440764 tench": "tench", "ice_cream": "ice cream",
        "707-320": "707-320", "F-16A/B": "F-16A/B", "n01440764": "n01440764", "__": "__", " a  b ": "a b", "": "",
        "2.5": "2.5", "nine_lives": "nine lives",
    }  # fmt: skip
    assert {name: clean(name) for name in said} == said


def test_ids_that_share_a_name_have_names_of_their_own() -> None:
    """What ILSVRC's lists have; an id is part of a name only where nothing else tells two apart."""
    words = {
        "n01440764": "tench, Tinca tinca", "n02012849": "crane", "n03126707": "crane",
        "n02113186": "Cardigan, Cardigan Welsh corgi", "n02963159": "cardigan",
        "n03710637": "maillot", "n03710721": "maillot, tank suit", "n1": "thing, it", "n2": "thing, it",
    }  # fmt: skip
    assert of_wordnet(words) == [
        "tench", "crane bird", "construction crane", "Cardigan Welsh corgi", "cardigan", "maillot", "maillot tank suit",
        "thing it (n1)", "thing it (n2)",
    ]  # fmt: skip
    assert of_wordnet({"n03126707": "crane"}) == ["crane"]
    own = {"n02012849": "crane, wading bird", "n03126707": "crane"}
    assert of_wordnet(own) == ["crane wading bird", "construction crane"], "what the list says comes first"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    y = np.arange(60) % 3
    np.savez(tmp_path / "rows.npz", x=np.eye(3)[y] + 0.1, y=np.array(["c0", "c1", "c2"])[y])
    return tmp_path / "rows.npz"


def read(rows: Path, text: str) -> tuple[str, ...]:
    (rows.parent / "names.txt").write_text(text)
    return load(Source.of(source=f"npz:{rows}", class_names=str(rows.parent / "names.txt"))).class_names


def test_a_file_of_names_comes_before_all_others(rows: Path) -> None:
    """One for each class, or for some of them; labels stay."""
    plain = load(Source.of(source=f"npz:{rows}"))
    assert plain.class_names == ("c0", "c1", "c2")
    assert read(rows, "an ant\n\na bee\na cat\n") == ("an ant", "a bee", "a cat")
    assert read(rows, "c2\ta cat\nc0 \t an ant\n") == ("an ant", "c1", "a cat")
    assert read(rows, "c0\tc1\nc1\tc0\n") == ("c1", "c0", "c2"), "names may be exchanged"
    named = load(Source.of(source=f"npz:{rows}", class_names=str(rows.parent / "names.txt")))
    assert named.train_labels.tolist() == plain.train_labels.tolist()
    assert named.fingerprint == plain.fingerprint, "rows are the same, and encoded once"


MISTAKES = {
    "a\nb\n": "has 2 names, npz:{rows} has 3 classes (c0 ... c2): expected one for each, in this order, or lines with",
    "c0\ta\nb\n": "names.txt line 2 is 'b': expected an old name, a tab, a new one",
    "c0\ta\tb\n": "line 1 is 'c0\\ta\\tb': expected an old name",
    "c9\ta\n": "names.txt line 1: 'c9': did you mean",
    "c0\tc1\n": "calls two classes 'c1': expected a name of its own for each",
    "a\na\nb\n": "calls two classes 'a'",
    "": "names.txt is empty",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_file_that_does_not_fit_is_one_line(text: str, rows: Path) -> None:
    with pytest.raises(FedkeelError) as caught:
        read(rows, text)
    assert MISTAKES[text].replace("{rows}", str(rows)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_the_command_line_to_predictions(rows: Path) -> None:
    (rows.parent / "names.txt").write_text("c0\tan ant\n")
    asked = ["data.source=npz:rows.npz", "data.class_names=names.txt", "partition.clients=2", "method.name=ridge"]
    done = within("run", "--set", *asked, "--out", "run", cwd=rows.parent)
    assert done.returncode == 0, done.stderr
    page = (rows.parent / "run/report.html").read_text()
    assert re.search(
        r"names of its 3 classes</summary>\s*<p class=\"note\">Names are those of the file names.txt", page
    )
    assert "<p>an ant, c1, c2</p>" in page
    (rows.parent / "names.txt").unlink()
    predicted = within("predict", "run", "--input", "rows.npz", cwd=rows.parent)
    assert "an ant" in predicted.stdout
    refused = ("predict", "run", "--input", "rows.npz", "--set", "data.class_names=x")
    says(within(*refused, cwd=rows.parent), "--set data.class_names: the model keeps its own")
    missing = ("partition", "--set", *asked[:2])
    says(within(*missing, cwd=rows.parent), "cannot read names.txt: No such file or directory")


CONSORTIUM = """
[data]
source = "npz:rows.npz"
class_names = "names.txt"
[method]
name = "ridge"
[deploy]
sites = ["north", "south"]
superlink = "127.0.0.1:1"
"""


def test_a_site_calls_its_classes_as_the_contract_does(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels are c0, c1, c2, the contract has words; the file lies beside its settings."""
    monkeypatch.chdir(rows.parent)
    (rows.parent / "names.txt").write_text("ant\nbee\ncat\n")
    (rows.parent / "config.toml").write_text(CONSORTIUM)
    contract = init(rows.parent / "c", planned(rows.parent / "config.toml"), SILENT)
    assert contract.classes == ("ant", "bee", "cat")
    home = rows.parent / "c/sites/north"
    for name in ("rows.npz", "names.txt"):
        (home / name).write_bytes((rows.parent / name).read_bytes())
    monkeypatch.chdir("/")
    federation = own_rows(read_site(home / "site.toml"))
    assert federation.dataset.class_names == ("ant", "bee", "cat")
    (home / "names.txt").unlink()
    with pytest.raises(FedkeelError, match=f"cannot read {home}/names.txt"):
        own_rows(read_site(home / "site.toml"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_shows_how_a_text_tower_reads_them(tmp_path: Path) -> None:
    """Template and ending as they were used: with images a full stop, with texts nothing."""
    y = np.arange(24) % 3
    np.savez(tmp_path / "pictures.npz", x=pictures_in(y), y=y, class_names=np.array(COLOURS))
    posts = [f"{('ant', 'bee')[k % 2]},a post about {('ant', 'bee')[k % 2]} word{k % 20}" for k in range(24)]
    (tmp_path / "posts.csv").write_text("\n".join(["label,text", *posts]) + "\n")
    clip = clip_folder(tmp_path / "clip")
    for source, encoder, method, expected in (
        ("npz:pictures.npz", clip, "promptfl", ["“a photo of a {}.”", "stands the name and “.”.", "dark blue"]),
        ("npz:pictures.npz", clip, "clip-lora", ["“a photo of a {}.”"]),
        (
            "csv:posts.csv",
            f"hf:{bert_folder()}",
            "promptfl",
            ["“a post about {}”", "the name, and nothing else."],
        ),
    ):
        kind, _, file = source.partition(":")
        done = fk.run(
            out=tmp_path / f"{kind}-{method}", partition={"kind": "iid", "clients": 2},
            data={"source": f"{kind}:{tmp_path / file}", "encoder": encoder, "cache": str(tmp_path / "cache")},
            method={"name": method, "rounds": 1, "personal_epochs": 1},
        )  # fmt: skip
        page = (done.folder / "report.html").read_text()
        for words in expected:
            assert words in page, (method, words)
        assert ("soft prompt stands" in page) == (method == "promptfl")


def test_labels_that_are_no_words_are_read_as_words(tmp_path: Path) -> None:
    """Of any source; labels stay as they are."""
    folder, y = clip_folder(tmp_path / "clip"), np.arange(12) % 3
    names = ("n02085620-red_one", "green_one", "dark blue")

    def of(*names: str) -> tuple[str, ...]:
        return open_dual(folder, Source.of(), "images", names, "the test").class_names

    assert of(*names) == ("red one", "green one", "dark blue")
    assert of("a_b", "a b") == ("a_b", "a b"), "else two classes would be one"
    np.savez(tmp_path / "pictures.npz", x=pictures_in(y), y=y, class_names=np.array(names))
    done = fk.run(
        out=tmp_path / "run", partition={"kind": "iid", "clients": 2}, method={"name": "zero-shot"},
        data={"source": f"npz:{tmp_path / 'pictures.npz'}", "encoder": folder, "cache": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.record.start["data"]["classes"] == list(names)
    page = (done.folder / "report.html").read_text()
    assert "n02085620-red_one (read as “red one”), green_one (read as “green one”), dark blue" in page
