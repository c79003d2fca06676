"""``fedkeel deploy init``: the folders that the members of a consortium need, from one configuration.

The configuration is that of a run with a section [deploy]. Its ``data.source`` is something of the form that all sites
have: from it come the classes, unless [deploy] lists them, and the encoder with the hash of its weights. A few made-up
rows will do; no row of it is kept.
"""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Any

import tomli_w
from pydantic import Field, field_validator

from fedkeel import __version__
from fedkeel.core.atomic import folder_atomically, write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import from_settings, settings
from fedkeel.core.settings import Section
from fedkeel.core.watch import Watch
from fedkeel.data.dataset import Dataset
from fedkeel.data.images import open_image
from fedkeel.data.loading import read
from fedkeel.deploy.contract import NAME, Contract, EncoderTerms
from fedkeel.deploy.settings import NOT_THEIRS, SERVER, SITE
from fedkeel.engines.flower.contact import must_be_installed, typed
from fedkeel.engines.flower.keys import (
    new_key,
    private_text,
    public_text,
    read_public,
    write_certificates,
    write_new_secret,
    write_secret,
)
from fedkeel.engines.flower.link import superlink_command
from fedkeel.models.networks import NETWORKS
from fedkeel.runs.config import Experiment, build, checked
from fedkeel.runs.opening import Opened, open_rows

LONGEST = 1 << 20
SOME = 8
TEST = 0.2
"""Share of its rows on which a site tests, where nobody says another."""


class Deploy(Section):
    name: str = "a consortium"
    sites: list[str] | dict[str, str]
    """names, of which the keys are made here; or names with the file of the public key that each has made itself"""
    superlink: str = "127.0.0.1:9092"
    """HOST:PORT under which sites reach the SuperLink"""
    hosts: list[str] = Field(default_factory=lambda: ["127.0.0.1", "localhost"])
    """further names and addresses for which its certificate is good"""
    classes: list[str] = Field(default_factory=list)
    """by default those of data.source"""

    @field_validator("sites")
    @classmethod
    def _have_names_of_their_own(cls, sites: list[str] | dict[str, str]) -> list[str] | dict[str, str]:
        twice = [name for name in sites if list(sites).count(name) > 1]
        if twice:
            raise FedkeelError(f"deploy.sites: two sites are called {twice[0]}: each needs a name of its own")
        if not sites:
            raise FedkeelError("deploy.sites names nobody: expected at least one site")
        for name in sites:
            if not NAME.fullmatch(name):
                raise FedkeelError(f"site {name!r}: expected letters, digits, '.', '_' and '-', at most 64")
        return sites

    @field_validator("superlink")
    @classmethod
    def _has_a_port(cls, text: str) -> str:
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise FedkeelError(f"deploy.superlink is {text!r}, expected HOST:PORT such as fl.example.org:9092")
        return text

    @property
    def host(self) -> str:
        return self.superlink.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.superlink.rpartition(":")[2])

    @property
    def names(self) -> list[str]:
        return list(self.sites)


@dataclass(frozen=True)
class Plan:
    """What a configuration asks for."""

    deploy: Deploy
    experiment: Experiment
    where: str
    share: bool = False
    """of a trial: all sites have the source, and each takes its part of it"""
    server: dict[str, Any] | None = None
    """settings of the server that are not the usual ones"""


