"""Processes that people log in to, over HTTP and TLS, with an issuer that runs; and their browsers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from fastapi import FastAPI

from gpucost.access.keys import format_key
from gpucost.access.sessions import csrf_token
from gpucost.api.app import create_app
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.access import build_authenticator, build_login
from tests.api.conftest import KEYS, SECRETS
from tests.api.findings import ledger_with_findings
from tests.service.worlds import NOW_MS, Clock
from tests.support.app_server import answering
from tests.support.oidc_issuer import AUDIENCE, Issuer, running_issuer
from tests.support.ports import free_port

PAGE = {"Accept": "text/html"}

TEAM = "/month/2026-10/team?team=research"

CLIENT_SECRET = "cl1ent-s3cret"

GRANTS = [
    {"groups": ["gpu-admins"], "role": "admin"},
    {"groups": ["gpu-leads"], "team_groups": "gpu-{team}-members", "role": "team-admin"},
    {"team_groups": "gpu-{team}-members"},
]

Answer = httpx2.Response


@dataclass(frozen=True)
class Site:
    """A process of the service. ``folder`` has the ledger, and the certificates of all servers."""

    url: str
    app: FastAPI
    issuer: Issuer
    ledger: Ledger
    clock: Clock
    folder: Path

    @property
    def is_secure(self) -> bool:
        return self.url.startswith("https:")

    @property
    def prefix(self) -> str:
        return "__Host-" if self.is_secure else ""

    def trail(self) -> list[tuple[str, str, str]]:
        """(author, action, reason) of what the audit trail has of sessions, oldest first."""
        rows = self.ledger.audit(EVERYTHING)
        return [(each.author, each.action, each.reason) for each in rows if "session" in each.action]


class Browser:
    """A browser, with its cookies. It goes nowhere by itself."""

    def __init__(self, site: Site) -> None:
        context = ssl.create_default_context(cafile=site.issuer.ca_file)
        self.site = site
        # A machine with much to do may take longer than the five seconds of its default.
        self.http = httpx2.Client(
            base_url=site.url, verify=context, trust_env=False, headers=PAGE, timeout=60
        )

    def get(self, url: str, **headers: str) -> Answer:
        return self.http.get(url, headers=headers)

    def post(self, url: str, said: dict[str, str], **headers: str) -> Answer:
        return self.http.post(url, data=said, headers=headers)

    def cookie(self, name: str = "gpucost") -> str:
        return self.http.cookies.get(f"{self.site.prefix}{name}") or ""

    def keep(self, value: str, name: str = "gpucost") -> None:
        self.http.cookies.delete(f"{self.site.prefix}{name}") if self.cookie(name) else None
        self.http.cookies.set(f"{self.site.prefix}{name}", value, domain="127.0.0.1", path="/")

    def begin(self, path: str = "/") -> str:
        """The address at the issuer."""
        begun = self.get(f"/login/start?{urlencode({'next': path})}")
        assert begun.status_code == 303, begun.text
        return begun.headers["location"]

    def agree(self, url: str) -> str:
        """Where the issuer sends this browser back to."""
        return self.get(url).headers["location"]

    def log_in(self, path: str = "/", **person: Any) -> Answer:
        self.site.issuer.person = person
        found = self.get(self.agree(self.begin(path)))
        assert found.status_code == 303, found.text
        return found

    def give(self, key: str, path: str = "/", **headers: str) -> Answer:
        """The page's form with a key."""
        page = self.get(f"/login?{urlencode({'next': path})}")
        [form] = re.findall(r'<form method="post" action="/login">.*?</form>', page.text, re.DOTALL)
        fields = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
        return self.post("/login", {**fields, "key": key}, **headers)

    def who(self, **headers: str) -> str:
        """Who the API says that this is; empty for nobody."""
        found = self.get("/v1/me", Accept="application/json", **headers)
        return str(found.json()["id"]) if found.status_code == 200 else ""

    @property
    def csrf(self) -> str:
        return csrf_token(self.cookie())


def key(key_id: str) -> str:
    return format_key(key_id, SECRETS[key_id])


def settings_of(issuer: Issuer, folder: Path, base_url: str) -> Settings:
    (folder / "client-secret").write_text(f"{CLIENT_SECRET}\n", encoding="utf-8")
    oidc = {
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "ca_file": folder / "ca.pem",
        "client_secret_file": folder / "client-secret",
    }
    return Settings.model_validate(
        {
            "access": {"oidc": oidc, "grants": GRANTS},
            "api": ApiSettings(keys=KEYS, rate=0, refused_rate=0),
            "notify": {"base_url": base_url},
        }
    )


def app_of(settings: Settings, ledger: Ledger, clock: Clock) -> FastAPI:
    authenticator = build_authenticator(settings, ledger, clock)
    login = build_login(settings, ledger, authenticator, clock)
    return create_app(ledger, settings.api, now=clock, authenticator=authenticator, login=login)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """Two processes over one ledger: by TLS at the public address, and plain on loopback, as a port-forward
    shows it."""
    folder, clock = tmp_path_factory.mktemp("login"), Clock()
    port = free_port()
    with ledger_with_findings(folder, clock) as ledger, running_issuer(folder) as issuer:
        secure = app_of(settings_of(issuer, folder, f"https://127.0.0.1:{port}"), ledger, clock)
        certificate = (folder / "server.pem", folder / "server.key")
        with (
            Ledger.open(f"sqlite:///{folder / 'ledger.db'}", now=clock) as other,
            answering(secure, port, certificate) as url,
        ):
            plain = app_of(settings_of(issuer, folder, ""), other, clock)
            with answering(plain, free_port()) as plain_url:
                yield {
                    "tls": Site(url, secure, issuer, ledger, clock, folder),
                    "plain": Site(plain_url, plain, issuer, other, clock, folder),
                }


@pytest.fixture(params=["tls", "plain"])
def site(request: pytest.FixtureRequest, sites: dict[str, Site]) -> Site:
    return as_new(sites[request.param])


@pytest.fixture
def tls(sites: dict[str, Site]) -> Site:
    return as_new(sites["tls"])


def as_new(site: Site) -> Site:
    site.issuer.reset()
    site.issuer.client_secret = CLIENT_SECRET
    site.clock.now_ms = NOW_MS
    return site


@pytest.fixture
def open_browser() -> Iterator[Callable[[Site], Browser]]:
    opened: list[Browser] = []

    def make(site: Site) -> Browser:
        opened.append(Browser(site))
        return opened[-1]

    yield make
    for each in opened:
        each.http.close()


Open = Callable[[Site], Browser]


def flags(answer: Answer, name: str) -> dict[str, str]:
    """What a cookie was set with."""
    found: SimpleCookie = SimpleCookie()
    for each in answer.headers.get_list("set-cookie"):
        found.load(each)
    return {flag: str(value) for flag, value in found[name].items() if value}


FORM = {"note": "seen"}

ANSWER = "/finding/1/acknowledge"
