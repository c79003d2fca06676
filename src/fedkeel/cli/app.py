"""The app that commands register with, and what their parameters share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from fedkeel import __version__
from fedkeel.core.errors import FedkeelError, shortened

if TYPE_CHECKING:
    from rich.console import Console


app = App(
    name="fedkeel",
    version=__version__,
    help="Fine-tune a foundation model across clients whose data differ, and keep it from drifting.",
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # Ctrl-C has a line of its own
)
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        consume_multiple=True,
        negative="",
        show_default=False,
        help="override keys, e.g. --set method.rounds=20",
    ),
]
Data = Annotated[
    tuple[str, ...],
    Parameter(
        name="--data",
        consume_multiple=True,
        negative="",
        show_default=False,
        help="where a dataset is, as NAME=PATH, e.g. --data digit5=/data/digit5",
    ),
]
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Names = Annotated[str, Parameter(help="separated by commas")]


def console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers_in(text: str) -> list[int]:
    try:
        return [int(name) for name in names_in(text)]
    except ValueError:
        raise FedkeelError(
            f"--seeds {shortened(text)!r}: expected whole numbers separated by commas, e.g. 0,42"
        ) from None


def places_in(texts: Iterable[str]) -> dict[str, str]:
    """Files or folders of datasets by name, as ``--data`` gives them."""
    found = {}
    for text in texts:
        name, _, place = (part.strip() for part in text.partition("="))
        if not name or not place:
            raise FedkeelError(f"--data {shortened(text)!r}: expected NAME=PATH, e.g. --data digit5=/data/digit5")
        found[name] = place
    return found
