"""The command line: one function per command, no logic. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

from cyclopts import CycloptsError

from fedkeel.cli import deploy, look, train, use  # noqa: F401  commands register with the app
from fedkeel.cli.app import app
from fedkeel.cli.deferred import defer
from fedkeel.cli.output import nobody_reads, take_any_text
from fedkeel.core import stopping
from fedkeel.core.errors import FedkeelError, memory_ran_out, printable
from fedkeel.core.wrap import width_of, wrapped

__all__ = ["app", "main"]
LONGEST = 1500
"""A line with more characters says less: something in it is a user's own text, of which the ends are enough."""
STOPPED = "stopped: the same command continues"

BY_USE = (
    "run", "compare", "reproduce", "personalize", "predict", "deploy", "server", "site", "partition", "encode",
    "report", "list",
)  # fmt: skip
for place, name in enumerate(BY_USE):
    app[name].sort_key = place


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, and so is Ctrl-C."""
    take_any_text()
    defer("torch")
    with stopping.heeding():
        line = _mistake()
        if line is None:
            return
        line = printable(line)
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
        print(wrapped(f"fedkeel: {line}", width_of(sys.stderr), indent=2), file=sys.stderr)
        if stopping.asked():
            stopping.leave(2)
        sys.exit(2)


def _mistake() -> str | None:
    """Carry out the command; what to say if that did not end well."""
    try:
        try:
            app(sys.argv[1:], exit_on_error=False, print_error=False)
            return None
        except SystemExit:  # how a command ends
            sys.stdout.flush()
            raise
    except (FedkeelError, CycloptsError) as error:
        return memory_ran_out(error) or str(error)
    except KeyboardInterrupt:
        return STOPPED
    except BrokenPipeError:
        nobody_reads()
        sys.exit(0)
    except OSError as error:
        return memory_ran_out(error) or f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
    except Exception as error:
        if stopping.asked():
            return STOPPED  # an import that the signal tore apart fails as it likes
        told = memory_ran_out(error)
        if told is None:
            raise
        return told
