"""``make fuzz``: every target for its share of the time, with new examples each time; and findings again, from a file.

python -m fuzz [--minutes 10] [--keep runs/fuzz] [TARGET ...]
python -m fuzz --again runs/fuzz/TARGET-1.bin
"""

from __future__ import annotations

import argparse
import tempfile
import traceback
from pathlib import Path
from time import monotonic

from fuzz.examine import examine, search
from fuzz.targets import TARGETS, Target

AT_ONCE = 200
"""Examples between two looks at the clock."""
FINDINGS = 3
"""After so many a target is left alone: they are mostly the same."""


def hunt(name: str, target: Target, until: float, keep: Path) -> int:
    """Examples until the time is up; the number of findings."""
    examples = accepted = findings = 0
    while monotonic() < until and findings < FINDINGS:
        path = keep / f"{name}-{findings + 1}.bin"
        try:
            some, good = search(target, AT_ONCE, path, until=until)
            examples, accepted = examples + some, accepted + good
        except Exception:
            findings += 1
            path.with_suffix(".txt").write_text(traceback.format_exc())
            print(f"  {traceback.format_exc(limit=-3).strip()}\n  kept: python -m fuzz --again {path}", flush=True)
    print(f"{name:<14}{examples:>8} examples, {accepted:>6} accepted, {findings} findings", flush=True)
    return findings


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
            now = monotonic()
            findings += hunt(name, TARGETS[name](folder), now + (end - now) / (len(names) - number), given.keep)
    raise SystemExit(f"{findings} findings, kept in {given.keep}" if findings else 0)


if __name__ == "__main__":
    main()