def planned(config: Path) -> Plan:
    """The plan in a TOML file."""
    try:
        said = tomllib.loads(config.read_bytes()[:LONGEST].decode())
    except OSError as error:
        raise FedkeelError(f"cannot read {config}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise FedkeelError(f"{config} is not valid TOML: {error}") from None
    if not isinstance(deploy := said.pop("deploy", None), dict):
        raise FedkeelError(f"{config} has no section [deploy]: it names the sites, e.g. sites = ['north', 'south']")
    return Plan(checked(Deploy, deploy, str(config), prefix="deploy."), build(said, where=str(config)), str(config))


def init(folder: Path, plan: Plan, watch: Watch) -> Contract:
    """Write everything, or nothing where something is wrong."""
    must_be_installed()
    if folder.exists() and any(folder.iterdir()):
        raise FedkeelError(f"{folder} is not empty: choose another folder, a contract is never overwritten")
    _must_be_possible(plan)
    deploy = plan.deploy
    keys = {name: _public(deploy, name, Path(plan.where).parent) for name in deploy.names}
    if folder.exists():
        folder.rmdir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_atomically(folder) as new:
        for member in ("server", *(f"sites/{name}" for name in deploy.names)):
            (new / member).mkdir(parents=True)
        for name in [name for name in deploy.names if keys[name] is None]:
            key = new_key()
            write_secret(new / "sites" / name / "site.key", private_text(key))
            keys[name] = public_text(key.public_key())
        signs = new_key()
        write_secret(new / "server" / "server.key", private_text(signs))
        known = {name: text for name, text in keys.items() if text is not None}
        contract = agreed(plan, public_text(signs.public_key()), known, watch)
        _write(new, plan, contract)
    return contract


def _must_be_possible(plan: Plan) -> None:
    exp, where = plan.experiment, plan.where
    if not plan.share and exp.shift != type(exp.shift)():
        raise FedkeelError(f"{where}: [shift] changes rows, and real sites have their own: leave it out")
    for key, usual, why in (
        ("keep", "last", "a server of real sites keeps the last model"),
        ("drift", False, "how far clients drift is measured in simulations"),
        ("observe", (), "observers look at a simulation"),
    ):
        if getattr(exp.run, key) != usual:
            raise FedkeelError(f"{where}: run.{key} is {getattr(exp.run, key)!r}, but {why}: leave it out")


def agreed(plan: Plan, server: str, keys: dict[str, str], watch: Watch) -> Contract:
    """The contract: what is in the configuration, and what the source and its encoder say."""
    exp, deploy = plan.experiment, plan.deploy
    method = from_settings(exp.method)
    dataset = read(exp.data, watch.notice)
    rows = open_rows(exp.data, some_of(dataset), method, watch)
    classes = tuple(deploy.classes) or dataset.class_names
    share = exp.partition.test or (0.0 if plan.share else TEST)
    return checked(
        Contract,
        {
            "id": token_hex(8), "name": deploy.name, "fedkeel": __version__, "server": server, "sites": keys,
            "classes": classes,
            "encoder": EncoderTerms(
                name=rows.encoder, rows=dataset.kind, weights=rows.weights, transform=rows.transform,
                dim=rows.train.dim, pooling=exp.data.pooling, dtype=exp.data.dtype, image=_image(rows, dataset),
            ).model_dump(),
            "features": exp.data.features, "method": settings(method), "seed": exp.run.seed,
            "threads": exp.run.threads, "validation": exp.partition.validation, "test": share,
        },
        plan.where,
    )  # fmt: skip


def some_of(dataset: Dataset) -> Dataset:
    """Its first rows, of which the encoder makes all that a contract says of features."""
    ready = {name: replace(made, train=made.train[:SOME], test=made.test[:0]) for name, made in dataset.ready.items()}
    return replace(
        dataset, train=dataset.train[:SOME], train_labels=dataset.train_labels[:SOME], test=dataset.test[:0],
        test_labels=dataset.test_labels[:0], fingerprint=f"{dataset.fingerprint}, first {SOME}", ready=ready,
    )  # fmt: skip


def _image(rows: Opened, dataset: Dataset) -> tuple[int, int] | None:
    """The size of the first image, where a network without trained weights is made for it."""
    made_for_it = dataset.kind == "images" and rows.encoder in NETWORKS and NETWORKS[rows.encoder].side is None
    return open_image(dataset.train[0], 0).size if made_for_it else None


def _public(deploy: Deploy, name: str, base: Path) -> str | None:
    """The public key that a site gave; None if one is to be made for it."""
    if isinstance(deploy.sites, list):
        return None
    path = base / Path(deploy.sites[name]).expanduser()
    try:
        text = path.read_text()[:4096].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FedkeelError(f"cannot read the key of site {name}, {path}: {error}") from None
    return public_text(read_public(text, f"{path}, the key of site {name},"))


# ---- files


def _write(folder: Path, plan: Plan, contract: Contract) -> None:
    deploy = plan.deploy
    contract.save(folder / "contract.toml")
    server = folder / "server"
    write_certificates(server, list(dict.fromkeys([deploy.host, *deploy.hosts])))
    write_new_secret(server / "secret")
    member = {"contract_sha256": contract.sha256, "superlink": deploy.superlink}
    write_atomically(
        server / SERVER, _toml({"server": {**member, "key": "server.key", **(plan.server or {})}}, _SERVER_NOTE)
    )
    for name in deploy.names:
        own = folder / "sites" / name
        said: dict[str, Any] = {"site": {"name": name, **member, "key": "site.key"}, "data": _data(plan)}
        if plan.share:
            said["share"] = {"partition": plan.experiment.partition.said(), "shift": plan.experiment.shift.model_dump()}
        write_atomically(own / SITE, _toml(said, _SITE_NOTE))
        shutil.copy(server / "ca.crt", own)
        shutil.copy(folder / "contract.toml", own)
    shutil.copy(folder / "contract.toml", server)
    write_atomically(folder / "README.md", _readme(plan, contract).encode())
    units = folder / "systemd"
    units.mkdir()
    for unit in (files("fedkeel.deploy") / "units").iterdir():
        write_atomically(units / unit.name, unit.read_bytes())


def _data(plan: Plan) -> dict[str, Any]:
    """The [data] section of a site: how its file is read is its own affair, what becomes of the rows is not."""
    said = plan.experiment.data.said()
    kept = ("limit", "duplicates", "holdout") if plan.share else ()
    return {key: value for key, value in said.items() if key not in NOT_THEIRS or key in kept if value is not None} | {
        "source": plan.experiment.data.source
    }


def _toml(said: dict[str, Any], note: str) -> bytes:
    return (note + tomli_w.dumps(said)).encode()


_SITE_NOTE = """\
# A site's own settings. Paths are relative to this file. [data] says where the site's rows are and how they are read:
# csv:FILE, table:FILE.csv, images:FOLDER, npz:FILE or hf:ID, as docs/data.md of fedkeel has it. Nothing of this is
# ever sent.
"""
_SERVER_NOTE = """\
# The server's own settings. Paths are relative to this file. What can be set besides, and its default:
#   wait = 60       seconds that the server, when it is started, waits for the SuperLink, and then for sites
#   deadline = 600  seconds after which a round goes on without those that have not replied
#   quorum = 0.5    share of the sites asked from which updates must pass, or the round is lost and tried again
#   lost = 3        times in a row that a round may be lost before the server stops; started again, it goes on
#   run = "run"     folder of the run
"""


def commands(deploy: Deploy, server: Path, database: bool = True) -> list[str]:
    """How to start the SuperLink."""
    return superlink_command(
        "0.0.0.0" if deploy.host not in ("127.0.0.1", "localhost") else deploy.host, deploy.port, server / "secret",
        server / "ca.crt", server / "tls.crt", server / "tls.key", server / "superlink.db" if database else None,
    )  # fmt: skip


def _readme(plan: Plan, contract: Contract) -> str:
    deploy = plan.deploy
    superlink = typed(commands(deploy, Path("server")))
    indented = "\n".join(f"    fedkeel site sites/{name}/site.toml" for name in deploy.names)
    first = deploy.names[0]
    return (files("fedkeel.deploy") / "README.template").read_text().format(
        name=deploy.name, sha256=contract.sha256, superlink=superlink, indented=indented, first=first,
        method=contract.method["name"], count=len(deploy.names), host_port=deploy.superlink,
    )  # fmt: skip
