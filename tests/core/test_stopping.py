"""Ctrl-C and SIGTERM: one line and exit code 2, at whatever moment and however often."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fedkeel.cli import main
from fedkeel.core import stopping


def process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_during_the_first_imports(number: str) -> None:
    """The signal comes while the command line itself is imported, before there is anything that could catch it."""
    done = process(
        f"""
import runpy, signal, sys
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Presses())
sys.argv = ["fedkeel", "list", "methods"]
runpy.run_module("fedkeel", run_name="__main__")
"""
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedkeel: stopped before anything was begun: the same command starts again\n"


def test_a_torn_import_within_a_command_is_no_traceback() -> None:
    """What an import makes of a KeyboardInterrupt is anybody's guess; here it becomes an ImportError."""
    done = process(
        """
import signal, sys
from fedkeel.cli import main
from fedkeel.core import stopping
class Tears:
    def find_spec(self, name, path=None, target=None):
        if name == "fedkeel.api":
            stopping.begin()
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("half of it")
sys.meta_path.insert(0, Tears())
sys.argv = ["fedkeel", "list", "methods"]
main()
"""
    )
    assert done.returncode == 2
    assert done.stderr == "fedkeel: stopped: the same command continues\n"


def test_ctrl_c_where_no_command_has_a_line_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """encode, predict and report leave it to the command line, which must not lose it."""

    def press(*words: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkeel.api.encode", press)
    monkeypatch.setattr(sys, "argv", ["fedkeel", "encode"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "fedkeel: stopped: the same command continues\n"


def test_once_begun_it_is_an_interrupt_and_more_of_them_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(stopping, "monotonic", lambda: now[0])
    before = [signal.getsignal(number) for number in stopping.SIGNALS]
    with stopping.heeding():
        stopping.begin()
        assert not stopping.asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert stopping.asked()
        for number in stopping.SIGNALS:
            signal.raise_signal(number)
        now[0] += stopping.DEAF_SECONDS + 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before


def test_who_is_told_to_ignore_signals_still_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping.heeding():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
