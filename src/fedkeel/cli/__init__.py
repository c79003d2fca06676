"""The command line: one function per command, no logic. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

from cyclopts import CycloptsError

from fedkeel.cli import look, train, use  # noqa: F401  commands register with the app
from fedkeel.cli.app import app
from fedkeel.cli.deferred import defer
from fedkeel.core.errors import FedkeelError

__all__ = ["app", "main"]


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    defer("torch")
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        return
    except (FedkeelError, CycloptsError) as error:
        line = " ".join(str(error).split())
    except KeyboardInterrupt:
        line = "stopped: the same command continues"
    except OSError as error:
        line = f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
    print(f"fedkeel: {line}", file=sys.stderr)
    sys.exit(2)
