"""What the members of a consortium agree on before anything is sent: a file that each of them has, with the same hash.

It says who takes part and with which key, who may ask, for what (a method with its settings), on which classes, and how
rows become features (an encoder with the hash of its weights). A site does nothing that is not in it.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ConfigDict, Field, field_validator

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError
from fedkeel.core.method import AnyMethod, from_settings
from fedkeel.core.settings import Section
from fedkeel.data.sources.sites import PREFIX
from fedkeel.engines.flower.keys import read_public
from fedkeel.models.prepare import Preparation
from fedkeel.runs.config import Experiment, build, checked

LONGEST = 1 << 22
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FORMAT: Literal[1] = 1


class EncoderTerms(Section):
    name: str
    """none where sites hold features"""
    rows: Literal["features", "images", "texts"]
    weights: str
    """sha256 of the weights; empty where there are none"""
    transform: str
    dim: int = Field(ge=1, le=10**7)
    pooling: Literal["auto", "cls", "mean", "pooled"] = "auto"
    dtype: Literal["float16", "float32"] = "float16"
    image: tuple[int, int] | None = None
    """width and height of the images, for a network that is made for one size"""


class Contract(Section):
    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    format: Literal[1] = FORMAT
    id: str = Field(pattern="[0-9a-f]{16}")
    """drawn anew for every contract: two runs under equal terms are two contracts"""
    name: str
    fedkeel: str
    """the version whose numbers are meant"""
    server: str
    """the public key that signs requests"""
    sites: dict[str, str] = Field(min_length=1)
    """names and public keys, in the order of the roster"""
    classes: tuple[str, ...] = Field(min_length=2)
    encoder: EncoderTerms
    features: Preparation
    method: dict[str, Any]
    seed: int = Field(ge=0)
    threads: int = Field(0, ge=0)
    validation: float = Field(0.0, ge=0, lt=1)
    """share of its rows that a site holds back to calibrate scores"""
    test: float = Field(0.0, ge=0, lt=1)
    """share of its rows that a site without test rows holds back to test models"""

    @field_validator("sites")
    @classmethod
    def _are_told_apart(cls, sites: dict[str, str]) -> dict[str, str]:
        for name, key in sites.items():
            if not NAME.fullmatch(name):
                raise FedkeelError(f"site {name!r}: expected letters, digits, '.', '_' and '-', at most 64")
            read_public(key, f"the key of site {name}")
        owner: dict[str, str] = {}
        for name, key in sites.items():
            if (other := owner.setdefault(" ".join(key.split()[:2]), name)) != name:
                raise FedkeelError(
                    f"sites {other} and {name} have one key: each needs its own, or nobody can tell them apart"
                )
        return sites

    @cached_property
    def sha256(self) -> str:
        """Of all terms, whatever the file looks like."""
        plain = self.model_dump(mode="json")
        return sha256(json.dumps(plain, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    @property
    def run(self) -> str:
        """The id that every message carries."""
        return self.sha256[:16]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.sites)

    @cached_property
    def trains(self) -> AnyMethod:
        return from_settings(self.method)

    def save(self, path: Path) -> None:
        head = (
            f"# Agreed on by all members: sha256 {self.sha256}. Whatever is changed in here makes another contract.\n"
        )
        write_atomically(path, (head + tomli_w.dumps(_plain(self.model_dump(mode="json")))).encode())

    @classmethod
    def load(cls, path: Path, pinned: str | None = None) -> Contract:
        """The contract in a file, which must be the one with the pinned hash."""
        try:
            data = path.read_bytes()
            said = tomllib.loads(data[:LONGEST].decode())
        except OSError as error:
            raise FedkeelError(f"cannot read the contract {path}: {(error.strerror or str(error)).lower()}") from None
        except (ValueError, RecursionError):
            raise FedkeelError(f"{path} is no contract: it is not TOML; get it again from whoever wrote it") from None
        contract = checked(cls, said, str(path), prefix="")
        method = build({"method": contract.method}, where=str(path)).method
        contract = contract.model_copy(update={"method": method})
        if pinned is not None and contract.sha256 != pinned:
            raise FedkeelError(
                f"{path} is another contract than the one agreed on: its sha256 is {contract.sha256[:16]}..., expected "
                f"{pinned[:16]}...; get the right file, or agree on this one and change contract_sha256"
            )
        return contract

    def experiment(self, lost: int = 3) -> Experiment:
        """The run as its server sees it."""
        return build(
            {
                "data": {"source": f"{PREFIX}{self.id}", **self.reading()},
                "partition": {"kind": "column", "validation": self.validation, "test": self.test},
                "method": self.method,
                "run": {"seed": self.seed, "threads": self.threads, "engine": "flower", "evaluate": "federated",
                        "lost": lost},
            },
            where="the contract",
        )  # fmt: skip

    def reading(self) -> dict[str, Any]:
        """Settings of [data] that are not a site's to choose."""
        encoder = self.encoder
        return {
            "encoder": encoder.name, "pooling": encoder.pooling, "features": self.features, "dtype": encoder.dtype
        }  # fmt: skip

    def about_encoder(self, here: str) -> dict[str, Any]:
        """What a finished model says of its encoder, of which ``here`` is the name or the place."""
        terms = self.encoder
        return {
            "encoder": here, "weights": terms.weights, "transform": terms.transform, "kind": terms.rows,
            "dim": terms.dim,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return value
