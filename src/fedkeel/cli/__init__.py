"""The command line: one function per command, no logic. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

from cyclopts import CycloptsError

from fedkeel.cli import look, train, use  # noqa: F401  commands register with the app
from fedkeel.cli.app import app
from fedkeel.core import stopping
from fedkeel.core.errors import FedkeelError

__all__ = ["app", "main"]
STOPPED = "stopped: the same command continues"


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, and so is Ctrl-C."""
    with stopping.heeding():
        try:
            app(sys.argv[1:], exit_on_error=False, print_error=False)
            return
        except (FedkeelError, CycloptsError) as error:
            line = " ".join(str(error).split())
        except KeyboardInterrupt:
            line = STOPPED
        except OSError as error:
            line = f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
        except Exception:
            if not stopping.asked():
                raise
            line = STOPPED  # an import that the signal tore apart fails as it likes
        print(f"fedkeel: {line}", file=sys.stderr)
        if stopping.asked():
            stopping.leave(2)
        sys.exit(2)
