"""Who signed what: keys, envelopes, enrolments and kept deliveries come back whole, and lies are told in one line."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeel.core.errors import BadMessage, FedkeelError
from fedkeel.core.message import MAX_ROUND, Down, Up, encode
from fedkeel.core.roster import Enrolment
from fedkeel.engines.flower import enrolment, keys
from fedkeel.engines.flower.envelope import ASKS, LENGTHS, MAGIC, MAX_HEAD, MAX_NUMBER, Head, unwrap, wrap
from fedkeel.engines.flower.fleet import DIGEST, Delivery

pytest.importorskip("cryptography", reason="pip install 'fedkeel[flower]'")

KEY, OTHER = keys.new_key(), keys.new_key()
PUBLIC = KEY.public_key()
HEAD = Head("c" * 64, "clinic-ü", 7, "train", 3, 1)
WHOSE = "the key of clinic"
FEW = settings(max_examples=60, deadline=None)


# ---- keys


def test_a_key_is_read_as_it_was_written_and_only_its_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "site"
    keys.write_secret(path, keys.private_text(KEY))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys.read_private(path).private_numbers() == KEY.private_numbers()
    assert keys.read_public(keys.public_text(PUBLIC), "it").public_numbers() == PUBLIC.public_numbers()
    commented = keys.public_text(PUBLIC) + " someone@clinic\n"
    assert keys.public_pem(keys.read_public(commented, "it")) == keys.public_pem(PUBLIC)


def test_a_new_secret_is_another_one_each_time_and_its_owners(tmp_path: Path) -> None:
    for name in ("one", "two"):
        keys.write_new_secret(tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one", "two"))
    assert one != two
    assert re.fullmatch(rb"[0-9a-f]{64}", one)
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o600


def other_kinds() -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    return {
        "ed25519": ed25519.Ed25519PrivateKey.generate(),
        "P-256": ec.generate_private_key(ec.SECP256R1()),
        "P-521": ec.generate_private_key(ec.SECP521R1()),
        "RSA": rsa.generate_private_key(65537, 1024),
    }


@pytest.mark.parametrize("kind", ["ed25519", "P-256", "P-521", "RSA"])
def test_a_key_of_another_kind_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    key = other_kinds()[kind]
    path = tmp_path / "site"
    path.write_bytes(keys.private_text(key))
    with pytest.raises(FedkeelError, match=r"^.*site is a key of another kind: expected ECDSA with 384.*ssh-keygen"):
        keys.read_private(path)
    with pytest.raises(FedkeelError, match=r"^the key of a is a key of another kind: expected ECDSA with 384") as told:
        keys.read_public(keys.public_text(key.public_key()), "the key of a")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text", [b"", b"nonsense", b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"]
)
def test_what_is_no_key_is_refused_in_one_line(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "site"
    path.write_bytes(text)
    with pytest.raises(FedkeelError, match="site is no private key without a passphrase: ssh-keygen -t ecdsa"):
        keys.read_private(path)
    with pytest.raises(FedkeelError, match=r"^the key of a is no public key in OpenSSH's format: ssh-keygen"):
        keys.read_public(text.decode(), "the key of a")


def test_a_private_key_with_a_passphrase_or_a_missing_one_is_refused_in_one_line(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    locked = tmp_path / "locked"
    try:
        text = KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.BestAvailableEncryption(b"secret"),
        )
    except Exception:  # without bcrypt there is no such key
        text = b"locked"
    locked.write_bytes(text)
    with pytest.raises(FedkeelError, match="locked is no private key without a passphrase"):
        keys.read_private(locked)
    with pytest.raises(FedkeelError, match=r"^cannot read the key .*nowhere: no such file or directory$"):
        keys.read_private(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text", ["ecdsa-sha2-nistp384", "ssh-dss AAAAB3NzaC1kc3M=", "ecdsa-sha2-nistp384 A\x00", "\ud800"]
)
def test_a_line_that_only_looks_like_a_public_key_is_refused(text: str) -> None:
    with pytest.raises(FedkeelError, match=r"^the key of a is no public key"):
        keys.read_public(text, "the key of a")


def test_a_signature_is_of_one_key_and_of_one_text() -> None:
    signature = keys.sign(KEY, b"text")
    assert keys.signed_by(PUBLIC, signature, b"text")
    assert not keys.signed_by(PUBLIC, signature, b"texts")
    assert not keys.signed_by(OTHER.public_key(), signature, b"text")
    assert not keys.signed_by(PUBLIC, b"", b"text")
    assert not keys.signed_by(PUBLIC, b"no DER at all", b"text")


# ---- certificates


def test_a_certificate_says_when_it_is_good_and_for_whom(tmp_path: Path) -> None:
    from cryptography import x509

    keys.write_certificates(tmp_path, ["link.example", "127.0.0.1", "::1"], days=10)
    for name in ("ca.crt", "tls.crt"):
        found = keys.read_certificate(tmp_path / name)
        now = datetime.now(UTC)
        assert keys.expired(found) is None
        assert keys.expired(found, now + timedelta(days=9)) is None
        late, early = keys.expired(found, now + timedelta(days=11)), keys.expired(found, now - timedelta(days=3))
        assert late is not None
        assert early is not None
        assert re.fullmatch(r"expired on \d{4}-\d\d-\d\d", late)
        assert re.fullmatch(r"is not good before \d{4}-\d\d-\d\d", early)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    found.verify_directly_issued_by(keys.read_certificate(tmp_path / "ca.crt"))
    assert stat.S_IMODE((tmp_path / "tls.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]


def test_a_certificate_of_yesterday_has_expired(tmp_path: Path) -> None:
    keys.write_certificates(tmp_path, ["127.0.0.1"], days=-1)
    assert str(keys.expired(keys.read_certificate(tmp_path / "tls.crt"))).startswith("expired on ")


def test_what_is_no_certificate_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"nonsense")
    with pytest.raises(FedkeelError, match=r"ca.crt is no certificate in PEM format"):
        keys.read_certificate(tmp_path / "ca.crt")
    with pytest.raises(FedkeelError, match=r"^cannot read the certificate .*nowhere: no such file or directory$"):
        keys.read_certificate(tmp_path / "nowhere")


# ---- envelopes


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("body", [b"", b"body", bytes(10_000)])
def test_an_envelope_comes_back_as_it_was_sent(ask: Any, body: bytes) -> None:
    head = replace(HEAD, ask=ask)
    assert unwrap(wrap(head, body, KEY), PUBLIC, WHOSE) == (head, body)


def test_the_largest_numbers_and_names_pass() -> None:
    head = Head("c" * 200, "\N{GRINNING FACE}" * 200, MAX_NUMBER, "finish", MAX_ROUND, 999)
    assert unwrap(wrap(head, b"x", KEY), PUBLIC, WHOSE) == (head, b"x")


SENT = wrap(HEAD, b"the body of a request", KEY)


@FEW
@given(st.integers(0, len(SENT) - 1), st.integers(1, 255))
def test_an_envelope_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    changed = bytearray(SENT)
    changed[place] ^= change
    with pytest.raises(BadMessage):
        unwrap(bytes(changed), PUBLIC, WHOSE)


@FEW
@given(st.integers(0, len(SENT) - 1))
def test_an_envelope_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(BadMessage):
        unwrap(SENT[:length], PUBLIC, WHOSE)


@FEW
@given(st.binary(max_size=200), st.booleans())
def test_any_other_bytes_are_refused(data: bytes, magic: bool) -> None:
    with pytest.raises(BadMessage) as told:
        unwrap(MAGIC + data if magic else data, PUBLIC, WHOSE)
    assert str(told.value).isprintable()


def test_an_envelope_with_more_behind_it_is_refused() -> None:
    with pytest.raises(BadMessage, match=r"^it is not signed by the key of clinic$"):
        unwrap(SENT + b"x", PUBLIC, WHOSE)


def test_an_envelope_of_another_signer_is_refused_before_it_is_read() -> None:
    for data in (wrap(HEAD, b"body", OTHER), signed(b"no JSON", OTHER)):
        with pytest.raises(BadMessage, match=r"^it is not signed by the key of clinic$"):
            unwrap(data, PUBLIC, WHOSE)


def signed(head: bytes, key: Any = KEY, length: int | None = None) -> bytes:
    """An envelope whose signature is good, with any head at all."""
    content = LENGTHS.pack(len(head) if length is None else length) + head + b"body"
    signature = keys.sign(key, content)
    return MAGIC + LENGTHS.pack(len(signature)) + signature + content


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"more": 1}, "its head has other keys"),
        ({"index": None}, "its index is none"),
        ({"number": -1}, "its number is none"),
        ({"number": MAX_NUMBER + 1}, "its number is none"),
        ({"number": 7.0}, "its number is none"),
        ({"number": True}, "its number is none"),
        ({"round": MAX_ROUND + 1}, "its round is none"),
        ({"round": "3"}, "its round is none"),
        ({"index": 1000}, "its index is none"),
        ({"contract": 3}, "its contract is none"),
        ({"contract": "c" * 201}, "its contract is none"),
        ({"site": None}, "its site is none"),
        ({"site": "s" * 201}, "its site is none"),
        ({"ask": ["train"]}, "its ask is none"),
        ({"ask": "shell"}, "it asks for 'shell': a site gives enrol, train, centre"),
        ({"ask": "a\nb\ud800"}, r"it asks for 'a\\nb\\ud800': a site gives enrol"),
    ],
)
def test_a_head_that_says_anything_else_is_refused_though_it_is_signed(change: dict[str, Any], told: str) -> None:
    head = json.dumps({**asdict(HEAD), **change}).encode()
    with pytest.raises(BadMessage, match=f"^{told}") as refused:
        unwrap(signed(head), PUBLIC, WHOSE)
    assert str(refused.value).isprintable()


def test_a_head_without_one_of_its_keys_is_refused() -> None:
    for name in asdict(HEAD):
        head = {key: value for key, value in asdict(HEAD).items() if key != name}
        with pytest.raises(BadMessage, match=r"^its head has other keys$"):
            unwrap(signed(json.dumps(head).encode()), PUBLIC, WHOSE)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"[]", "its head has other keys"),
        (b"7", "its head has other keys"),
        (b"no JSON", "its head is no JSON"),
        (b"\xff\xfe\xfd", "its head is no JSON"),
        (b"[" * 4000, "its head is no JSON"),
        (b"", "its head is longer than it may be"),
        (b" " * (MAX_HEAD + 1), "its head is longer than it may be"),
    ],
)
def test_a_head_that_is_none_is_refused_though_it_is_signed(head: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=f"^{told}$"):
        unwrap(signed(head), PUBLIC, WHOSE)


@pytest.mark.parametrize("length", [0, 1000, 2**32 - 1])
def test_a_head_that_is_longer_than_its_envelope_is_refused(length: int) -> None:
    with pytest.raises(BadMessage, match=r"^its head is longer than it may be$"):
        unwrap(signed(b"{}", length=length), PUBLIC, WHOSE)


# ---- enrolments


RUN, NAME, CLASSES = "run-1", "clinic", 3
OWN = Enrolment.of_counts([NAME], np.array([[4, 0, 6]]), 2, np.array([1, 0, 1]))


def test_an_enrolment_is_heard_as_it_was_told() -> None:
    found = enrolment.heard(enrolment.told(OWN, RUN), RUN, NAME, CLASSES)
    assert found.names == (NAME,)
    assert found.rows.tolist() == [10]
    assert found.kinds.tolist() == [2]
    assert found.class_rows.tolist() == [4, 0, 6]
    assert found.validation_rows == 2
    assert found.test_rows.tolist() == [1, 0, 1]


def test_a_site_without_rows_may_enrol() -> None:
    nothing = np.zeros(CLASSES, dtype=np.int64)
    told = enrolment.told(Enrolment.of_counts([NAME], nothing[None], 0, nothing), RUN)
    assert enrolment.heard(told, RUN, NAME, CLASSES).rows.tolist() == [0]


def lie(
    class_rows: list[int] | torch.Tensor = [4, 0, 6],  # noqa: B006
    test_rows: list[int] = [1, 0, 1],  # noqa: B006
    validation: list[int] = [2],  # noqa: B006
    weight: float = 10.0,
    run: str = RUN,
    name: str = NAME,
    round: int = 0,
    phase: str = enrolment.PHASE,
    more: bool = False,
) -> bytes:
    arrays = {
        enrolment.CLASS_ROWS: torch.as_tensor(class_rows),
        enrolment.TEST_ROWS: torch.tensor(test_rows),
        enrolment.VALIDATION: torch.tensor(validation),
    }
    if more:
        arrays["enrol.more"] = torch.tensor([1])
    return encode(Up(run, round, phase, name, weight, arrays))


def test_what_is_no_lie_passes() -> None:
    assert enrolment.heard(lie(), RUN, NAME, CLASSES).rows.tolist() == [10]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (lie([14, -10, 6]), "enrol.class_rows is outside of 0 "),
        (lie(test_rows=[-1, 0, 1]), "enrol.test_rows is outside of 0 "),
        (lie(validation=[-1]), "enrol.validation_rows is outside of 0 "),
        (lie([10**9 + 1, 0, 0], weight=1e9 + 1), "enrol.class_rows is outside of 0 .. 1,000,000,000"),
        (lie([2**62, 2**62, 2**62], weight=0), "enrol.class_rows is outside of 0 "),
        (lie(validation=[10**9 + 1]), "enrol.validation_rows is outside of 0 "),
        (lie([4, 6], [1, 1]), r"enrol.class_rows has shape \(2,\), expected \(3,\)"),
        (lie([4, 0, 6, 0], [1, 0, 1, 0]), r"enrol.class_rows has shape \(4,\), expected \(3,\)"),
        (lie(validation=[1, 1]), r"enrol.validation_rows has shape \(2,\), expected \(1,\)"),
        (lie(torch.tensor([4.0, 0, 6])), "enrol.class_rows has dtype float32, expected int64"),
        (lie(weight=11), "it says 11 rows, and 10 over its classes"),
        (lie(weight=1e12), r"it says 1e\+12 rows, and 10 over its classes"),
        (lie(weight=10.5), r"it says 10.5 rows, and 10 over its classes"),
        (lie(run="run-2"), "the reply is for another run, 'run-2'"),
        (lie(name="other"), "the reply is for other, round 0, enrol; due was clinic, round 0, enrol"),
        (lie(round=1), "the reply is for clinic, round 1, enrol; due was"),
        (lie(phase="train"), "the reply is for clinic, round 0, train; due was"),
        (lie(more=True), "enrol.more was not asked for"),
        (encode(Up(RUN, 0, enrolment.PHASE, NAME, 10.0, {})), "enrol.class_rows is missing"),
        (encode(Down(RUN, 0, enrolment.PHASE, {})), "the reply is not an update"),
    ],
)
def test_a_lie_in_an_enrolment_is_refused_by_name(data: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=f"^site clinic cannot enrol: {told}"):
        enrolment.heard(data, RUN, NAME, CLASSES)


@FEW
@given(st.integers(0, len(lie()) - 1), st.integers(1, 255))
def test_a_damaged_enrolment_is_refused_or_still_adds_up(place: int, change: int) -> None:
    data = bytearray(lie())
    data[place] ^= change
    with suppress(BadMessage):
        found = enrolment.heard(bytes(data), RUN, NAME, CLASSES)
        assert found.names == (NAME,)
        assert found.rows.tolist() == [10]
        assert found.class_rows.sum() == 10


# ---- deliveries


DELIVERY = Delivery("m" * 64, 2**63 - 1, "train 3.0", 1, 2**63, 5, 1.75e9, 600.0, "train", b"content \x00\xff")


@pytest.mark.parametrize("content", [b"", b"content", bytes(100_000)])
@pytest.mark.parametrize("group", ["", 'a group \n with "quotes" and ü'])
def test_a_delivery_is_read_as_it_was_kept(content: bytes, group: str) -> None:
    delivery = replace(DELIVERY, content=content, group=group)
    assert Delivery.from_bytes(delivery.to_bytes()) == delivery


KEPT = DELIVERY.to_bytes()


@FEW
@given(st.integers(0, len(KEPT) - 1), st.integers(1, 255))
def test_a_delivery_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    changed = bytearray(KEPT)
    changed[place] ^= change
    with pytest.raises(BadMessage, match=r"^a kept delivery is damaged"):
        Delivery.from_bytes(bytes(changed))


@pytest.mark.parametrize("length", [0, 1, DIGEST - 1, DIGEST, DIGEST + 3, len(KEPT) - 1])
def test_a_delivery_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(BadMessage, match=r"^a kept delivery is damaged"):
        Delivery.from_bytes(KEPT[:length])


def kept(rest: bytes) -> bytes:
    return blake2b(rest, digest_size=DIGEST).digest() + rest


def with_head(change: Callable[[dict[str, Any]], Any]) -> bytes:
    said = {name: value for name, value in asdict(DELIVERY).items() if name != "content"}
    head = json.dumps(change(said)).encode()
    return kept(len(head).to_bytes(4, "big") + head)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (kept(b""), "longer than itself"),
        (kept(b"\0\0"), "longer than itself"),
        (kept(b"\0\0\0\5{}"), "longer than itself"),
        (kept(b"\xff\xff\xff\xff{}"), "longer than itself"),
        (kept(b"\0\0\0\0"), "no JSON"),
        (kept(b"\0\0\0\2{]"), "no JSON"),
        (kept(b"\0\0\x40\0" + b"[" * 2**14), "no JSON"),
        (kept(b"\0\0\0\2[]"), "another head"),
        (with_head(lambda said: {**said, "more": 1}), "another head"),
        (with_head(lambda said: {**said, "content": "x"}), "another head"),
        (with_head(lambda said: {name: value for name, value in said.items() if name != "task"}), "another head"),
        (with_head(lambda said: {**said, "run_id": "1"}), "another head"),
        (with_head(lambda said: {**said, "run_id": True}), "another head"),
        (with_head(lambda said: {**said, "created": 1}), "another head"),
        (with_head(lambda said: [said]), "another head"),
    ],
)
def test_a_delivery_of_another_form_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(BadMessage, match=f"^a kept delivery has .*{told}"):
        Delivery.from_bytes(data)
