"""``fedkeel run``: one federation from data to report, or the rest of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from fedkeel.commands.experiment import Config, experiment, held
from fedkeel.commands.page import REPORT, build_page, with_twin
from fedkeel.commands.result import Result
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.loading import load
from fedkeel.runs import events
from fedkeel.runs.config import Experiment
from fedkeel.runs.folder import CONFIG, begin, check, finished, fresh, stored
from fedkeel.runs.provenance import must_be_of_now


def run(
    config: Config = None,
    *,
    set: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch = SILENT,
    **sections: Any,
) -> Result:
    """Run one federation from data to report, or continue the one in ``out``.

    ``config`` is a TOML file, an ``Experiment`` or nothing; ``set`` holds ``key=value`` texts; ``data``, ``shift``,
    ``partition``, ``method``, ``run`` and ``report`` are laid over both: see ``experiment``. ``out`` is the run's
    folder, by default a new one below ``runs/``. Rows given as ``data=(x, y, client)`` are not written down: to resume,
    give them again.
    """
    if resume and out is None:
        raise FedkeelError("--resume needs --out: the folder of the run to continue")
    if resume and config is None:
        config = stored(Path(out or ""))
    sections = held(sections)
    exp = experiment(config, set=set, **sections)
    rows = cache(lambda: load(exp.data, notice=watch.notice))
    return carry_out(exp, Path(out) if out is not None else fresh(exp), resume, watch, rows)


def carry_out(
    exp: Experiment, folder: Path, resume: bool, watch: Watch, rows: Callable[[], Dataset], page: bool = True
) -> Result:
    """Run or continue an experiment in a folder, which is made only once the experiment is known to be sound."""
    try:
        check(folder, exp, resume)
        must_be_of_now(folder, exp, rows)
        if not finished(folder):
            from fedkeel.runs.federation import assemble  # not before the experiment is known to be sound
            from fedkeel.runs.simulate import simulate

            federation = assemble(exp, rows(), watch)
            begin(folder, exp, federation.manifest)
            simulate(exp, federation, folder, watch)
        if page and not (folder / REPORT).exists():
            build_page(with_twin(events.read(folder), watch), folder / REPORT, watch)
    except KeyboardInterrupt:
        if not (folder / CONFIG).exists():
            raise Stopped("stopped before round 1: the same command continues") from None
        raise Stopped(
            f"stopped: {shlex.join(['fedkeel', 'run', '--out', str(folder), '--resume'])} continues"
        ) from None
    except OSError as error:
        again = f"continue with fedkeel run --out {folder} --resume" if (folder / CONFIG).exists() else "run again"
        what = f"{error.filename or folder}: {(error.strerror or str(error)).lower()}"
        raise FedkeelError(f"{what}; mend that and {again}, or choose another --out") from None
    return Result.load(folder)
