"""What members of a consortium get wrong, each told in one line, and what a site does about a letter."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.torch import load_file, save_file

from direct_grid import InProcess
from federations import clients
from fedkeel.commands.experiment import experiment
from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import BadMessage, FedkeelError
from fedkeel.core.message import Down, encode
from fedkeel.core.method import METHODS, Task
from fedkeel.core.tree import digest
from fedkeel.core.watch import SILENT
from fedkeel.data.loading import load
from fedkeel.deploy import site as site_module
from fedkeel.deploy.check import findings
from fedkeel.deploy.contract import Contract
from fedkeel.deploy.init import init, planned
from fedkeel.deploy.reader import reader_of
from fedkeel.deploy.rows import own_rows
from fedkeel.deploy.server import starts
from fedkeel.deploy.settings import read_server, read_site
from fedkeel.deploy.site import Desk
from fedkeel.deploy.trial import planned as trial_of
from fedkeel.deploy.worker import harmless, own_key
from fedkeel.engines.flower import contact
from fedkeel.engines.flower.envelope import Head, wrap
from fedkeel.engines.flower.fleet import Delivery
from fedkeel.engines.flower.keys import new_key, private_text, public_text, write_certificates, write_secret
from fedkeel.runs.opening import open_rows

CONFIG = """
[data]
source = "npz:sample.npz"
[partition]
test = 0.25
[method]
name = "ridge"
[deploy]
sites = ["north", "south"]
superlink = "127.0.0.1:1"
"""


def rows(path: Path, labels: tuple[str, ...] = ("cat", "dog"), dim: int = 4) -> None:
    drawn = np.random.default_rng(0)
    y = np.array([labels[k % len(labels)] for k in range(40)])
    np.savez(path, x=drawn.normal(size=(40, dim)).astype(np.float32), y=y)


@pytest.fixture
def consortium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "sample.npz")
    (tmp_path / "config.toml").write_text(CONFIG)
    init(tmp_path / "c", planned(tmp_path / "config.toml"), SILENT)
    for name in ("north", "south"):
        rows(tmp_path / "c" / "sites" / name / "sample.npz")
    return tmp_path / "c"


def changed(path: Path, section: str, **values: Any) -> Path:
    said = tomllib.loads(path.read_text())
    said[section] = {**said[section], **values}
    path.write_text(tomli_w.dumps(said))
    return path


def _plain(value: Any) -> Any:
    """TOML has no null."""
    return {key: _plain(one) for key, one in value.items() if one is not None} if isinstance(value, dict) else value


def north(consortium: Path) -> Path:
    return consortium / "sites" / "north" / "site.toml"


def test_a_site_reads_its_own_rows_as_the_contract_says(consortium: Path) -> None:
    rows(consortium / "sites" / "north" / "sample.npz", ("dog",))
    settings = read_site(north(consortium))
    federation = own_rows(settings)
    assert federation.dataset.class_names == ("cat", "dog")
    assert federation.label_counts().tolist() == [[0, 30]]
    assert len(federation.manifest.test.rows) == 10
    enrolment = federation.sites(0).enrol()
    assert enrolment.names == ("north",)
    assert enrolment.test_rows.tolist() == [0, 10]


def test_everything_that_a_member_needs_is_there(consortium: Path) -> None:
    for name in ("server/server.toml", "server/secret", "server/tls.key", "sites/north/site.key", "README.md"):
        assert (consortium / name).exists()
    for name in ("server/secret", "server/server.key", "server/tls.key", "sites/north/site.key"):
        assert (consortium / name).stat().st_mode & 0o77 == 0, "for its owner alone"
    contract = Contract.load(consortium / "contract.toml")
    assert contract.sha256 in (consortium / "README.md").read_text()
    assert (
        "FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 flower-superlink --host 127.0.0.1 --port 1 "
        in (consortium / "README.md").read_text()
    )
    assert read_server(consortium).terms == contract == read_site(north(consortium)).terms
    assert not list((consortium / "sites" / "north").glob("server*"))


def test_all_is_well(consortium: Path) -> None:
    found = list(findings(north(consortium), False, SILENT))
    assert all(finding.fine for finding in found), list(map(str, found))
    told = "\n".join(map(str, found))
    for part in ("30 rows to train on", "classes agree", "what would leave", "free for", "contract"):
        assert part in told
    assert "\n" not in str(found[0])


@pytest.mark.parametrize(("apart", "fine"), [(0, True), (20, True), (-40, False), (600, False)])
def test_a_clock_that_is_wrong_is_found_before_anything_is_sent(
    apart: int, fine: bool, consortium: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the SuperLink's machine says; a port that is open stands for it."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        changed(north(consortium), "site", superlink=f"127.0.0.1:{there.getsockname()[1]}")
        monkeypatch.setattr("fedkeel.deploy.check._date_of", lambda site: datetime.now(UTC) + timedelta(seconds=apart))
        (clock,) = [one for one in findings(north(consortium), False, SILENT) if "its clock is" in str(one)]
    assert clock.fine is fine


def wrong_class(site: Path) -> None:
    rows(site.parent / "sample.npz", ("cat", "wolf"))


def no_labels(site: Path) -> None:
    (site.parent / "rows.csv").write_text("text,diagnosis\na,b\nc,d\n")
    changed(site, "data", source="csv:rows.csv")


def other_features(site: Path) -> None:
    rows(site.parent / "sample.npz", dim=5)


def no_file(site: Path) -> None:
    (site.parent / "sample.npz").unlink()


def other_contract(site: Path) -> None:
    path = site.parent / "contract.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 1"))


def other_key(site: Path) -> None:
    write_secret(site.parent / "site.key", private_text(new_key()))


def other_name(site: Path) -> None:
    changed(site, "site", name="south")


def unknown_name(site: Path) -> None:
    changed(site, "site", name="west")


def old_certificate(site: Path) -> None:
    write_certificates(site.parent, ["127.0.0.1"], days=-1)


def theirs_to_choose(site: Path) -> None:
    changed(site, "data", encoder="minilm")


WRONG = {
    wrong_class: "has the class 'wolf', which is none of the 2 of the contract",
    no_labels: "label",
    other_features: "dimension is '5', in the contract it is '4'",
    no_file: "sample.npz",
    other_contract: "is another contract than the one agreed on",
    other_key: "is not the key that the contract has for north",
    other_name: "is not the key that the contract has for south",
    unknown_name: "site.name is 'west', but the contract names north, south",
    old_certificate: "expired on",
    theirs_to_choose: "data.encoder is not a site's to choose",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_mistake_of_a_site_is_one_line(wrong: Any, consortium: Path) -> None:
    wrong(north(consortium))
    bad = [str(finding) for finding in findings(north(consortium), False, SILENT) if not finding.fine]
    assert len(bad) == 1, bad
    assert WRONG[wrong] in bad[0]
    assert "\n" not in bad[0]

    def start() -> None:
        settings = read_site(north(consortium))
        settings.address(insecure=False)
        own_key(settings)
        own_rows(settings)

    with pytest.raises((FedkeelError, OSError)):
        start()


def with_a_model_of_its_own(home: Path) -> Path:
    """A configuration whose encoder is a folder beside it: a tiny ViT, saved here instead of downloaded."""
    from transformers import ViTConfig, ViTModel
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    shape = {"image_size": 8, "patch_size": 4, "num_channels": 3}
    small = ViTConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, **shape)
    ViTModel(small, add_pooling_layer=False).save_pretrained(home / "vit")
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(home / "vit")
    drawn = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 3)).astype(np.uint8)
    np.savez(home / "sample.npz", x=drawn, y=np.array(["cat", "dog"] * 20))
    said = CONFIG.replace('source = "npz:sample.npz"', 'source = "npz:sample.npz"\nencoder = "hf:vit"')
    (home / "config.toml").write_text(said)
    return home / "config.toml"


def test_an_encoder_may_lie_anywhere_but_must_be_the_one_agreed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at sites without a way to the hub: each has a copy of its own."""
    monkeypatch.chdir(tmp_path)
    init(tmp_path / "c", planned(with_a_model_of_its_own(tmp_path)), SILENT)
    site = north(tmp_path / "c")
    shutil.copy(tmp_path / "sample.npz", site.parent)
    (tmp_path / "vit").rename(site.parent / "mine")
    assert "hf:vit" in str(next(one for one in findings(site, False, SILENT) if not one.fine)), "it was moved"
    changed(site, "site", encoder="hf:mine")
    assert own_rows(read_site(site)).rows.train.dim == 8
    weights = site.parent / "mine" / "model.safetensors"
    sound = load_file(weights)
    save_file({name: value + 1e-3 for name, value in sound.items()}, weights, {"format": "pt"})
    (bad,) = [str(one) for one in findings(site, False, SILENT) if not one.fine]
    assert "the encoder's weights have the sha256" in bad
    assert "say in site.encoder where it is" in bad


