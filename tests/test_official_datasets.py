"""The table of docs/reproduce.md: every command on a tiny copy of the official files, to a page that is filled."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

import downloads
import small_cifar
import small_tables
from backbones import tiny_resnet
from duals import clip_folder
from fedkeel.data.sources.base import SOURCES
from fedkeel.reporting import canvas
from fedkeel.reporting.personal_numbers import Personal
from fedkeel.reporting.tables import NOTHING
from fedkeel.runs.events import personalised, read
from test_cli import says, within
from test_reproduce import tiny_vit

PAGE = Path(__file__).parents[1] / "docs" / "reproduce.md"
ROW = re.compile(r"^\| ([\w-]+) \| `([\w-]+)/` \| (.*) \| `fedkeel (.*)` \| (.*) \| yes \|$", re.M)
ROWS = {
    name: (folder, files, command, beside) for name, folder, files, command, beside in ROW.findall(PAGE.read_text())
}
KINDS = ("brightness", "jpeg_compression")
COPIES: dict[str, Callable[[Path], object]] = {
    **downloads.MAKERS,
    "cifar10": lambda folder: small_cifar.cifar_10(folder, each=40),
    "cifar100": lambda folder: small_cifar.cifar_100(folder, "binary"),
    "tinyimagenet": small_cifar.tiny_imagenet,
    "cifar10-c": lambda folder: small_cifar.cifar_c(folder, kinds=KINDS, each=10),
    "cifar100-c": lambda folder: small_cifar.cifar_c(folder, classes=100, kinds=KINDS, each=5),
    "celeba": lambda folder: small_tables.celeba(folder.parent),
    "chexpert": small_tables.chexpert,
}
ENCODERS: dict[str, Callable[[Path], object]] = {
    "google/vit-base-patch16-224": tiny_vit,
    "google/vit-large-patch16-224": tiny_vit,
    "facebook/dinov2-large": tiny_vit,
    "microsoft/resnet-50": tiny_resnet,
    "openai/clip-vit-base-patch16": clip_folder,
}
"""Tiny ones where the hub's ids are looked for: in a folder of that name."""
FEW = {
    "ova-lp": ["method.rounds=2", "partition.clients=6"],
    "lp-ft": ["method.rounds=1", "method.batch=16", "personal.epochs=1", "personal.models=2"],
    "fedpurel": ["method.rounds=1", "method.personal_epochs=1", "partition.clients=2", "method.participation=1.0"],
}
SMALL = {"Digit5", "CIFAR-10", "CIFAR-10-C", "CIFAR-100-C"}
"""Their grids have ResNet-18, of which there is no tiny one: a small CNN stands in."""
TABLES = {
    "LP-FT Table 2": "Table 2, {name}",
    "LP-FT Table 3": "Table 3",
    "OvA-LP Figure 3, Tables 1, 3, 4": "Figure 3 and Table 1; Table 3; Table 4",
    "OvA-LP Figure 6": "Figure 6",
    "FedPuReL Table 7": "Table 7, prompt-based; Table 7, LoRA-based; Table 7, adapter-based",
}
"""What a row says, and the headings of the page where that stands."""
CALLED = {"CIFAR-10-C": "CIFAR10-C", "CIFAR-100-C": "CIFAR100-C"}
CLASSES = {
    "CIFAR-100": "aquarium fish", "CIFAR-100-LT": "aquarium fish", "TinyImageNet-200": "construction crane",
    "DomainNet": "ice cream", "CelebA": "not smiling", "CheXpert": "No Finding", "ImageNet-LT": "tench",
    "Places-LT": "apartment building outdoor", "Food101-LT": "apple pie", "DTD-LT": "polka-dotted",
    "FGVC-Aircraft-LT": "F-16A/B", "Stanford-Dogs-LT": "golden retriever", "OxfordPets-LT": "american bulldog",
}  # fmt: skip
"""What one of the classes is called."""
CLIENTS = {"Digit5": 5, "DomainNet": 6, "CIFAR-10-C": 2, "CIFAR-100-C": 2, "CelebA": 4, "CheXpert": 2}


def test_every_dataset_of_the_papers_has_its_row() -> None:
    """Those of OvA-LP (Section 4), LP-FT (Table 6) and FedPuReL (its eight)."""
    assert list(ROWS) == [
        "CIFAR-10", "CIFAR-100", "TinyImageNet-200", "Digit5", "DomainNet", "CIFAR-10-C", "CIFAR-100-C", "CelebA",
        "CheXpert", "CIFAR-100-LT", "ImageNet-LT", "Places-LT", "Food101-LT", "DTD-LT", "FGVC-Aircraft-LT",
        "Stanford-Dogs-LT", "OxfordPets-LT",
    ]  # fmt: skip
    rows = [line for line in PAGE.read_text().splitlines() if "fedkeel reproduce" in line and line.count("|") == 7]
    assert len(rows) == len(ROWS), "each row is tested"


