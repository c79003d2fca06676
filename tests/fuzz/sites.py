"""What servers, sites and a SuperLink give to each other, and what their keepers write: letters, replies, contracts."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from random import Random

import numpy as np
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

import fedkeel as fk
from fedkeel.core.errors import BadMessage
from fedkeel.core.message import Down, encode
from fedkeel.core.roster import Enrolment
from fedkeel.core.watch import SILENT
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.init import init
from fedkeel.deploy.settings import SITE, read_site
from fedkeel.deploy.trial import planned
from fedkeel.engines.flower import enrolment
from fedkeel.engines.flower.contact import content_of, payload
from fedkeel.engines.flower.envelope import Head, unwrap, wrap
from fedkeel.engines.flower.fleet import DIGEST, Delivery
from fedkeel.engines.flower.keys import new_key
from fedkeel.engines.flower.objects import inflated
from fuzz.mutations import changed, lines_changed, one_of, safetensors_bytes
from fuzz.target import Target, target, tree

HEAD = Head("c" * 64, "site-1", 7, "train", 3, 0)
BODY = encode(Down("run-7", 3, "train", tree(), 2001))


@target
def letter(home: Path) -> Target:
    """Also one that the right key signed, whatever is in it: a site outlives a server that went mad."""
    key = new_key()
    whole = wrap(HEAD, BODY, key)
    said = whole[len(whole) - len(BODY) - 600 : len(whole) - len(BODY)]
    inside = one_of(safetensors_bytes(BODY), changed(said))

    def check(data: bytes) -> None:
        head, body = unwrap(data, key.public_key(), "the server")
        assert unwrap(wrap(head, body, key), key.public_key(), "the server") == (head, body)

    return Target(one_of(changed(whole), lambda draw: wrap(HEAD, inside(draw), key)), check)


@target
def joining(home: Path) -> Target:
    site = Enrolment.of_counts(["site-1"], np.array([[3, 4]]), 2, np.array([1, 1]))

    def check(data: bytes) -> None:
        found = enrolment.heard(data, "run-7", "site-1", 2)
        assert found.rows.sum() == found.class_rows.sum() >= 0

    return Target(safetensors_bytes(enrolment.told(site, "run-7")), check)


@target
def inbox(home: Path) -> Target:
    whole = Delivery("m" * 64, 1, "train 1.0", 1, 2, 3, 1e9, 600.0, "train", BODY).to_bytes()
    inside = changed(whole[DIGEST:])

    def sealed(draw: Random) -> bytes:
        rest = inside(draw)
        return blake2b(rest, digest_size=DIGEST).digest() + rest

    def check(data: bytes) -> None:
        assert Delivery.from_bytes(data).to_bytes()

    return Target(one_of(changed(whole), sealed), check)


@target
def flower_message(home: Path) -> Target:
    """The objects of a message, of which one is another: flwr reads them, and believes them."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    ways = []
    for size in (100, 2**21):
        message = Message(payload(bytes(size)), 7, "train")
        parts = {id: part.deflate() for id, part in get_all_nested_objects(message).items()}
        for id, part in parts.items():
            ways.append((message.object_id, parts, id, changed(part[:300])))

    def make(draw: Random) -> bytes:
        place = draw.randrange(len(ways))
        return bytes([place]) + ways[place][3](draw)

    def check(data: bytes) -> None:
        if not data or data[0] >= len(ways):
            raise BadMessage("of no message")
        top, parts, id, _ = ways[data[0]]
        assert content_of(inflated(top, {**parts, id: data[1:] + parts[id][300:]}))

    return Target(make, check)


@target
def contract(home: Path) -> Target:
    folder, path = _trial(home), home / "contract.toml"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        found = Contract.load(path)
        found.save(path)
        assert Contract.load(path).sha256 == found.sha256

    whole = (folder / "contract.toml").read_bytes()
    return Target(one_of(changed(whole), lines_changed(whole)), check)


@target
def site_file(home: Path) -> Target:
    path = next(iter((_trial(home) / "sites").iterdir())) / SITE
    whole = path.read_bytes()

    def check(data: bytes) -> None:
        path.write_bytes(data)
        assert read_site(path).terms.names

    return Target(one_of(changed(whole), lines_changed(whole)), check)


def _trial(home: Path) -> Path:
    split = {"kind": "dirichlet", "clients": 2, "alpha": 1.0, "test": 0.2}
    exp = fk.experiment(data={"source": "digits", "limit": 60}, partition=split, method={"name": "fedavg", "rounds": 2})
    init(home / "trial", planned(exp), SILENT)
    return home / "trial"