STARTS = {
    "a network for one size": ("digits", {"name": "fedavg", "tune": "network", "rounds": 1}, {"encoder": "cnn"}),
    "a transformer": ("newsgroups20", {"name": "lora", "rounds": 1}, {}),
    "prompts": ("newsgroups20", {"name": "fedpurel", "peft": "prompt", "rounds": 1}, {}),
    "an adapted tower": ("newsgroups20", {"name": "fedpurel", "peft": "lora", "tokens": 8, "rounds": 1}, {}),
}


@pytest.mark.parametrize("case", STARTS)
def test_a_server_without_rows_starts_where_a_simulation_starts(case: str, tmp_path: Path) -> None:
    source, method, data = STARTS[case]
    exp = experiment(
        data={"source": source, "limit": 40, "cache": str(tmp_path / "cache"), **data}, method=method,
        partition={"kind": "dirichlet", "alpha": 1.0, "clients": 2, "test": 0.2},
    )  # fmt: skip
    init(tmp_path / "c", trial_of(exp), SILENT)
    server = read_server(tmp_path / "c")
    trains, classes = server.terms.trains, len(server.terms.classes)

    def start(reader: object) -> str:
        return digest(trains.start(Task(server.terms.encoder.dim, classes, 2, 0, 40, reader)).down)

    rows = open_rows(exp.data, load(exp.data), trains, SILENT)
    assert start(reader_of(server, SILENT)) == start(rows.train.reader)


