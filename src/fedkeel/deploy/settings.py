"""``site.toml`` and ``server.toml``: what is a member's own affair. Paths in them are relative to their folder."""

from __future__ import annotations

import tomllib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from fedkeel.core.errors import FedkeelError
from fedkeel.core.settings import Section
from fedkeel.deploy.contract import Contract
from fedkeel.engines.flower.keys import expired, read_certificate
from fedkeel.engines.flower.link import Address
from fedkeel.runs.config import Experiment, build, checked

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

SITE, SERVER = "site.toml", "server.toml"
NOT_THEIRS = ("encoder", "pooling", "features", "dtype", "limit", "duplicates", "holdout")
"""Settings of [data] that the contract has, or that only a simulation has."""
NO_FILES = ("hf", "arrays", "sites")
"""Sources of which what stands after the colon may be no file."""


class Member(Section):
    """What a site and a server have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))
    folder: Path = Field(Path(), exclude=True)
    """where the file lies; filled in"""
    contract: str = "contract.toml"
    contract_sha256: str = Field(pattern="[0-9a-f]{64}")
    superlink: str
    """HOST:PORT"""
    ca: str = "ca.crt"
    key: str
    encoder: str = ""
    """where this member has the encoder of the contract, if that is not under the name there: hf:FOLDER"""

    def path(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()

    @cached_property
    def terms(self) -> Contract:
        return Contract.load(self.path(self.contract), self.contract_sha256)

    def reading(self) -> dict[str, Any]:
        """Settings of [data] by which rows become features: those of the contract, the encoder where it is here."""
        return {**self.terms.reading(), "encoder": self.encoder_here}

    @property
    def encoder_here(self) -> str:
        kind, colon, reference = self.encoder.partition(":")
        here = self.path(reference)
        return f"{kind}:{here}" if colon and here.is_dir() else self.encoder or self.terms.encoder.name

    def address(self, insecure: bool) -> Address:
        if insecure:
            return Address(self.superlink, None, insecure=True)
        self.authority()
        return Address(self.superlink, self.path(self.ca).read_bytes())

    def authority(self) -> Certificate:
        """The certificate of whoever vouches for the SuperLink, which must be good today."""
        if not self.ca:
            raise FedkeelError(
                f"no CA certificate for the SuperLink at {self.superlink} (ca is empty): name its file, or type "
                "--insecure to do without TLS"
            )
        certificate = read_certificate(self.path(self.ca))
        if (why := expired(certificate)) is not None:
            raise FedkeelError(
                f"the certificate {self.path(self.ca)} {why}: get a new one from whoever runs the SuperLink"
            )
        return certificate


class SiteSettings(Member):
    name: str
    store: str = "private"
    """folder of all that the site keeps: private parameters, inbox, finished models"""
    cache: str = "cache"
    """folder of encoded features"""
    data: dict[str, Any] = Field(default_factory=dict, exclude=True)
    share: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """of a trial: the sections by which one source is split between sites"""

    @property
    def kept(self) -> Path:
        return self.path(self.store)

    @cached_property
    def experiment(self) -> Experiment:
        """The site's rows as the contract reads them."""
        return build(
            {
                "data": {**self.data, **self.reading(), "cache": str(self.path(self.cache))},
                "partition": {"kind": "column", "validation": self.terms.validation, "test": self.terms.test},
                "method": self.terms.method,
                "run": {"seed": self.terms.seed, "threads": self.terms.threads},
                **self.share,
            },
            where=str(self.folder / SITE),
        )  # fmt: skip


class ServerSettings(Member):
    secret: str = "secret"
    """file of the secret that the SuperLink was started with"""
    run: str = "run"
    """folder of the run"""
    wait: float = Field(60.0, ge=0)
    """seconds that a server which is started waits for its SuperLink, and then for sites that are not there yet"""
    deadline: float = Field(600.0, gt=0)
    """seconds after which a round goes on without those that have not replied"""
    quorum: float = Field(0.5, gt=0, le=1)
    """share of a cohort from which updates must pass; else the round changes nothing and is tried again"""
    lost: int = Field(3, ge=1)
    """times in a row that a round may be lost before the server stops; it can be started again"""


def read_site(path: Path) -> SiteSettings:
    said = _toml(path)
    data = said.get("data", {})
    for key in NOT_THEIRS:
        if key in data and "share" not in said:
            raise FedkeelError(f"{path}: data.{key} is not a site's to choose: the contract has it; leave it out")
    settings = checked(
        SiteSettings,
        {
            **said.get("site", {}), "folder": path.absolute().parent, "data": _here(data, path),
            "share": said.get("share", {}),
        },
        str(path), prefix="site.",
    )  # fmt: skip
    _only(said, ("site", "data", "share"), path)
    if settings.name not in settings.terms.sites:
        names = ", ".join(settings.terms.sites)
        raise FedkeelError(f"{path}: site.name is {settings.name!r}, but the contract names {names}: mend it")
    return settings


def read_server(folder: Path) -> ServerSettings:
    path = folder if folder.name == SERVER else folder / SERVER
    path = path if path.exists() or not (folder / "server" / SERVER).exists() else folder / "server" / SERVER
    said = _toml(path)
    _only(said, ("server",), path)
    values = {**said.get("server", {}), "folder": path.absolute().parent}
    return checked(ServerSettings, values, str(path), prefix="server.")


def _only(said: dict[str, Any], sections: tuple[str, ...], path: Path) -> None:
    for section in said:
        if section not in sections:
            raise FedkeelError(f"{path}: there is no section [{section}]: expected {', '.join(sections)}")


def _here(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The source, and a file of class names, with paths that are relative to the file."""
    folder, found = path.absolute().parent, dict(data)
    kind, colon, reference = str(data.get("source", "")).partition(":")
    if colon and kind not in NO_FILES:
        found["source"] = f"{kind}:{folder / Path(reference).expanduser()}"
    if isinstance(names := data.get("class_names"), str):
        found["class_names"] = str(folder / Path(names).expanduser())
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes()[: 1 << 20].decode())
    except FileNotFoundError:
        raise FedkeelError(f"there is no {path}: fedkeel deploy init DIR CONFIG.toml writes one") from None
    except OSError as error:
        raise FedkeelError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise FedkeelError(f"{path} is not valid TOML: {error}") from None
