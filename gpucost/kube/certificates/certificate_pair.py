"""A serving certificate and its authority, and what a Secret of them means. Pure: the clock is given.

Every certificate has an authority of its own, whose key is discarded as soon as it has signed: a reader of
the Secret can pass for the webhook, and for no other server. The authority may sign for the webhook's names
only and for no other authority, and ends with its certificate.

In the Secret, ``tls.crt`` and ``tls.key`` are the newest certificate; ``ca.crt`` is the ``caBundle``: its
authority, then those of all certificates that another replica may still serve. As long as an API server may
not have the newest authority yet, ``previous.crt`` and ``previous.key`` are there for a replica that starts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# For API servers whose clocks are slow.
_BACKDATED = timedelta(hours=1)
_NAME = "gpucost-webhook"


class Unusable(ValueError):
    """A certificate cannot be used; the message says why and never holds key material."""


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """PEM: one certificate, its private key, the certificate of its authority."""

    certificate: str
    key: str = field(repr=False)
    authority: str

    @property
    def pem(self) -> str:
        """Certificate and key in one text, as a server loads them."""
        return self.certificate + self.key


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The facts of a usable certificate: its names, and when it ends."""

    names: frozenset[str]
    ends_ms: int


def make_pair(names: Iterable[str], now_ms: int, lifetime_ms: int) -> CertificatePair:
    """A certificate for ``names`` that ends ``lifetime_ms`` after ``now_ms``, with a new authority."""
    wanted = sorted(set(names))
    begins = _instant(now_ms) - _BACKDATED
    ends = _instant(now_ms + lifetime_ms)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Distinct names: a verifier finds an authority by its name.
    issuer = _named(f"{_NAME}-ca-{serial & 0xFFFFFFFF:08x}")
    permitted = [x509.DNSName(name) for name in wanted]
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), begins, ends)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted, None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder(_named(_NAME), issuer, key.public_key(), begins, ends)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        # Go checks these names alone, never the common name.
        .add_extension(x509.SubjectAlternativeName(permitted), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return CertificatePair(_pem(certificate), private.decode(), _pem(authority))


def facts_of(pair: CertificatePair, now_ms: int) -> CertificateFacts:
    """The facts of ``pair``, if a server can use it now. Raises Unusable."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        authority = x509.load_pem_x509_certificate(pair.authority.encode())
        key = serialization.load_pem_private_key(pair.key.encode(), None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise Unusable(f"not a certificate with its key ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Unusable("the key is another certificate's")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise Unusable("the authority did not sign it") from None
    now = _instant(now_ms)
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        raise Unusable("it has expired, or does not hold yet")
    return CertificateFacts(
        frozenset(names.get_values_for_type(x509.DNSName)), _ms(certificate.not_valid_after_utc)
    )


def authorities_in(bundle: str, now_ms: int) -> tuple[str, ...]:
    """The certificates in a bundle that have not expired, each in PEM; none if the text is not a bundle."""
    try:
        found = x509.load_pem_x509_certificates(bundle.encode())
    except ValueError:
        return ()
    now = _instant(now_ms)
    return tuple(dict.fromkeys(_pem(each) for each in found if now < each.not_valid_after_utc))


def end_of(pem: str) -> int | None:
    """When the first certificate in ``pem`` ends, in ms UTC; None where there is none."""
    try:
        return _ms(x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc)
    except ValueError:
        return None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _instant(ms: int) -> datetime:
    """Whole seconds, as certificates have them."""
    return datetime.fromtimestamp(ms // 1000, UTC)


def _ms(instant: datetime) -> int:
    return int(instant.timestamp()) * 1000


def bundle_of(authorities: Sequence[str]) -> str:
    """PEM certificates in one."""
    return "".join(authorities)


MINUTE_MS = 60_000
TRUSTED_SINCE = "gpucost.io/authority-trusted-since-ms"
"""Annotation of the Secret: the time since which the webhook's configuration has had the newest authority."""

_MANY_NAMES = 16
_MANY_AUTHORITIES = 8
_FILES = ("tls.crt", "tls.key", "ca.crt", "previous.crt", "previous.key")


@dataclass(frozen=True, slots=True)
class CertificateSpec:
    """What to keep, and how. A changed configuration is assumed to be known to every API server after
    ``spreads_ms``; a replaced authority is trusted for ``overlap_ms`` more, the time in which all replicas
    have looked again."""

    names: frozenset[str]
    lifetime_ms: int
    renew_before_ms: int
    spreads_ms: int = 2 * MINUTE_MS
    overlap_ms: int = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class CertificateSecret:
    """The content of the Secret. ``authorities`` is what API servers are to trust, the newest's first."""

    newest: CertificatePair
    authorities: tuple[str, ...]
    previous: CertificatePair | None = None
    trusted_since_ms: int | None = None

    @property
    def bundle(self) -> str:
        return bundle_of(self.authorities)

    def data(self) -> dict[str, str]:
        """As ``data`` of a Secret."""
        texts = {"tls.crt": self.newest.certificate, "tls.key": self.newest.key, "ca.crt": self.bundle}
        if self.previous is not None:
            texts |= {"previous.crt": self.previous.certificate, "previous.key": self.previous.key}
        return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}

    def annotations(self) -> dict[str, str | None]:
        """The annotations; None for one that must not exist."""
        return {TRUSTED_SINCE: None if self.trusted_since_ms is None else str(self.trusted_since_ms)}