SETUPS = {
    "two sites with one name": (
        'sites = ["north", "south"]',
        'sites = ["north", "north"]',
        "two sites are called north",
    ),
    "no port": ('superlink = "127.0.0.1:1"', 'superlink = "host"', "expected HOST:PORT"),
    "a strange name": ('"south"', '"so/uth"', "expected letters, digits"),
    "no section": ("[deploy]", "[run]", "no section [deploy]"),
    "an observer": ("[deploy]", "[run]\nkeep = 'best'\n[deploy]", "run.keep is 'best'"),
    "a shift": ("[deploy]", "[shift]\nlong_tail = 10.0\n[deploy]", "real sites have their own"),
}


@pytest.mark.parametrize("case", SETUPS)
def test_a_mistake_in_the_configuration_is_one_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, told = SETUPS[case]
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "sample.npz")
    (tmp_path / "config.toml").write_text(CONFIG.replace(before, after))
    with pytest.raises(FedkeelError) as error:
        init(tmp_path / "c", planned(tmp_path / "config.toml"), SILENT)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "c").exists()


def test_two_sites_never_have_one_key(consortium: Path) -> None:
    contract = Contract.load(consortium / "contract.toml")
    said = contract.model_dump(mode="json")
    said["sites"]["south"] = said["sites"]["north"]
    (consortium / "other.toml").write_text(tomli_w.dumps(_plain(said)))
    with pytest.raises(FedkeelError, match="north and south have one key"):
        Contract.load(consortium / "other.toml")


def test_keys_that_sites_made_themselves_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "sample.npz")
    text = public_text(new_key().public_key())
    (tmp_path / "north.pub").write_text(f"{text} somebody@north\n")
    (tmp_path / "config.toml").write_text(CONFIG.replace('["north", "south"]', '{north = "north.pub"}'))
    contract = init(tmp_path / "c", planned(tmp_path / "config.toml"), SILENT)
    assert contract.sites == {"north": text}
    assert not (tmp_path / "c" / "sites" / "north" / "site.key").exists()


