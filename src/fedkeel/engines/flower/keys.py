"""Who is who: keys that sign, in OpenSSH's format as Flower has them, and certificates for a trial.

A signature is ECDSA over P-384 with SHA-384. The server's key signs requests; a site's key, with which it also
registers at the SuperLink, signs replies: whoever runs the SuperLink can neither ask a site for anything nor
answer for it.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from fedkeel.core.atomic import write_atomically
from fedkeel.core.errors import FedkeelError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate, GeneralName

DAYS = 365
"""How long the certificates of a trial are good."""
SECRET_BYTES = 32


def new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def private_text(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.OpenSSH
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_text(key: EllipticCurvePublicKey) -> str:
    """As a line of OpenSSH, without a comment."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def public_pem(key: EllipticCurvePublicKey) -> bytes:
    """As Flower tells nodes apart."""
    from cryptography.hazmat.primitives import serialization

    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_secret(path: Path, data: bytes) -> None:
    """A file that its owner alone may read."""
    write_atomically(path, data)
    path.chmod(0o600)


def read_private(path: Path) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise FedkeelError(f"cannot read the key {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FedkeelError(f"{path} is no private key without a passphrase: {_MAKES}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedkeelError(f"{path} is a key of another kind: expected ECDSA with 384 bits; {_MAKES}")
    return key


def read_public(text: str, whose: str) -> EllipticCurvePublicKey:
    """The public key in a line as ``ssh-keygen`` writes it into a .pub file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise FedkeelError(f"{whose} is no public key in OpenSSH's format: {_MAKES}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise FedkeelError(f"{whose} is a key of another kind: expected ECDSA with 384 bits; {_MAKES}")
    return key


_MAKES = "ssh-keygen -t ecdsa -b 384 -N '' -f NAME makes one"


def sign(key: EllipticCurvePrivateKey, data: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return key.sign(data, ec.ECDSA(hashes.SHA384()))


def signed_by(key: EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key.verify(signature, data, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


# ---- certificates


def write_certificates(folder: Path, hosts: list[str], days: int = DAYS) -> None:
    """``ca.crt``, and ``tls.crt`` and ``tls.key`` of a SuperLink on these hosts; the CA's own key is not kept."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    authority, server = new_key(), new_key()
    began, ends = datetime.now(UTC) - timedelta(days=2), datetime.now(UTC) + timedelta(days=days)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(of: EllipticCurvePrivateKey, subject: str) -> x509.CertificateBuilder:
        base = x509.CertificateBuilder().issuer_name(named("fedkeel trial CA")).subject_name(named(subject))
        base = base.public_key(of.public_key()).serial_number(x509.random_serial_number())
        return base.not_valid_before(began).not_valid_after(ends)

    own = certificate(authority, "fedkeel trial CA").add_extension(x509.BasicConstraints(True, None), critical=True)
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    own = own.add_extension(usage, critical=True)
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    theirs = certificate(server, hosts[0]).add_extension(names, critical=False)
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    write_atomically(folder / "ca.crt", own.sign(authority, hashes.SHA384()).public_bytes(pem))
    write_atomically(folder / "tls.crt", theirs.sign(authority, hashes.SHA384()).public_bytes(pem))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    write_secret(folder / "tls.key", server.private_bytes(pem, *plain))


def write_new_secret(path: Path) -> None:
    write_secret(path, os.urandom(SECRET_BYTES).hex().encode())


def _alternative(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_certificate(path: Path) -> Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise FedkeelError(f"cannot read the certificate {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise FedkeelError(
            f"{path} is no certificate in PEM format: give the one of whoever signs the SuperLink's"
        ) from None


def expired(certificate: Certificate, now: datetime | None = None) -> str | None:
    """Why a certificate is not good now; None if it is."""
    now = now or datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"is not good before {certificate.not_valid_before_utc:%Y-%m-%d}"
    return None
