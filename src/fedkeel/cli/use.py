"""Commands that use a finished run: personal models and predictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedkeel.cli.app import Flag, Set, app, console, names_in
from fedkeel.cli.output import exactly
from fedkeel.core.errors import FedkeelError

Site = Annotated[Path | None, Parameter(name="--site", show_default=False)]


@app.command
def personalize(
    run: Path | None = None,
    /,
    *,
    site: Site = None,
    method: str | None = None,
    set: Set = (),
    engine: Literal["local", "wire"] = "local",
    clients: Annotated[str, Parameter(help="only these, separated by commas; by default all", show_default=False)] = "",
) -> None:
    """Give every client of a finished run a model of its own, trained from the global one; nothing leaves a client.

    The run's report then shows how good these models are on the clients' own test rows and on those of the others.
    Finished clients are not trained again, an interrupted one is.

    For example:

        fedkeel personalize runs/mine
        fedkeel personalize runs/mine --method lp-ft --set method.probe=10
        fedkeel personalize runs/mine --method proximal-ft --clients site-1,site-2
        fedkeel personalize --site site.toml
        fedkeel list strategies

    Parameters
    ----------
    run
        the folder of a finished run
    method
        the way to personalise: see fedkeel list strategies; by default lp-ft after a run that trained a network, and
        lp, which ends soon, after one that trained a head
    site
        at a real site instead: its site.toml; the model is made of its own rows, and stays there
    engine
        wire puts every message through bytes
    """
    from fedkeel import api
    from fedkeel.core.wrap import width_of
    from fedkeel.reporting.personal import as_text
    from fedkeel.screen import say, watched

    if site is not None:
        if run is not None or clients:
            raise FedkeelError("--site is a site's own run and its only client: leave RUN and --clients out")
        with watched(console(), "personalising") as watch:
            own = api.personalize_site(site, method=method, set=set, engine=engine, watch=watch)
        print(as_text([own], width_of()))
        say(f"model: {own.folder / 'clients'}")
        return
    if run is None:
        raise FedkeelError("personalize needs the folder of a finished run, or --site site.toml at a real site")
    with watched(console(), "personalising") as watch:
        record = api.personalize(run, method=method, set=set, engine=engine, clients=names_in(clients), watch=watch)
    print(as_text([record], width_of()))
    say(f"models: {record.folder / 'clients'}")
    say(f"report: {run / 'report.html'}")


@app.command
def predict(
    run: Path | None = None,
    /,
    *,
    input: Annotated[Path, Parameter(name="--input")],
    site: Site = None,
    client: str | None = None,
    personal: str | None = None,
    probabilities: Flag = False,
    set: Set = (),
    out: Path | None = None,
) -> None:
    """Use a finished model on new rows: a CSV of texts, a folder of images or an npz of features.

    Prints CSV with the columns row (from 0, or an image's path), class and score. Where the rows have labels (a column
    of that name, an array y, a folder for each class), how good the model is on them is told on stderr.

    For example:

        fedkeel predict runs/mine --input posts.csv
        fedkeel predict runs/mine --input features.npz --out classes.csv
        fedkeel predict runs/mine --input posts.csv --client site-1
        fedkeel predict runs/mine --input posts.csv --probabilities
        fedkeel predict --site site.toml --input posts.csv
        fedkeel predict runs/mine --input posts.csv --set data.text_column=body

    Parameters
    ----------
    run
        the run's folder
    input
        file or folder of new rows
    site
        at a real site: its site.toml; its own model is used where it has one
    client
        use this client's own model instead of the global one
    personal
        which of its models, where the run was personalised in several ways
    probabilities
        a column for each class, with its score
    set
        how new rows are read, e.g. --set data.text_column=body
    out
        write the CSV here instead of printing it
    """
    from fedkeel.commands.predict import predictions, told, write
    from fedkeel.screen import watched

    if out is not None and not out.absolute().parent.is_dir():
        raise FedkeelError(f"--out {out}: there is no folder {out.parent}; make it, or choose another place")
    run, client = _whose(run, client, site)
    with watched(console(), "predicting") as watch:
        found = predictions(run, input=input, client=client, personal=personal, set=set, watch=watch)
    for line in told(found):
        print(line, file=sys.stderr)
    text = found.csv(probabilities)
    if out is None:
        exactly(text)
    else:
        write(text, out)


def _whose(run: Path | None, client: str | None, site: Path | None) -> tuple[Path, str | None]:
    """The folder of the run that is meant, and the client whose model is."""
    from fedkeel import api

    if site is not None:
        if run is not None or client is not None:
            raise FedkeelError("--site is a site's own run and its only client: leave RUN and --client out")
        return api.predict_site(site)
    if run is None:
        raise FedkeelError("predict needs the folder of a finished run, or --site site.toml at a real site")
    return run, client
