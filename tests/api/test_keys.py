"""GET /v1/me and keys over the API: who makes which, and never more than the maker has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.access.authenticator import Authenticator
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal, scope_of
from gpucost.api.app import create_app
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiKey, ApiSettings
from tests.api.conftest import KEYS, SECRETS, Clients
from tests.service.worlds import NOW_MS, Clock
from tests.support.ledgers import new_ledger

SECRET = "north-s3cret"
NORTH = ApiKey(
    id="north",
    sha256=hash_secret(SECRET),
    role=AccessRole.TEAM_ADMIN,
    teams=frozenset({"research", "vision"}),
    clusters=frozenset({"c", "d"}),
    expires="2026-12-01",
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=clock) as found:
        yield found


@pytest.fixture
def people(own: Ledger, clock: Clock) -> Clients:
    clients = Clients(create_app(own, ApiSettings(keys=(*KEYS, NORTH)), now=clock))
    clients.__dict__["north"] = clients._client({"Authorization": f"Bearer {format_key('north', SECRET)}"})
    return clients


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_everybody_is_told_who_they_are(people: Clients) -> None:
    assert people.ada.get("/v1/me").json() == {
        "id": "ada",
        "role": "team-admin",
        "teams": ["research"],
        "clusters": None,
        "method": "key",
    }
    assert people.north.get("/v1/me").json()["clusters"] == ["c", "d"]
    assert people.prom.get("/v1/me").json()["role"] == "metrics"
    assert people.anybody.get("/v1/me").status_code == 401


def test_a_key_is_made_told_once_and_works_at_once(people: Clients, own: Ledger) -> None:
    body = {"id": "bot", "role": "finance", "expires": "2026-11-01", "note": "for the wiki"}
    made = people.root.post("/v1/keys", json=body)
    assert made.status_code == 201, made.text
    assert made.headers["cache-control"] == "no-store"
    key, row = made.json()["key"], made.json()["made"]
    assert row == {
        "id": "bot",
        "role": "finance",
        "teams": None,
        "clusters": None,
        "state": "valid",
        "expires": "2026-11-01T00:00:00Z",
        "created_at": "2026-10-02T01:00:00Z",
        "created_by": "root",
        "revoked_at": None,
        "revoked_by": None,
        "last_used": None,
        "note": "for the wiki",
    }
    assert people.anybody.get("/v1/me", headers=bearer(key)).json()["id"] == "bot"
    listed = people.root.get("/v1/keys")
    assert [each["id"] for each in listed.json()["keys"]] == ["bot"]
    assert key.removeprefix("gpc_bot_") not in listed.text
    assert hash_secret(key.removeprefix("gpc_bot_")) not in listed.text
    [entry] = own.audit(EVERYTHING)
    assert (entry.action, entry.author, entry.subject) == ("key issue", "root", "bot")


@pytest.mark.fault(49)
def test_a_revoked_and_an_expired_key_are_401(people: Clients, clock: Clock) -> None:
    keys = {}
    for name, more in (("gone", {}), ("late", {"expires": "2026-10-03"})):
        made = people.root.post("/v1/keys", json={"id": name, "role": "finance", **more})
        keys[name] = made.json()["key"]
        assert people.anybody.get("/v1/me", headers=bearer(keys[name])).status_code == 200
    revoked = people.root.post("/v1/keys/gone/revoke", json={"reason": "left"})
    assert (revoked.status_code, revoked.json()["state"]) == (200, "revoked")
    clock.now_ms = NOW_MS + DAY_MS
    nobody = people.anybody.get("/v1/me", headers=bearer("gpc_nobody_x"))
    for key in keys.values():
        refused = people.anybody.get("/v1/me", headers=bearer(key))
        assert (refused.status_code, refused.content) == (401, nobody.content)
    assert people.root.post("/v1/keys/gone/revoke", json={}).json() == revoked.json(), "for good"
    again = people.root.post("/v1/keys", json={"id": "gone", "role": "finance"})
    assert (again.status_code, again.json()["error"]["field"]) == (422, "id")


@pytest.mark.fault(49)
def test_a_key_in_the_query_string_is_refused_and_not_logged(
    people: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    key = people.root.post("/v1/keys", json={"id": "bot", "role": "admin"}).json()["key"]
    for client, status in ((people.root, 400), (people.anybody, 401)):
        for url in ("/v1/me", "/v1/keys"):
            refused = client.get(url, params={"key": key})
            assert refused.status_code == status
            assert key not in refused.text
    assert key not in caplog.text


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("who", "body", "field"),
    [
        ("ada", {"role": "admin"}, "role"),
        ("ada", {"role": "finance"}, "role"),
        ("ada", {"role": "team-admin", "teams": ["research"]}, "role"),
        ("ada", {"role": "metrics"}, "role"),
        ("ada", {"teams": ["vision"]}, "teams"),
        ("ada", {"teams": ["research", "vision"]}, "teams"),
        ("ada", {"teams": []}, "teams"),
        ("north", {"teams": ["vision"], "clusters": ["e"], "expires": "2026-11-01"}, "clusters"),
        ("north", {"teams": ["vision"], "expires": "2027-01-01"}, "expires"),
        ("north", {"teams": ["vision"]}, "expires"),
        ("root", {"role": "admin", "teams": ["vision"]}, "teams"),
        ("root", {"role": "king"}, "role"),
        ("root", {"id": "ada", "role": "admin"}, "id"),
        ("root", {"id": "A B", "role": "admin"}, "id"),
        ("root", {"role": "admin", "expires": "2020-01-01"}, "expires"),
        ("root", {"role": "admin", "expires": "soon"}, "expires"),
        ("root", {"role": "admin", "sha256": "0" * 64}, "sha256"),
        ("root", {"role": "admin", "note": "x" * 1001}, "note"),
        ("root", {"role": "admin", "clusters": "c"}, "clusters"),
    ],
)
def test_a_key_never_grants_more_than_its_maker_has(
    who: str, body: dict[str, Any], field: str, people: Clients, own: Ledger
) -> None:
    refused = getattr(people, who).post("/v1/keys", json={"id": "new", **body})
    assert refused.status_code in (400, 422), refused.text
    assert refused.json()["error"]["field"] == field
    assert own.api_keys() == ()


@pytest.mark.fault(47)
@pytest.mark.parametrize("method", [AuthenticationMethod.OIDC, AuthenticationMethod.KUBERNETES])
def test_a_token_makes_no_key_that_is_for_good(
    method: AuthenticationMethod, own: Ledger, clock: Clock
) -> None:
    asks = Principal("oidc:ann", AccessRole.ADMIN, scope_of(AccessRole.ADMIN, frozenset(), None), method)
    asked = Authenticator([], [_OneToken("a-token", asks)], clock)
    with TestClient(create_app(own, ApiSettings(), now=clock, authenticator=asked)) as client:
        client.headers |= bearer("a-token")
        _make_no_lasting_key(client, own)


class _OneToken:
    """Knows one token, as that of one person."""

    def __init__(self, token: str, principal: Principal) -> None:
        self._known = {token: principal}

    def check(self, token: str, now_ms: int) -> Principal | None:
        return self._known.get(token) if now_ms >= NOW_MS else None

    def must_ask(self, token: str, now_ms: int) -> bool | None:
        return None if self.check(token, now_ms) is None else False

    def close(self) -> None:
        self._known.clear()


def _make_no_lasting_key(client: TestClient, own: Ledger) -> None:
    for expires in ({}, {"expires": "2027-01-01"}):
        refused = client.post("/v1/keys", json={"id": "bot", "role": "admin", **expires})
        assert refused.status_code == 422
        error = refused.json()["error"]
        assert error["field"] == "expires"
        assert error["allowed"] == "at most 2026-12-31T01:00:00Z, 90 days ahead: you ask with a token"
    assert own.api_keys() == ()
    body = {"id": "bot", "role": "admin", "expires": "2026-12-31"}
    assert client.post("/v1/keys", json=body).status_code == 201


@pytest.mark.fault(49)
def test_a_revocation_names_the_valid_keys_that_the_key_made(people: Clients, clock: Clock) -> None:
    body = {"id": "lead", "role": "team-admin", "teams": ["research"]}
    key = people.root.post("/v1/keys", json=body).json()["key"]
    for name, more in (("late", {"expires": "2026-10-02T02:00:00Z"}), ("eve", {}), ("off", {})):
        body = {"id": name, "teams": ["research"], **more}
        assert people.anybody.post("/v1/keys", json=body, headers=bearer(key)).status_code == 201
    clock.now_ms += 2 * HOUR_MS
    assert people.root.post("/v1/keys/off/revoke", json={}).json()["made"] == []
    revoked = people.root.post("/v1/keys/lead/revoke", json={}).json()
    assert (revoked["state"], revoked["made"]) == ("revoked", ["eve"])


def test_a_team_admin_makes_viewers_of_its_own(people: Clients, own: Ledger) -> None:
    assert people.ada.post("/v1/keys", json={"id": "eve", "teams": ["research"]}).status_code == 201
    body = {"id": "norbert", "teams": ["vision"], "expires": "2026-12-01"}
    assert people.north.post("/v1/keys", json=body).json()["made"]["clusters"] == ["c", "d"], "as its maker"
    found = own.key("norbert")
    assert found is not None
    assert (found.teams, found.clusters) == (frozenset({"vision"}), frozenset({"c", "d"}))


@pytest.mark.fault(47)
def test_a_team_admin_neither_sees_nor_revokes_the_keys_of_others(people: Clients, own: Ledger) -> None:
    def keep(name: str, role: AccessRole, *teams: str, clusters: frozenset[str] | None = None) -> None:
        sha256 = hash_secret(name)
        record = KeyRecord(name, sha256, role, frozenset(teams), clusters, created_ms=NOW_MS, created_by="x")
        own.add_key(record)

    keep("boss", AccessRole.ADMIN)
    keep("cash", AccessRole.FINANCE)
    keep("lead", AccessRole.TEAM_ADMIN, "research")
    keep("mine", AccessRole.VIEWER, "research")
    keep("near", AccessRole.VIEWER, "research", clusters=frozenset({"c"}))
    keep("theirs", AccessRole.VIEWER, "vision")
    keep("wider", AccessRole.VIEWER, "research", "vision")
    seen = {
        who: {key["id"] for key in getattr(people, who).get("/v1/keys").json()["keys"]}
        for who in ("ada", "north", "root")
    }
    everything = {"boss", "cash", "lead", "mine", "near", "theirs", "wider"}
    assert seen == {"ada": {"mine", "near"}, "north": {"near"}, "root": everything}
    missing = people.ada.post("/v1/keys/nobody/revoke", json={})
    for name in everything - seen["ada"]:
        foreign = people.ada.post(f"/v1/keys/{name}/revoke", json={})
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace(name, "nobody") == missing.text
    assert people.ada.post("/v1/keys/mine/revoke", json={}).status_code == 200
    assert [key.id for key in own.api_keys() if key.revoked_ms is not None] == ["mine"]


@pytest.mark.parametrize("who", ["vera", "fin", "prom"])
def test_other_roles_keep_no_keys(who: str, people: Clients, own: Ledger) -> None:
    client = getattr(people, who)
    assert client.get("/v1/keys").status_code == 403
    assert client.post("/v1/keys", json={"id": "x", "teams": ["vision"]}).status_code == 403
    assert client.post("/v1/keys/x/revoke", json={}).status_code == 403
    assert own.api_keys() == ()
    assert who in SECRETS


def test_a_ledger_that_is_down_is_a_503_for_its_keys_and_none_for_the_settings(
    people: Clients, own: Ledger, clock: Clock, tmp_path: Path
) -> None:
    key = people.root.post("/v1/keys", json={"id": "bot", "role": "finance"}).json()["key"]
    assert people.anybody.get("/v1/me", headers=bearer(key)).status_code == 200
    own.close()
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere")
    (tmp_path / "ledger.db").mkdir()
    assert people.anybody.get("/v1/me", headers=bearer(key)).status_code == 200, "read seconds ago"
    clock.now_ms += HOUR_MS
    undecided = people.anybody.get("/v1/me", headers=bearer(key))
    assert (undecided.status_code, undecided.json()["error"]["code"]) == (503, "undecided")
    assert people.root.get("/v1/me").status_code == 200
    assert people.root.get("/v1/keys").status_code == 503
