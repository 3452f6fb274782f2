"""An app over a real ledger of one day, and clients with keys of every role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.ledger.ledger import Ledger
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.service.notifications.loop import NotificationStatus
from gpucost.service.settings.api import ApiKey, ApiSettings
from tests.api.advisor_worlds import advising, ever_current
from tests.service.worlds import Clock, filled_ledger

SECRETS = {"ada": "s3cret_of-ada", "vera": "s3cret-of-vera", "fin": "f", "root": "r", "prom": "p", "old": "o"}
KEYS = (
    ApiKey(
        id="ada",
        sha256=hash_secret(SECRETS["ada"]),
        role=AccessRole.TEAM_ADMIN,
        teams=frozenset({"research"}),
    ),
    ApiKey(id="vera", sha256=hash_secret(SECRETS["vera"]), teams=frozenset({"vision"})),
    ApiKey(id="fin", sha256=hash_secret(SECRETS["fin"]), role=AccessRole.FINANCE),
    ApiKey(id="root", sha256=hash_secret(SECRETS["root"]), role=AccessRole.ADMIN),
    ApiKey(id="prom", sha256=hash_secret(SECRETS["prom"]), role=AccessRole.METRICS),
    ApiKey(id="old", sha256=hash_secret(SECRETS["old"]), role=AccessRole.ADMIN, expires="2026-10-01"),
)
SETTINGS = ApiSettings(keys=KEYS, max_steps=100, max_page_rows=50)


class Clients:
    """A client per key id; ``anybody`` has none."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.anybody = self._client({})
        for key_id, secret in SECRETS.items():
            headers = {"Authorization": f"Bearer {format_key(key_id, secret)}"}
            setattr(self, key_id, self._client(headers))

    def _client(self, headers: dict[str, str]) -> TestClient:
        return TestClient(self.app, headers=headers, raise_server_exceptions=False)

    def __getattr__(self, name: str) -> TestClient:
        raise AttributeError(name)


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with filled_ledger(tmp_path_factory.mktemp("api"), Clock()) as found:
        yield found


@pytest.fixture(scope="session")
def app(ledger: Ledger) -> FastAPI:
    telling = NotificationStatus((), lambda: SenderStatus({}, {}, 0))
    return create_app(ledger, SETTINGS, now=Clock(), advising=ever_current(advising()), telling=telling)


@pytest.fixture(scope="session")
def clients(app: FastAPI) -> Clients:
    return Clients(app)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
