"""A table as plain text, as wide as it is or as a terminal has room for."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeel.core.wrap import HYPHENS, SEAMS, folded, longest

GAP = " "


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], words: int, width: int | None = None, spare: int = 0
) -> str:
    """The first ``words`` columns hold text, which is broken to fit; the others numbers, of which only headings are.

    Where that is not enough, as many of the last ``spare`` columns as needed are left out, and the last line says so.
    """
    shown = len(head)
    while (widths := _widths(head, rows, words, shown, width, HYPHENS)) is None and len(head) - shown < spare:
        shown -= 1
    if widths is None:
        widths = _widths(head, rows, words, shown, width, SEAMS) or _even(shown, width or 0)
    lines = _lines(head, words, widths, down=True)
    lines.append("─" * (sum(widths) + len(GAP) * (shown - 1)))
    lines += [line for row in rows for line in _lines(row, words, widths)]
    if shown < len(head):
        note = f"no room for {', '.join(head[shown:])}: the report has it all"
        lines += folded(note, width) if width else [note]
    return "\n".join(line.rstrip() for line in lines)


def _widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], words: int, shown: int, width: int | None, seams: str
) -> list[int] | None:
    """How wide each column is: the widest give way first, none below its longest piece; None if that is too wide."""
    widths, least = [], []
    for k in range(shown):
        cells = [row[k] for row in rows]
        widths.append(max(map(len, [head[k], *cells])))
        kept = (longest(cell, seams) if k < words else len(cell) for cell in cells)
        least.append(max([longest(head[k], seams), *kept]))
    over = sum(widths) + len(GAP) * (shown - 1) - width if width is not None else 0
    for _ in range(over):
        wide = [k for k in range(shown) if widths[k] > least[k]]
        if not wide:
            return None
        widths[max(wide, key=lambda k: widths[k])] -= 1
    return widths


def _even(shown: int, width: int) -> list[int]:
    """Columns on a screen that is too narrow for any table: words are cut."""
    return [max(1, (width - len(GAP) * (shown - 1)) // shown)] * shown


def _lines(row: Sequence[str], words: int, widths: Sequence[int], down: bool = False) -> list[str]:
    """A row as high as its highest cell; ``down``: lower ones stand at the bottom, as headings do."""
    cells = [folded(row[k], wide) for k, wide in enumerate(widths)]
    high = max(map(len, cells))
    lines = []
    for number in range(high):
        line = []
        for k, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
            at = number - (high - len(cell)) if down else number
            text = cell[at] if 0 <= at < len(cell) else ""
            line.append(text.ljust(wide) if k < words else text.rjust(wide))
        lines.append(GAP.join(line))
    return lines