@pytest.mark.parametrize(("version", "told"), [(None, "flwr is not installed"), ("1.40.0", "flwr is 1.40.0, expected")])
def test_another_flwr_is_refused(
    version: str | None, told: str, monkeypatch: pytest.MonkeyPatch, consortium: Path
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise contact.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(contact.metadata, "version", found)
    with pytest.raises(FedkeelError, match=told):
        site_module.serve(read_site(north(consortium)), False, SILENT)
    first = next(iter(findings(north(consortium), False, SILENT)))
    assert not first.fine


# ---- letters at a site


class Hand:
    """A carrier that a test fills by hand."""

    def __init__(self) -> None:
        self.letters: list[Delivery] = []
        self.confirmed: list[str] = []
        self.replies: list[bytes] = []
        self.failures: list[str] = []

    def receive(self) -> Delivery | None:
        return self.letters.pop(0) if self.letters else None

    def confirm(self, delivery: Delivery) -> None:
        self.confirmed.append(delivery.message_id)

    def reply(self, delivery: Delivery, content: bytes) -> None:
        self.replies.append(content)

    def fail(self, delivery: Delivery, reason: str) -> None:
        self.failures.append(reason)


def desk(folder: Path) -> tuple[Desk, Hand, InProcess]:
    ours = InProcess.of(clients(), METHODS["fedavg"](rounds=1), folder)
    worker = ours.workers[0]
    return Desk(worker, worker.site.kept / "inbox", lambda text: None), Hand(), ours


def letter(ours: InProcess, number: int = 1000, **changes: Any) -> Delivery:
    worker = ours.workers[0]
    head = Head(worker.terms.sha256, worker.site.name, number, "enrol")
    content = wrap(head, encode(Down(worker.terms.run, 0, "enrol", {})), ours.engine.post.key)
    return replace(Delivery(f"m{number}", 1, "", 1, 2, 0, time(), 60.0, "train", content), **changes)


def test_a_letter_is_answered_once(tmp_path: Path) -> None:
    at, hand, ours = desk(tmp_path)
    hand.letters = [letter(ours), letter(ours)]
    assert at.once(hand)
    assert len(hand.replies) == 1
    assert not at.inbox.exists()
    assert not at.once(hand)
    assert len(hand.replies) == 1
    assert "somebody sends it once more" in hand.failures[0]


def test_a_letter_outlives_the_process(tmp_path: Path) -> None:
    """Killed after it was confirmed and before it was answered."""
    at, hand, ours = desk(tmp_path)

    def killed(letter: object) -> bytes:
        raise SystemExit

    answer, at.worker.answer = at.worker.answer, killed  # type: ignore[method-assign]
    hand.letters = [letter(ours)]
    with pytest.raises(SystemExit):
        at.once(hand)
    assert at.inbox.exists()
    at.worker.answer = answer  # type: ignore[method-assign]
    again = Desk(at.worker, at.inbox, lambda text: None)
    assert again.once(hand)
    assert len(hand.replies) == 1
    assert hand.confirmed == ["m1000"]


def test_a_letter_of_the_inbox_is_not_obeyed_a_second_time(tmp_path: Path) -> None:
    """Killed between the inbox and the note that it was here; then somebody who listened sends it once more."""
    at, hand, ours = desk(tmp_path)
    write_atomically(at.inbox, letter(ours).to_bytes())
    assert at.once(hand)
    hand.letters = [letter(ours)]
    assert not at.once(hand)
    assert len(hand.replies) == 1
    assert "somebody sends it once more" in hand.failures[0]


def test_what_was_seen_outlives_the_process_and_damage_is_told(tmp_path: Path) -> None:
    at, hand, ours = desk(tmp_path)
    hand.letters = [letter(ours)]
    assert at.once(hand)
    again = type(at.worker)(at.worker.site, at.worker.federation)
    with pytest.raises(BadMessage, match="somebody sends it once more"):
        again.opened(letter(ours).content)
    seen = at.worker.site.kept / "seen"
    seen.write_bytes(seen.read_bytes().replace(b"1000", b"0001"))
    with pytest.raises(FedkeelError, match="seen is damaged"):
        type(at.worker)(at.worker.site, at.worker.federation)


def test_a_damaged_count_ofstarts_is_told(tmp_path: Path) -> None:
    """Requests with numbers that were used before would be refused by every site."""
    assert [starts(tmp_path) for _ in range(3)] == [1, 2, 3]
    path = tmp_path / "journal" / "starts"
    path.write_bytes(path.read_bytes().replace(b": 3}", b": 2}"))
    with pytest.raises(FedkeelError, match="starts is damaged"):
        starts(tmp_path)


def test_a_letter_that_nobody_waits_for_is_left(tmp_path: Path) -> None:
    at, hand, ours = desk(tmp_path)
    at.inbox.write_bytes(letter(ours, created=time() - 100).to_bytes())
    assert not at.once(hand)
    at.inbox.write_bytes(b"half of a letter")
    assert not at.once(hand)
    assert not at.inbox.exists()


def test_a_full_disk_is_told_and_the_site_lives_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at, hand, ours = desk(tmp_path)

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(site_module, "write_atomically", full)
        hand.letters = [letter(ours)]
        assert not at.once(hand)
    assert hand.failures == ["the site's disk is full"]
    hand.letters = [letter(ours, 1001)]
    assert at.once(hand)


def test_what_goes_wrong_at_a_site_stays_there(tmp_path: Path) -> None:
    told: list[str] = []
    at, hand, ours = desk(tmp_path)
    at.notice = told.append

    def broken(letter: object) -> bytes:
        raise ValueError("patient 4711 has 3.14159")

    at.worker.answer = broken  # type: ignore[method-assign]
    hand.letters = [letter(ours)]
    assert at.once(hand)
    assert hand.failures == ["the site could not do it (ValueError), its own log says why"]
    assert "4711" in told[0]
    assert "4711" not in harmless(FedkeelError("patient 4711"))
    assert harmless(BadMessage("it is for another")) == "the site refuses the request: it is for another"
