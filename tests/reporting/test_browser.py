"""The page in a real browser: nothing on the console, nothing wider than the screen, every figure drawn.

``write_run`` writes the runs that all tests of the report are made of.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkeel.core.rng import generator
from fedkeel.reporting import html
from fedkeel.runs.events import Log, Record, read

SCREENS = {"phone": (390, 844), "desktop": (1440, 900)}
MISSING = "the page test needs Chromium: no chromium or chromium-browser on PATH; apt-get install -y chromium"
PATIENCE = 60
STATE = """JSON.stringify({
    page: document.documentElement.scrollWidth,
    headings: [...document.querySelectorAll("h1, h2")].filter(h => h.offsetHeight > 0).map(h => h.textContent),
    figures: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect()).map(r => [r.width, r.height]),
})"""


TOPICS = (
    "atheism", "computer graphics", "Microsoft Windows", "PC hardware", "Mac hardware", "X Window System", "for sale",
    "cars", "motorcycles", "baseball", "ice hockey", "cryptography", "electronics", "medicine", "space",
    "Christianity", "guns", "the Middle East", "politics", "religion",
)  # fmt: skip
FINAL = {"ova-lp": 0.71, "fedavg": 0.33, "lp-softmax": 0.52, "ridge": 0.753, "fedprox": 0.45, "scaffold": 0.58}


def write_run(
    folder: Path,
    method: str = "ova-lp",
    partition: str = "bernoulli-dirichlet",
    seed: int = 0,
    *,
    curve: Sequence[float] | None = None,
    rounds: int = 15,
    finished: bool = True,
    classes: Sequence[str] = TOPICS,
    clients: int = 100,
    refused: Sequence[dict[str, str]] = (),
    settings: dict[str, Any] | None = None,
    split: dict[str, Any] | None = None,
    features: str = "centred",
    mean_energy: float | None = 0.08,
    client_name: str = "client-{:03d}",
) -> Record:
    """A run as the round loop writes it, with numbers like those of 20 Newsgroups on MiniLM features."""
    draw = generator(seed, "report-test", method, partition)
    rounds = 1 if method == "ridge" else rounds
    if curve is None:
        final = (0.73 if partition == "iid" and method != "ridge" else FINAL[method]) + draw.normal(0, 0.006)
        slow = 0.1 if method == "ridge" else 0.7 if partition == "iid" else 1.1 if method == "ova-lp" else 4
        curve = [float(final * (1 - 0.8 * np.exp(-t / slow)) + draw.normal(0, 0.004)) for t in range(1, rounds + 1)]
    counts = draw.multinomial(11314, np.full(clients * len(classes), 1 / clients / len(classes)))
    counts = counts.reshape(clients, len(classes))
    if partition != "iid":
        totals, counts = counts.sum(axis=0), np.zeros_like(counts)
        for c, total in enumerate(totals):
            holders = draw.choice(clients, size=min(clients, 4), replace=False)
            counts[holders, c] = draw.multinomial(total, draw.dirichlet(np.full(len(holders), 0.3)))
    rows = counts.sum(axis=1)
    names = [client_name.format(k) for k in range(clients)]
    per_class = np.clip(curve[-1] + draw.normal(0, 0.14, len(classes)), 0.02, 0.99) if len(curve) else []
    per_client = np.clip(draw.normal(curve[-1], 0.15, clients), 0, 1) if len(curve) else []
    start = {
        "version": "0.1.0",
        "config": {
            "data": {"source": "newsgroups20", "encoder": "auto", "features": features, "limit": None, "cache": None},
            "shift": {"long_tail": 1.0, "noise": "none", "noise_ratio": 0.0},
            "partition": {"kind": partition, "clients": clients, "alpha": 0.001, "p": 0.1, **(split or {})},
            "method": {"name": method, "rounds": rounds, "participation": 1.0, **(settings or {})},
            "run": {"seed": seed, "engine": "local", "threads": 0},
        },
        "data": {
            "source": "newsgroups20", "encoder": "minilm", "classes": list(classes), "train_rows": 11314,
            "test_rows": 7532, "dim": 384, "mean_energy": mean_energy,
        },
        "clients": {
            "count": clients, "empty": int((rows == 0).sum()), "names": names, "rows": rows.tolist(),
            "label_counts": counts.tolist(),
        },
    }  # fmt: skip
    active = int((rows > 0).sum())
    work = {"index": 0, "clients": active, "client_seconds": 0.0142, "server_seconds": 0.0019}
    folder.mkdir(parents=True)
    with Log(folder / "events.jsonl") as log:
        log.write("start", **start)
        mean = active * (4 * 384 + 120)
        log.write("exchange", round=0, phase="mean", refused=[], bytes_up=mean, bytes_down=0, **work)
        for t, accuracy in enumerate(curve, 1):
            phase, sent = "stage-1" if t == 1 else "stage-2", active * (4 * 385 * len(classes) + 312)
            bad = list(refused) if t == 1 else []
            log.write("exchange", round=t, phase=phase, refused=bad, bytes_up=sent, bytes_down=sent, **work)
            log.write("round", round=t, accuracy=accuracy, seconds=0.12)
        if finished:
            log.write(
                "end",
                accuracy=curve[-1],
                per_class=[float(a) for a in per_class],
                per_client=[float(a) if n else None for a, n in zip(per_client, rows, strict=True)],
                per_client_basis="test set weighted by the client's classes",
                digest="9f2c" * 16,
                seconds=0.12 * len(curve),
            )
    return read(folder)


def comparison(folder: Path, methods: Sequence[str], partitions: Sequence[str], seeds: Sequence[int]) -> list[Record]:
    return [
        write_run(folder / f"{method}-{partition}-{seed}", method, partition, seed)
        for method in methods
        for partition in partitions
        for seed in seeds
    ]


class Browser:
    """Headless Chromium, spoken to over a pipe: JSON messages that end with a zero byte."""

    def __init__(self, program: str, profile: str) -> None:
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        # Chromium reads from descriptor 3 and writes to 4; high copies first, so that neither overwrites the other.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_read, from_write)]
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            close_fds=False, preexec_fn=lambda: [os.dup2(fd, k) for k, fd in enumerate(ends, 3)] and None,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (to_read, from_write, *ends):
            os.close(fd)
        self._rest, self._number = b"", 0
        self.messages: list[str] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer; console messages that come in between are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        os.write(
            self._to, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        return self._answer()["result"]

    def open(self, path: Path, screen: tuple[int, int], dark: bool = False) -> dict[str, Any]:
        """Load a file on a screen of that size and tell what is seen."""
        self.messages.clear()
        phone = screen[0] < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=screen[0], height=screen[1], deviceScaleFactor=1, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while self._value("document.readyState + ' ' + location.href") != f"complete {path.as_uri()}":
            time.sleep(0.01)
        return {**json.loads(self._value(STATE)), "messages": list(self.messages)}

    def _value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression)["result"]["value"]

    def _answer(self) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                ready, _, _ = select.select([self._from], [], [], PATIENCE)
                part = os.read(self._from, 1 << 16) if ready else b""
                assert part, f"the browser has ended or said nothing for {PATIENCE} s"
                self._rest += part
            text, self._rest = self._rest.split(b"\0", 1)
            event = json.loads(text)
            if event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(event["params"]))
            assert "error" not in event, event
            if event.get("id") == self._number:
                return dict(event)

    def close(self) -> None:
        os.close(self._to)
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self._from)


def find_browser() -> str:
    """Chromium's path; without one the test fails where it must run (CI) and is skipped, with the reason, elsewhere."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        warnings.warn(MISSING, stacklevel=1)
        pytest.skip(MISSING)
    return program


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = Browser(find_browser(), profile)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run; and several with a long method label, a refused update and an unfinished run."""
    folder = tmp_path_factory.mktemp("pages")
    one = [write_run(folder / "one")]
    several = comparison(folder / "several", ["ova-lp", "fedavg"], ["iid", "bernoulli-dirichlet"], [0, 42])
    refused = [{"client": "clinic-" + "x" * 80, "reason": "head.weight holds NaN"}]
    settings = {"positives": 0.05, "positive_mode": "a-mode-with-a-very-long-name-without-any-blank"}
    several.append(write_run(folder / "long", seed=7, refused=refused, settings=settings, finished=False))
    return {
        "one": html.build(one, folder / "one.html"),
        "several": html.build(several, folder / "several.html"),
    }


def faults(seen: dict[str, Any], screen: tuple[int, int]) -> list[str]:
    """What is wrong with a page on that screen."""
    found = [f"console: {message}" for message in seen["messages"]]
    # A phone widens its own window to hold a page that is too wide, so the screen's width counts, not the window's.
    if seen["page"] > screen[0]:
        found.append(f"{seen['page']} pixels wide on a screen of {screen[0]}")
    found += [f"figure {k} has no size" for k, size in enumerate(seen["figures"]) if min(size) < 50]
    return found


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize(("name", "figures"), [("one", 1 + 3), ("several", 3 + 2 * 3)])
def test_the_page_shows_on_every_screen(
    browser: Browser, pages: dict[str, Path], name: str, figures: int, screen: str
) -> None:
    for dark in (False, True):
        seen = browser.open(pages[name], SCREENS[screen], dark)
        assert faults(seen, SCREENS[screen]) == []
        assert len(seen["figures"]) == figures
        expected = {"Results", "Round by round", "Split: bernoulli-dirichlet", "Cost", "What the numbers mean"}
        assert expected <= set(seen["headings"])
        assert max(width for width, _ in seen["figures"]) <= SCREENS[screen][0]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ('<script>console.error("broken")</script>', "broken"),
        ("<script>missing()</script>", "missing is not defined"),
        (f'<meta http-equiv="Content-Security-Policy" content="{html.POLICY}"><script>1</script>', "Content Security"),
        ('<img src="no-such-file.png">', "ERR_FILE_NOT_FOUND"),
        ('<div style="width: 2000px">wide</div>', "pixels wide on a screen of"),
        ('<svg width="0" height="0"></svg>', "figure 0 has no size"),
    ],
)
@pytest.mark.parametrize("screen", SCREENS)
def test_a_broken_page_is_found_out(browser: Browser, tmp_path: Path, fault: str, told: str, screen: str) -> None:
    """The checks above can fail: each fault is seen, and a page without it is not blamed."""
    frame = '<!doctype html><html><head><meta name="viewport" content="width=device-width">{}</head>text</html>'
    page = tmp_path / "page.html"
    page.write_text(frame.format(fault))
    assert told in " ".join(faults(browser.open(page, SCREENS[screen]), SCREENS[screen]))
    page.write_text(frame.format(""))
    assert faults(browser.open(page, SCREENS[screen]), SCREENS[screen]) == []


@pytest.mark.filterwarnings("ignore:the page test needs Chromium")
@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_fails_in_ci_and_is_told_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="apt-get install -y chromium"):
        find_browser()
