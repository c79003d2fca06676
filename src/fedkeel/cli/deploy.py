"""Commands for real sites: what a consortium needs, its server, its sites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from fedkeel.cli.app import Set, app, console
from fedkeel.core.errors import FedkeelError

Insecure = Annotated[bool, Parameter(name="--insecure", negative="", show_default=False)]
Stock = Annotated[bool, Parameter(name="--stock", negative="", show_default=False)]
deploy = App(name="deploy", help="Set up a federation of real sites, or try one on this machine.")
site = App(name="site")
app.command(deploy)
app.command(site)


@deploy.command
def init(folder: Path, config: Path, /) -> None:
    """Write the contract, keys, certificates and settings that a server and its sites need.

    CONFIG is the configuration of a run with a section [deploy] that names the sites; README.md in the folder then has
    the commands that each member runs.

    For example:

        fedkeel deploy init consortium hospitals.toml

    Parameters
    ----------
    folder
        a new folder
    config
        TOML file with [deploy] and what a run has
    """
    import shlex

    from fedkeel.deploy.init import commands, planned
    from fedkeel.deploy.init import init as write
    from fedkeel.engines.flower.contact import typed
    from fedkeel.screen import say, watched

    with watched(console(), "setting up") as watch:
        plan = planned(config)
        contract = write(folder, plan, watch)
    print(f"contract: {contract.sha256}")
    print(f"SuperLink: cd {shlex.quote(str(folder))} && {typed(commands(plan.deploy, Path('server')))}")
    say(f"what each member does: {folder / 'README.md'}")


@deploy.command
def trial(folder: Path, config: Path | None = None, /, *, clients: int = 3, set: Set = ()) -> None:
    """Run a whole federation on this machine: SuperLink, sites and server as processes, with TLS and keys.

    The folder holds everything afterwards, the run in server/run. Without CONFIG: OvA-LP on the embedded 20 Newsgroups.
    What was started is stopped at the end, also after Ctrl-C; the same command continues.

    For example:

        fedkeel deploy trial runs/trial --clients 3
        fedkeel deploy trial runs/trial-ridge --set method.name=ridge

    Parameters
    ----------
    folder
        a new folder, or that of a trial to go on with
    config
        TOML file of the run that the sites share
    clients
        how many sites
    """
    from fedkeel import api
    from fedkeel.core.wrap import width_of
    from fedkeel.screen import say, tell_refusals, watched

    with watched(console(), "training") as watch:
        result = api.trial(folder, config, clients=clients, set=set, watch=watch)
    tell_refusals([result])
    print(result.table(width_of()))
    say(f"report: {result.folder / 'report.html'}")


@app.command
def server(folder: Path, /, *, insecure: Insecure = False) -> None:
    """Run the rounds of a contract with its sites; stopped or killed, the same command continues.

    For example:

        fedkeel server consortium/server

    Parameters
    ----------
    folder
        the folder with server.toml that fedkeel deploy init wrote
    insecure
        speak to the SuperLink without TLS: whoever listens can read everything; the report says so
    """
    from fedkeel import api
    from fedkeel.core.wrap import width_of
    from fedkeel.screen import say, tell_refusals, watched

    with watched(console(), "training") as watch:
        result = api.server(folder, insecure=insecure, watch=watch)
    tell_refusals([result])
    print(result.table(width_of()))
    say(f"report: {result.folder / 'report.html'}")


@site.default
def run(config: Path, /, *, insecure: Insecure = False, stock: Stock = False) -> None:
    """Take part with the rows of this site, until stopped; started again, it goes on where it was.

    For example:

        fedkeel site site.toml

    Parameters
    ----------
    config
        the site's site.toml
    insecure
        speak to the SuperLink without TLS: whoever listens can read everything
    stock
        leave speaking to the SuperLink to Flower's own flower-supernode, which then brings requests to a socket here
    """
    from fedkeel import api
    from fedkeel.screen import watched

    with watched(console(), "site") as watch:
        api.site(config, insecure=insecure, stock=stock, watch=watch)


@site.command
def check(config: Path, /, *, insecure: Insecure = False) -> None:
    """Look at everything that could stop this site, and at what would leave it, before anything is sent.

    For example:

        fedkeel site check site.toml

    Parameters
    ----------
    config
        the site's site.toml
    insecure
        as it will be run
    """
    from fedkeel.deploy.check import findings
    from fedkeel.screen import watched

    wrong = 0
    with watched(console(), "checking") as watch:
        for finding in findings(config, insecure, watch):
            wrong += not finding.fine
            print(finding, flush=True)
    if wrong:
        sys.stdout.flush()
        raise FedkeelError(f"{config}: {wrong} of the findings above must be mended before this site can take part")