@pytest.mark.parametrize("name", ROWS)
def test_the_command_ends_with_a_page_whose_paper_column_is_filled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, files, command, beside = ROWS[name]
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    COPIES[folder](tmp_path / folder)
    named = re.findall(r"`([^`]+?)/?`", files)
    here = [text for text in named if any((tmp_path / folder).rglob(text))]
    assert len(here) >= len(named) - files.count(" or "), f"the copy is not what the table says: it has {here}"
    words = shlex.split(command)
    for encoder, make in ENCODERS.items():
        if name not in SMALL:
            make(tmp_path / encoder)
    few = [*FEW[words[1].partition("/")[0]], *(["data.encoder=cnn"] if name in SMALL else [])]
    done = within(*words, "--seeds", "0", "--set", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [read(path.parent) for path in tmp_path.glob("runs/reproduce/**/summary.json")]
    assert {run.start["config"]["data"]["source"] for run in runs} == {f"{folder}:{folder}"}
    assert CLASSES.get(name, "") in ["", *runs[0].start["data"]["classes"]]
    assert runs[0].start["clients"]["count"] == CLIENTS.get(name, runs[0].start["clients"]["count"])
    page = next(tmp_path.glob("runs/reproduce/*/*/report.html")).read_text()
    tables = tables_of(page)
    wanted = [title.format(name=CALLED.get(name, name)) for title in TABLES.get(beside, "").split("; ")]
    assert "Beside the paper" in page
    assert beside in [*TABLES, NOTHING]
    for title in filter(None, wanted):
        rows = filled(next(rows for heading, rows in tables if heading.startswith(f"{title}. ")), name)
        assert len(rows) >= 3, f"{title} has numbers of the paper beside ours"
    if "lp-ft/main" in words:
        (run,) = runs
        ours = {one.folder.name: Personal.of(one).global_incl for one in personalised(run.folder)}
        assert f"{100 * (ours['lp-ft_epochs=1'] or 0):.2f}" in rows["lp-ft"], "what stands there is what was run"


DATA = Path(__file__).parents[1] / "docs" / "data.md"
COMMAND = re.compile(r"^\| `([\w-]+):FOLDER` \|.*\| `fedkeel (run [^`]+)` \|$", re.M)
RUNS = dict(COMMAND.findall(DATA.read_text()))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_the_command_of_docs_data_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same copies, with four clients at most and a round."""
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(canvas, "draw", lambda *_: "<svg></svg>")
    command = RUNS[name].replace(":FOLDER", f":{name}")
    COPIES[name](tmp_path / name)
    few = [] if "partition.clients" in command else ["partition.clients=4"]
    done = within(*shlex.split(command), *few, "method.rounds=1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/report.html").exists()


def test_every_downloaded_dataset_has_its_row() -> None:
    assert {name for name in SOURCES if SOURCES[name].marks} == set(RUNS) == {folder for folder, *_ in ROWS.values()}


WRONG: dict[str, tuple[str, str, bytes | None, str]] = {
    "a class folder is missing": (
        "TinyImageNet-200", "tiny-imagenet-200/train/n02012849", None, "has no folder n02012849, which wnids.txt names",
    ),
    "a list names what is not there": (
        "Food101-LT", "food-101/images/apple_pie/000001.jpg", None, "train.txt line 2 names apple_pie/000001.jpg",
    ),
    "a truncated .npy": ("CIFAR-10-C", "CIFAR-10-C/jpeg_compression.npy", b"\x93NUMPY\x01\x00", "no sound header"),
    "a forbidden pickle": (
        "CIFAR-10", "cifar-10-batches-py/data_batch_3", b"cos\nsystem\n(S'echo > canary'\ntR.", "it asks for os.system",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_layout_ends_the_command_with_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path, content, line = WRONG[what]
    folder, _, command, _ = ROWS[name]
    monkeypatch.setenv("FEDKEEL_CACHE", str(tmp_path / "cache"))
    for encoder in ("google/vit-base-patch16-224", "google/vit-large-patch16-224", "facebook/dinov2-large"):
        tiny_vit(tmp_path / encoder)
    clip_folder(tmp_path / "openai/clip-vit-base-patch16")
    COPIES[folder](tmp_path / folder)
    damaged = tmp_path / folder / path
    if content is not None:
        damaged.write_bytes(content)
    elif damaged.is_dir():
        shutil.rmtree(damaged)
    else:
        damaged.unlink()
    says(within(*shlex.split(command), cwd=tmp_path), line)
    assert not list(tmp_path.glob("runs/**/*.json"))
    assert not (tmp_path / "canary").exists()


def filled(table: list[list[str]], name: str) -> dict[str, list[str]]:
    """The rows of a table with paper and ours, each of which has a number wherever the paper has one."""
    head = next(row for row in table if "Paper" in row)
    ours = [at for at, cell in enumerate(head) if cell.startswith("Ours")]
    found = {}
    for row in table:
        if len(row) != len(head) or row is head:
            continue
        for at in ours:
            paper = max(place for place, cell in enumerate(head[:at]) if cell == "Paper")
            other = name == "TinyImageNet-200" and "TinyImageNet" not in row[0]
            assert (row[at] == NOTHING) == other, f"{row[0]}: {row[paper]} in the paper, {row[at]} here"
        if not other:
            found[row[0]] = row
    return found


class Tables(HTMLParser):
    """The tables of a page, each with the heading above it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[list[str]]]] = []
        self.heading, self.text = "", ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in ("h2", "h3", "td", "th"):
            self.text = ""
        elif tag == "table":
            self.found.append((self.heading, []))
        elif tag == "tr":
            self.found[-1][1].append([])

    def handle_endtag(self, tag: str) -> None:
        if tag in ("h2", "h3"):
            self.heading = self.text
        elif tag in ("td", "th"):
            self.found[-1][1][-1].append(self.text)

    def handle_data(self, data: str) -> None:
        self.text += data


def tables_of(page: str) -> list[tuple[str, list[list[str]]]]:
    parser = Tables()
    parser.feed(page)
    return parser.found
