"""An OpenID Connect issuer of our own on loopback: real TLS, real keys, and faults on demand."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.service.worlds import NOW_MS

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
NOW_S = NOW_MS // 1000
AUDIENCE = "gpucost"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key: PrivateKey, kid: str, **more: str) -> dict[str, Any]:
    public = key.public_key()
    algorithm: Any = RSAAlgorithm if isinstance(public, rsa.RSAPublicKey) else ECAlgorithm
    if isinstance(public, ed25519.Ed25519PublicKey):
        algorithm = OKPAlgorithm
    return {**algorithm.to_jwk(public, as_dict=True), "kid": kid, "use": "sig", **more}


class Issuer:
    """What the server publishes, and a key that signs. ``served`` counts what was asked, by path.

    Who logs in has the claims of ``person``. A code is taken once, from the client that it was given to, with
    the verifier of its challenge; ``forms`` are the token requests that came in.
    """

    def __init__(self, url: str, ca_file: Path) -> None:
        self.url, self.ca_file = url, ca_file
        self.keys: dict[str, PrivateKey] = {
            "rsa": rsa.generate_private_key(65537, 2048),
            "rsa-2": rsa.generate_private_key(65537, 2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }
        self.reset()

    def reset(self) -> None:
        self.served: Counter[str] = Counter()
        self.published = [public_jwk(self.keys[kid], kid) for kid in ("rsa", "rsa-2", "ec", "ed")]
        self.discovery: dict[str, Any] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        self.person: dict[str, Any] = {}
        self.client_secret = ""
        self.takes_codes_twice = False
        self.codes: dict[str, dict[str, str]] = {}
        self.forms: list[dict[str, str]] = []
        self.is_down = False
        self.answers: dict[str, tuple[int, bytes, Mapping[str, str]]] = {}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Of Ada, for an hour; None leaves a claim out."""
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "groups": ["gpu-research-members"],
            "iat": NOW_S,
            "exp": NOW_S + 3600,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, kid: str = "rsa", alg: str = "RS256", header: Any = None, **changes: Any) -> str:
        headers = {"kid": kid, **(header or {})}
        return jwt.encode(self.claims(**changes), self.keys[kid], alg, headers=headers)

    def forged(self, header: Mapping[str, Any], secret: bytes | None = None, **changes: Any) -> str:
        """Unsigned, or signed with ``secret`` as HS256 does."""
        parts = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(self.claims(**changes)).encode())}"
        signature = b"" if secret is None else hmac.digest(secret, parts.encode(), hashlib.sha256)
        return f"{parts}.{b64(signature)}"

    def allow(self, asked: dict[str, str]) -> str:
        """Where a browser is sent back to after its person agreed; empty where the request is wrong."""
        wanted = {"response_type": "code", "code_challenge_method": "S256"}
        needed = ("client_id", "redirect_uri", "state", "nonce", "code_challenge")
        if wanted.items() - asked.items() or not all(map(asked.get, needed)):
            return ""
        code = f"c0de-{len(self.codes)}-{self.url[-5:]}"
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.url, "session_state": "x"}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """(status, answer) of the token endpoint."""
        self.forms.append(form | {"authorization": authorization})
        client, secret = form.get("client_id", ""), form.get("client_secret", "")
        if authorization.startswith("Basic "):
            pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            client, _, secret = (unquote(part) for part in pair.partition(":"))
        if secret != self.client_secret:
            return 401, {"error": "invalid_client"}
        asked = self.codes.get(form.get("code", ""))
        challenge = b64(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        given = {"client_id": client, "redirect_uri": form.get("redirect_uri"), "code_challenge": challenge}
        if asked is None or given.items() - asked.items() or form.get("grant_type") != "authorization_code":
            return 400, {"error": "invalid_grant"}
        if not self.takes_codes_twice:
            self.codes[form["code"]] = {}
        token = self.token(**{"aud": client, "nonce": asked["nonce"], **self.person})
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": token}

    def public_pem(self, kid: str = "rsa") -> bytes:
        return self.keys[kid].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _stranger(issuer: Issuer, **header: Any) -> str:
    """Signed with a key that is none of the issuer's."""
    return jwt.encode(issuer.claims(), STRANGER, "RS256", headers={"kid": "rsa", **header})


def _parts(issuer: Issuer) -> list[str]:
    return issuer.token().split(".")


STRANGER = rsa.generate_private_key(65537, 2048)
_RS256 = {"alg": "RS256", "kid": "rsa"}
_HS256 = {"alg": "HS256", "kid": "rsa"}
WRONG: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(iat=NOW_S - 7200, exp=NOW_S - 60),
    "not yet": lambda issuer: issuer.token(nbf=NOW_S + 61),
    "issued in the future": lambda issuer: issuer.token(iat=NOW_S + 61),
    "no end": lambda issuer: issuer.token(exp=None),
    "end is text": lambda issuer: issuer.token(exp="9999999999"),
    "end is true": lambda issuer: issuer.token(exp=True),
    "end is infinite": lambda issuer: issuer.token(exp=float("inf")),
    "end is no number": lambda issuer: issuer.token(exp=float("nan")),
    "wrong audience": lambda issuer: issuer.token(aud="other"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "audience among others": lambda issuer: issuer.token(aud=["other", "gpucost2"]),
    "audience is a mapping": lambda issuer: issuer.token(aud={"gpucost": 1}),
    "wrong issuer": lambda issuer: issuer.token(iss="https://evil.example"),
    "issuer with a slash": lambda issuer: issuer.token(iss=issuer.url + "/"),
    "alg none": lambda issuer: issuer.forged({"alg": "none", "kid": "rsa"}),
    "alg NONE": lambda issuer: issuer.forged({"alg": "NONE", "kid": "rsa"}),
    "no alg": lambda issuer: issuer.forged({"kid": "rsa"}),
    "HS256 with the public key": lambda issuer: issuer.forged(_HS256, issuer.public_pem()),
    "HS256 with the published key": lambda issuer: issuer.forged(
        _HS256, json.dumps(issuer.published[0]).encode()
    ),
    "RS256 that is HS256": lambda issuer: issuer.forged(_RS256, issuer.public_pem()),
    "kid of another type of key": lambda issuer: issuer.token(header={"kid": "ec"}),
    "kid of another key": lambda issuer: issuer.token(header={"kid": "rsa-2"}),
    "no kid": lambda issuer: jwt.encode(issuer.claims(), issuer.keys["rsa"], "RS256"),
    "kid is a list": lambda issuer: issuer.forged({"alg": "RS256", "kid": ["rsa"]}),
    "kid is a path": lambda issuer: issuer.forged({"alg": "RS256", "kid": "../../../dev/null"}),
    "a stranger's": _stranger,
    "own key in jwk": lambda issuer: _stranger(issuer, jwk=public_jwk(STRANGER, "rsa")),
    "own key by jku": lambda issuer: _stranger(issuer, jku=f"{issuer.url}/evil"),
    "own key by x5u": lambda issuer: _stranger(issuer, x5u=f"{issuer.url}/evil"),
    "no signature": lambda issuer: ".".join([*_parts(issuer)[:2], ""]),
    "signature cut": lambda issuer: issuer.token()[:-8],
    "claims changed": lambda issuer: ".".join(
        [_parts(issuer)[0], b64(json.dumps(issuer.claims(sub="root")).encode()), _parts(issuer)[2]]
    ),
    "a critical header": lambda issuer: issuer.token(header={"crit": ["exp"], "exp": NOW_S}),
    "a logout token": lambda issuer: issuer.token(header={"typ": "logout+jwt"}),
    "too large": lambda issuer: issuer.token(padding="x" * 20_000),
    "five parts": lambda issuer: issuer.token() + ".a.b",
    "empty objects": lambda _: "e30.e30.e30",
    "deep": lambda _: f"e30.{b64(b'[' * 9000)}.e30",
    "not base64": lambda _: "!.!.!",
    "name with a line break": lambda issuer: issuer.token(sub="ada\nroot was here"),
    "name is a number": lambda issuer: issuer.token(sub=1),
    "no name": lambda issuer: issuer.token(sub=None),
    "name is empty": lambda issuer: issuer.token(sub=""),
    "name of a service account": lambda issuer: issuer.token(sub="system:serviceaccount:kube-system:root"),
    "name too long": lambda issuer: issuer.token(sub="a" * 254),
    "name with a hidden mark": lambda issuer: issuer.token(sub="a\u200bda"),
    "name that is no Unicode": lambda issuer: issuer.token(sub="ada\ud800"),
}
"""Every way to be refused (row 46 of the fault matrix), by what is wrong."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    issuer: Issuer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Handshakes that fail are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """The token endpoint."""
        issuer, content = self.server.issuer, self.rfile.read(int(self.headers["Content-Length"]))
        issuer.served[self.path] += 1
        if issuer.is_down:
            self.close_connection = True
        elif self.path in issuer.answers:
            self._send(*issuer.answers[self.path])
        else:
            form = dict(parse_qsl(content.decode(), strict_parsing=True))
            status, answer = issuer.exchange(form, self.headers.get("Authorization", ""))
            self._send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        issuer, (path, _, query) = self.server.issuer, self.path.partition("?")
        issuer.served[path] += 1
        if issuer.is_down:
            self.close_connection = True
            return
        if path == "/authorize":
            back = issuer.allow(dict(parse_qsl(query)))
            self._send(302 if back else 400, b"", {"Location": back} if back else {})
            return
        documents = {
            "/.well-known/openid-configuration": issuer.discovery,
            "/keys": {"keys": issuer.published},
        }
        if self.path in issuer.answers:
            status, body, headers = issuer.answers[self.path]
        else:
            found = documents.get(self.path)
            status, body, headers = 200 if found else 404, json.dumps(found).encode(), {}
        self._send(status, body, headers)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


@contextmanager
def running_issuer(folder: Path) -> Iterator[Issuer]:
    """A running issuer with an authority of its own; stopped, and its socket closed, at the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_certificates(folder))
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.issuer = Issuer(f"https://127.0.0.1:{server.server_port}", folder / "ca.pem")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.issuer
        finally:
            server.shutdown()
            thread.join()


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """An authority in ``ca.pem``, and (certificate, key) for 127.0.0.1."""
    today = datetime.now(UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("ca", "issuer")]
    local = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    extensions = [x509.BasicConstraints(ca=True, path_length=None), local]
    for name, key, extension, file in zip(names, keys, extensions, ("ca.pem", "server.pem"), strict=True):
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=1))
            .add_extension(extension, critical=extension is extensions[0])
            .sign(keys[0], hashes.SHA256())
        )
        (folder / file).write_bytes(certificate.public_bytes(Encoding.PEM))
    plain = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(plain)
    return folder / "server.pem", folder / "server.key"