def kept_in(secret: Mapping[str, Any], now_ms: int) -> CertificateSecret:
    """The content of ``secret``. Raises Unusable where the newest certificate cannot be used now."""
    texts = {name: _text(secret, name) for name in _FILES}
    authorities = authorities_in(texts["ca.crt"], now_ms)
    newest = _signed(texts["tls.crt"], texts["tls.key"], authorities, now_ms)
    if newest is None:
        facts_of(CertificatePair(texts["tls.crt"], texts["tls.key"], next(iter(authorities), "")), now_ms)
        raise Unusable("its authority is not in ca.crt")
    previous = _signed(texts["previous.crt"], texts["previous.key"], authorities, now_ms)
    others = tuple(each for each in authorities if each != newest.authority)
    annotations = secret.get("metadata", {}).get("annotations") or {}
    since = str(annotations.get(TRUSTED_SINCE, ""))
    # A time in the future is a mistake, or the clock was set back: the wait starts again.
    since_ms = int(since) if since.isascii() and since.isdigit() and int(since) <= now_ms else None
    return CertificateSecret(newest, (newest.authority, *others), previous, since_ms)


def is_due(kept: CertificateSecret, wanted: CertificateSpec, now_ms: int) -> bool:
    """Whether a new certificate must be made. More names than wanted are accepted: otherwise replicas with
    other settings would take turns."""
    facts = facts_of(kept.newest, now_ms)
    return now_ms >= facts.ends_ms - wanted.renew_before_ms or not wanted.names <= facts.names


def renewed(
    kept: CertificateSecret | None, trusted: str, wanted: CertificateSpec, now_ms: int
) -> CertificateSecret:
    """A new certificate added to the Secret. ``trusted`` is the bundle in the webhook's configuration:
    another replica may still serve a certificate of it."""
    names = wanted.names
    if kept is not None:
        found = facts_of(kept.newest, now_ms).names
        if not wanted.names <= found and len(wanted.names | found) <= _MANY_NAMES:
            names = wanted.names | found
    newest = make_pair(names, now_ms, wanted.lifetime_ms)
    before = () if kept is None else kept.authorities
    authorities = dict.fromkeys((newest.authority, *before, *authorities_in(trusted, now_ms)))
    previous = None if kept is None else kept.newest
    return CertificateSecret(newest, tuple(authorities)[:_MANY_AUTHORITIES], previous)


def settled(kept: CertificateSecret, wanted: CertificateSpec, now_ms: int) -> CertificateSecret:
    """``kept`` without authorities whose certificates no replica serves any more."""
    if (
        kept.trusted_since_ms is None
        or now_ms < kept.trusted_since_ms + wanted.spreads_ms + wanted.overlap_ms
    ):
        return kept
    return replace(kept, authorities=(kept.newest.authority,), previous=None)


def to_show(
    kept: CertificateSecret, held: CertificatePair | None, wanted: CertificateSpec, now_ms: int
) -> CertificatePair:
    """The certificate to serve now: the newest once every API server has its authority; until then the one
    served before, if it can be used."""
    if kept.trusted_since_ms is not None and now_ms >= kept.trusted_since_ms + wanted.spreads_ms:
        return kept.newest
    for each in (held, kept.previous):
        if each is not None and _usable(each, now_ms) is not None:
            return each
    return kept.newest


def _signed(certificate: str, key: str, authorities: tuple[str, ...], now_ms: int) -> CertificatePair | None:
    """The pair with the one of ``authorities`` that signed it; None where none did, or it cannot be used."""
    pairs = (CertificatePair(certificate, key, each) for each in authorities)
    return next((each for each in pairs if _usable(each, now_ms) is not None), None)


def _usable(pair: CertificatePair, now_ms: int) -> CertificateFacts | None:
    try:
        return facts_of(pair, now_ms)
    except Unusable:
        return None


def _text(secret: Mapping[str, Any], name: str) -> str:
    data = secret.get("data")
    found = data.get(name) if isinstance(data, Mapping) else None
    try:
        return base64.b64decode(found, validate=True).decode() if isinstance(found, str) else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""
