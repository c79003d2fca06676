"""``fedkeel deploy trial``, ``fedkeel server`` and ``fedkeel site``: a run with real sites, from contract to report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from fedkeel.commands.experiment import Config, experiment
from fedkeel.commands.page import REPORT, build_page, with_twin
from fedkeel.commands.result import Result
from fedkeel.core.errors import FedkeelError, Stopped
from fedkeel.core.watch import SILENT, Watch
from fedkeel.deploy.settings import read_server, read_site
from fedkeel.runs import events

SPLIT, TRIAL = ("partition.kind=dirichlet", "partition.alpha=0.5"), ("partition.test=0.2", "method.rounds=5")
"""What a trial is unless a configuration says otherwise, and how its rows are dealt unless that is said."""


def trial(
    folder: str | Path, config: Config = None, *, clients: int = 3, set: Iterable[str] = (), watch: Watch = SILENT
) -> Result:
    """A federation on this machine: SuperLink, sites and server as processes, with TLS and keys.

    ``config`` and ``set`` are as in ``run``. The folder holds contract, keys, logs, and the run in ``server/run``.
    """
    from fedkeel.deploy.trial import trial as carry_out

    own = list(set)
    split = SPLIT if config is None and not any(text.startswith("partition.kind=") for text in own) else ()
    usual = () if config is not None else TRIAL
    exp = experiment(config, set=[*split, *usual, f"partition.clients={clients}", *own])
    if not exp.partition.test and not getattr(exp.partition, "test_split", None):
        raise FedkeelError("sites test on rows of their own: set partition.test, e.g. --set partition.test=0.2")
    return _reported(lambda: carry_out(Path(folder), exp, watch), f"the same fedkeel deploy trial {folder}", watch)


def server(folder: str | Path, *, insecure: bool = False, watch: Watch = SILENT) -> Result:
    """The rounds of a contract with its sites, from the folder that ``fedkeel deploy init`` wrote for the server."""
    from fedkeel.deploy.server import serve

    settings = read_server(Path(folder))
    return _reported(lambda: serve(settings, insecure, watch), f"fedkeel server {folder}", watch)


def site(config: str | Path, *, insecure: bool = False, stock: bool = False, watch: Watch = SILENT) -> None:
    """Take part with the rows of a site, until stopped; ``stock`` if Flower's own SuperNode brings the requests."""
    from fedkeel.deploy import site as usual
    from fedkeel.deploy import stock as by_supernode

    if stock and insecure:
        raise FedkeelError(
            "--stock and --insecure: flower-supernode signs with the site's key over TLS only; leave one"
        )
    settings = read_site(Path(config))
    try:
        if stock:
            by_supernode.serve(settings, watch)
        else:
            usual.serve(settings, insecure, watch)
    except KeyboardInterrupt:
        again = f"fedkeel site {config}{' --stock' if stock else ''}"
        raise Stopped(f"site {settings.name} stopped: {again} goes on where it was") from None


def personalize_site(
    config: str | Path,
    *,
    method: str | None = None,
    set: Iterable[str] = (),
    engine: str = "local",
    watch: Watch = SILENT,
) -> events.Record:
    """A model of the site's own, from the finished one and its own rows; nothing leaves the site."""
    from fedkeel.deploy.finished import finished_run
    from fedkeel.deploy.rows import own_rows
    from fedkeel.personal.models import personalize, with_settings
    from fedkeel.personal.plan import Wish, usual
    from fedkeel.runs.model import Model
    from fedkeel.runs.variant import Variant

    settings, texts = read_site(Path(config)), list(set)
    folder = finished_run(settings)
    if method is None:
        method, why = usual(Model.of(folder).method)
        watch.notice(why)
    variant = with_settings(Variant.parse(method), texts)
    try:
        return personalize(
            folder, variant, lambda _: own_rows(settings, watch), Wish.of(method, texts, (), engine), watch
        )
    except KeyboardInterrupt:
        raise Stopped("stopped: the same command continues") from None


def predict_site(config: str | Path) -> tuple[Path, str | None]:
    """(the site's finished run, whose model in it is the site's own): none where it has the global one alone."""
    from fedkeel.deploy.finished import finished_run
    from fedkeel.runs.model import client_file

    settings = read_site(Path(config))
    folder = finished_run(settings)
    personalised = any(record.end for record in events.personalised(folder))
    own = client_file(folder, settings.name).exists() or personalised
    return folder, settings.name if own else None


def _reported(run: Callable[[], Path], again: str, watch: Watch) -> Result:
    try:
        folder = run()
        if (
            not (folder / REPORT).exists()
            or (folder / REPORT).stat().st_mtime < (folder / events.EVENTS).stat().st_mtime
        ):
            build_page(with_twin(events.read(folder), watch), folder / REPORT, watch)
    except KeyboardInterrupt:
        raise Stopped(f"stopped: {again} continues") from None
    except OSError as error:
        what = f"{error.filename or 'output'}: {(error.strerror or str(error)).lower()}"
        raise FedkeelError(f"{what}; mend that, and {again} continues") from None
    return Result.load(folder)
