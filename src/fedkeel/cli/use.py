"""Commands that use a finished run: personal models and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fedkeel.cli.app import Set, app, console, names_in
from fedkeel.cli.output import exactly


@app.command
def personalize(
    run: Path,
    /,
    *,
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
        fedkeel personalize runs/mine --method lp-ft --set method.probe=10 method.epochs=20
        fedkeel personalize runs/mine --method proximal-ft --clients site-1,site-2
        fedkeel list strategies

    Parameters
    ----------
    run
        the folder of a finished run
    method
        the way to personalise: see fedkeel list strategies; by default lp-ft after a run that trained a network, and
        lp, which ends soon, after one that trained a head
    engine
        wire puts every message through bytes
    """
    from fedkeel import api
    from fedkeel.reporting.personal import as_text
    from fedkeel.screen import watched

    with watched(console(), "personalising") as watch:
        record = api.personalize(run, method=method, set=set, engine=engine, clients=names_in(clients), watch=watch)
    print(as_text([record]))
    print(f"models: {record.folder / 'clients'}\nreport: {run / 'report.html'}")


@app.command
def predict(
    run: Path,
    /,
    *,
    input: Annotated[Path, Parameter(name="--input")],
    client: str | None = None,
    personal: str | None = None,
    out: Path | None = None,
) -> None:
    """Use a finished model on new rows: a CSV of texts, a folder of images or an npz of features.

    Prints CSV with the columns row, class and score.

    For example:

        fedkeel predict runs/mine --input posts.csv
        fedkeel predict runs/mine --input features.npz --out classes.csv
        fedkeel predict runs/mine --input posts.csv --client site-1

    Parameters
    ----------
    run
        the run's folder
    input
        file or folder of new rows
    client
        use this client's own model instead of the global one
    personal
        which of its models, where the run was personalised in several ways
    out
        write the CSV here instead of printing it
    """
    from fedkeel import api

    text = api.predict(run, input=input, client=client, personal=personal)
    if out is None:
        exactly(text)
    else:
        out.write_text(text, encoding="utf-8")
