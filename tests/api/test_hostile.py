"""What an attacker sends, and what a ledger in trouble says: always the one error shape, never a 500."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.access.code_flow import LoginWays
from gpucost.access.grants import GroupGrants
from gpucost.access.keys import format_key
from gpucost.access.sessions import SessionAuthority
from gpucost.api.app import create_app
from gpucost.domain.errors import InputError, LedgerConflict, LedgerError, MonthClosed
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS
from gpucost.ledger.db.database import LedgerDatabase, place_of
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import KEYS, SECRETS, SETTINGS, Clients
from tests.service.worlds import DAY, NOW_MS, Clock

ALLOCATIONS = "/v1/allocations?window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (f"{ALLOCATIONS}&team=a%00b", "team"),
        (f"{ALLOCATIONS}&page=1_0", "page"),
        (f"{ALLOCATIONS}&limit=%EF%BC%91", "limit"),
        ("/v1/jobs/a%00b", "uid"),
        ("/v1/reports/%EF%BC%922026-10", "month"),
    ],
)
def test_what_no_name_and_no_number_is_made_of_is_refused(path: str, field: str, clients: Clients) -> None:
    found = clients.root.get(path)
    assert found.status_code == 422
    assert found.json()["error"]["field"] in (field, f"job_{field}")


def test_the_ledger_refuses_nul_by_itself(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="team"):
        ledger.aggregate(EVERYTHING, DAY, ("team",), filters={"team": ["a\0b"]})


@pytest.mark.parametrize(
    ("error", "status"),
    [(LedgerConflict("x"), 409), (MonthClosed("x"), 409), (LedgerError("secret detail"), 503)],
)
def test_every_error_of_the_ledger_has_the_one_shape(
    error: LedgerError, status: int, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Ledger, "aggregate", refuse)
    monkeypatch.setattr(Ledger, "windows", refuse)
    # Answers are kept while the ledger stands: this is asked nowhere else.
    found = clients.root.get("/v1/allocations?window=2026-10-01T03:00:00Z/2026-10-01T05:00:00Z")
    assert found.status_code == status
    assert found.json()["error"]["code"].startswith("ledger_")
    assert "secret" not in found.text


@pytest.mark.fault(23)
def test_a_dead_loop_is_not_ready(ledger: Ledger) -> None:
    status = LoopStatus(lambda: 0.0)
    app = create_app(ledger, ApiSettings(auth="off"), now=Clock(), status=status)
    ask = Clients(app).anybody
    host = {"Host": "localhost"}
    status.started(1000)
    status.turned(NOW_MS)
    assert ask.get("/readyz", headers=host).status_code == 200
    stamp = f"gpucost_loop_last_turn_timestamp_seconds {NOW_MS / 1000!r}"
    assert stamp.partition(" ")[0] in ask.get("/metrics", headers=host).text
    status.ended()
    found = ask.get("/readyz", headers=host)
    assert found.status_code == 503
    assert found.json()["error"]["code"] == "loop_stalled"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://u:p@hunter2@h/db",
        "postgresql+psycopg://u:p@a/hunter2@h/db",
        "postgresql://h/db?password=hunter2",
        "postgresql+psycopg://u:p@h:hunter2/db",
    ],
)
def test_no_part_of_a_password_is_shown(url: str) -> None:
    assert "hunter2" not in place_of(url)
    with pytest.raises(InputError) as caught:
        LedgerDatabase.open(url, 100)
    assert "hunter2" not in str(caught.value)


def test_behind_a_proxy_that_passes_nothing_on_the_session_is_kept_over_tls_only(ledger: Ledger) -> None:
    """As nginx on the same machine does unless it is told otherwise: the request looks like one of loopback.
    A server of a neighbouring name could set a cookie without the prefix, and choose the session."""
    public, clock = "https://gpucost.example.com", Clock()
    keys = Authenticator([FixedKeys([key.record() for key in KEYS])], [], clock)
    sessions = SessionAuthority(ledger, keys, GroupGrants(), "", HOUR_MS, clock)
    app = create_app(ledger, SETTINGS, now=clock, authenticator=keys, login=LoginWays(sessions, None, public))
    client = TestClient(app, base_url="http://localhost:8080", follow_redirects=False)

    def form(url: str, cookie: str, **fields: str) -> list[str]:
        sent = {"Origin": public, "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        answered = client.post(url, content=urlencode(fields), headers=sent)
        assert answered.status_code == 303
        return answered.headers.get_list("set-cookie")

    shown = client.get("/login")
    [held] = shown.headers.get_list("set-cookie")
    [csrf] = re.findall(r'name="csrf" value="(\w+)"', shown.text)
    given, _ = form("/login", held.partition(";")[0], csrf=csrf, key=format_key("ada", SECRETS["ada"]))
    session, *flags = given.split("; ")
    assert session.startswith("__Host-gpucost=")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} < set(flags)
    who = {"Cookie": f"{session}; gpucost=tossed"}
    assert client.get("/v1/me", headers=who).json()["id"] == "ada"
    page = client.get("/login", headers=who).text
    token = re.findall(r'name="csrf" value="(\w+)"', page)[0]
    [dropped] = form("/logout", session, csrf=token)
    assert dropped.startswith('__Host-gpucost="";')
    assert client.get("/v1/me", headers=who).status_code == 401
