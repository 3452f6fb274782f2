"""A serving certificate, its key, and the authority that signed it. Pure: the clock is given.

Every certificate has an authority of its own, whose key is forgotten as soon as it has signed: who reads the
Secret can pass for the webhook, and for nobody else. It may sign for the webhook's names only and for no
other authority, and ends with its certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# For clocks of API servers that are behind.
_BACKDATED = timedelta(hours=1)
_NAME = "gpucost-webhook"


class Unusable(ValueError):
    """Says why a certificate cannot be used; never holds key material."""


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM: one certificate, its private key, the certificate of its authority."""

    certificate: str
    key: str = field(repr=False)
    authority: str

    @property
    def pem(self) -> str:
        """Certificate and key in one, as a server loads them."""
        return self.certificate + self.key


@dataclass(frozen=True, slots=True)
class Facts:
    """What a usable certificate says: its names, and when it ends."""

    names: frozenset[str]
    ends_ms: int


def make_pair(names: Iterable[str], now_ms: int, lifetime_ms: int) -> Pair:
    """A certificate for ``names`` that ends ``lifetime_ms`` after ``now_ms``, with a new authority."""
    wanted = sorted(set(names))
    begins = _instant(now_ms) - _BACKDATED
    ends = _instant(now_ms + lifetime_ms)
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Names of their own: a verifier looks for an authority by its name.
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
        # Go looks at these alone, never at the common name.
        .add_extension(x509.SubjectAlternativeName(permitted), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(_pem(certificate), private.decode(), _pem(authority))


def facts_of(pair: Pair, now_ms: int) -> Facts:
    """What ``pair`` says, if a server can use it now. Raises Unusable."""
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
    return Facts(frozenset(names.get_values_for_type(x509.DNSName)), _ms(certificate.not_valid_after_utc))


def authorities_in(bundle: str, now_ms: int) -> tuple[str, ...]:
    """The certificates in a bundle that have not expired, each in PEM; none of what is no bundle."""
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
