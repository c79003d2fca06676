"""The documentation does what it says: commands and examples are run, files it names exist."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from test_cli import within

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```(bash|python|toml|csv)(?: (\S+))?\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """In the order of the page, in one folder: bash lines, Python blocks, toml and csv blocks as the file they name.

    The Python blocks of a page share their names.

    Lines that are one command of fedkeel are run within this process, which saves importing everything for each.
    """
    ran, names = 0, {"__name__": "__main__"}
    for language, name, text in BLOCK.findall(page.read_text()):
        if language in ("toml", "csv"):
            (tmp_path / name).write_text(text)
            continue
        if language == "bash":
            lines = [line for line in text.splitlines() if not line.startswith(("make ", "git ", "pip ", "cd "))]
            for line in filter(None, "\n".join(lines).replace("\\\n", " ").splitlines()):
                done = run_line(line, tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            made = re.findall(r"^make (\w+)", text, re.M)
            assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M) for target in made)
        else:
            (tmp_path / "example.py").write_text(text)
            with contextlib.chdir(tmp_path):
                names = runpy.run_path("example.py", names, "__main__")
        ran += 1
    assert ran or page.name in ("methods.md", "scale.md", "faults.md"), "a page without examples"


def run_line(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line, comments=True)
    if not words:
        return subprocess.CompletedProcess(line, 0, "", "")
    if words[0] == "fedkeel" and not re.search(r"[|<>;&$]", line):
        return within(*words[1:], cwd=folder)
    shims = f'export PATH="{Path(sys.executable).parent}:$PATH"\nset -euo pipefail\n'
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["bash", "-c", shims + line]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400, env=environment)


def test_commands_in_the_text_are_real() -> None:
    """Commands that take too long to run here are at least ones that fedkeel understands."""
    from fedkeel.cli import app

    found = [
        line for page in PAGES for line in re.findall(r"`(fedkeel [a-z][^`]+)`", page.read_text().replace("\n", " "))
    ]
    assert len(found) >= 4
    for line in found:
        app.parse_args(line.split()[1:], exit_on_error=False, print_error=False)


def test_the_readme_counts_what_there_is() -> None:
    """As ``fedkeel list`` has it."""
    from fedkeel.core.method import METHODS

    ours = {name for name in METHODS if METHODS[name].__module__.startswith("fedkeel.")}
    assert re.findall(r"(\d+) methods", (ROOT / "README.md").read_text()) == [str(len(ours))]
    listed = {line.split()[0] for line in within("list", "methods", cwd=ROOT).stdout.splitlines()}
    assert ours <= listed


def test_links_and_pictures_exist() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_the_modules_architecture_names_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    listed = [(folder, names) for folder, names in re.findall(r"`([a-z_0-9/]+)\{([^}]*)\}\.py`", page)]
    named = re.findall(r"`([a-z_0-9/]+\.py)`", page)
    named += [f"{folder}{name.strip()}.py" for folder, names in listed for name in names.split(",")]
    assert len(named) > 100
    for name in named:
        assert (ROOT / name if name.startswith("tests/") else ROOT / "src/fedkeel" / name).exists(), name


def test_every_source_file_is_of_readable_size() -> None:
    """No file above 400 lines, no method above 150."""
    for path in (ROOT / "src/fedkeel").rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= (150 if "methods" in path.parts and "@register(" in text else 400), path
