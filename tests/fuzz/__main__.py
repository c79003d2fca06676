"""``make fuzz``: every target for its share of the time, with new examples each time; and findings again, by a file.

python -m fuzz [--minutes 10] [--keep runs/fuzz] [TARGET ...]
python -m fuzz --again runs/fuzz/TARGET-123.bin
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
from pathlib import Path
from time import monotonic, time

from fuzz.examine import examine, hunt
from fuzz.targets import TARGETS, Target

BATCH = 100
"""Examples between two looks at the clock."""


def hunted(name: str, target: Target, until: float, keep: Path) -> int:
    """Examples until the time is up; the number of findings, of which those from the same place count once."""
    found: dict[str, int] = {}
    number, tried, accepted = int(time()) * 10**6, 0, 0
    while monotonic() < until:
        seen = hunt(target, BATCH, number)
        tried, accepted, number = tried + seen.tried, accepted + seen.accepted, number + 1
        if seen.error is not None:
            where = traceback.extract_tb(seen.error.__traceback__)[-1]
            place = f"{type(seen.error).__name__} in {Path(where.filename).name}:{where.lineno}"
            found[place] = found.get(place, 0) + 1
            if found[place] == 1:
                path = keep / f"{name}-{number}.bin"
                path.write_bytes(seen.data)
                path.with_suffix(".txt").write_text("".join(traceback.format_exception(seen.error)))
                print(f"  {place}: {str(seen.error)[:150]!r}\n    kept as {path}", flush=True)
    again = "".join(f"; {count} x {place}" for place, count in found.items())
    print(f"{name:<12} {tried:>7} examples, {accepted:>6} accepted, {len(found)} findings{again}", flush=True)
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("targets", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="where findings are kept")
    parser.add_argument("--again", type=Path, help="one finding, from its file")
    given = parser.parse_args()
    if unknown := set(given.targets) - TARGETS.keys():
        parser.error(f"unknown target {', '.join(unknown)}: there is {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory() as home:
        if given.again:
            name = given.again.stem.rpartition("-")[0]
            print(
                "accepted" if examine(TARGETS[name](Path(home)), given.again.read_bytes()) else "refused, as it should"
            )
            return
        given.keep.mkdir(parents=True, exist_ok=True)
        names, findings, end = given.targets or list(TARGETS), 0, monotonic() + 60 * given.minutes
        for number, name in enumerate(names):
            folder = Path(home) / name
            folder.mkdir()
            target, now = TARGETS[name](folder), monotonic()
            findings += hunted(name, target, now + (end - now) / (len(names) - number), given.keep)
    raise SystemExit(f"{findings} findings, kept in {given.keep}" if findings else 0)


if __name__ == "__main__":
    main()
