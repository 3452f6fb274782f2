"""What is refused leaves nothing behind: no row of any table, no file, no message in the outbox."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response

from gpucost.access.authenticator import Authenticator, FixedKeys
from gpucost.access.issuer_keys import IssuerFetcher, IssuerKeys
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.oidc_tokens import OidcTokens
from gpucost.access.principal import AccessRole
from gpucost.access.token_claims import OidcRules
from gpucost.api.app import create_app
from gpucost.api.server.errors import ALERTS_PATH
from gpucost.ledger.stores.api_keys import LedgerKeys
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.service.notifications.loop import NotificationStatus
from tests.api.advisor_worlds import advising, job
from tests.api.conftest import SECRETS, SETTINGS
from tests.api.every_route import GRANTS, HEADERS
from tests.api.findings import ledger_with_findings
from tests.api.test_webhook import World as Webhook
from tests.service.test_telling import alert, group
from tests.service.worlds import Clock
from tests.support.oidc_issuer import AUDIENCE, WRONG, Issuer, running_issuer

INJECTIONS = (
    "' OR '1'='1",
    "x'; DROP TABLE finding; --",
    'x"} or vector(1) #',
    "%",
    "../../etc/passwd",
    "a\0b",
    '=cmd|" /C calc"!A0',
    "{{7*7}}${jndi:ldap://x}",
    "x" * 5000,
)
LATER = "2026-11-01"
CHANGES: dict[str, Any] = {
    "/v1/findings/{id}/acknowledge": {"note": "x"},
    "/v1/findings/{id}/mute": {"until": "2026-10-20", "reason": "x"},
    "/v1/findings/{id}/unmute": {},
    "/v1/keys": {"id": "stolen", "teams": ["research"], "expires": LATER},
    "/v1/keys/{id}/revoke": {"reason": "x"},
    "/v1/months/2026-10/close": {"reason": "x", "yes": True},
    ALERTS_PATH: json.loads(group(alert())),
}
"""What changes something, and a body that is in order."""
THEIRS = {"/v1/findings/{id}": "1", "/v1/keys/{id}": "theirs"}


def place(route: str, value: str | None = None) -> str:
    """The route of something of team research; of ``value`` where that is given."""
    for start, theirs in THEIRS.items():
        if route.startswith(start):
            return route.replace("{id}", value or theirs)
    return route


class World(NamedTuple):
    """An app over a ledger in a folder of its own, with an issuer of tokens."""

    app: FastAPI
    client: TestClient
    issuer: Issuer
    folder: Path

    def left(self) -> dict[str, Any]:
        """Every row of every table, but when keys were used last; every file of the folder."""
        found: dict[str, Any] = {}
        with closing(sqlite3.connect(self.folder / "ledger.db")) as connection:
            connection.row_factory = sqlite3.Row
            schema = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
            for name, sql in schema:
                rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
                kept = [{key: row[key] for key in row.keys() if key != "last_used_ms"} for row in rows]  # noqa: SIM118
                found[name] = (sql, sorted(map(repr, kept)))
        for path in sorted(self.folder.rglob("*")):
            if not path.name.startswith("ledger.db"):
                found[str(path.relative_to(self.folder))] = path.read_bytes() if path.is_file() else None
        return found

    def send(
        self, method: str, url: str, authorization: list[str], content: bytes | None = None, **query: str
    ) -> Response:
        headers = [("Authorization", each.encode("latin-1")) for each in authorization]
        headers += [("Content-Type", b"application/json")] if content is not None else []
        return self.client.request(method, url, headers=headers, content=content, params=query or None)

    def post(self, who: str, url: str, body: Any) -> Response:
        return self.send("POST", url, key(who), json.dumps(body).encode())


def key(who: str) -> list[str]:
    return [f"Bearer {format_key(who, (SECRETS | {'alma': 'a', 'late': 'l'})[who])}"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, beside, clock = tmp_path_factory.mktemp("left"), tmp_path_factory.mktemp("issuer"), Clock()
    settings = SETTINGS.model_copy(update={"rate": 0, "refused_rate": 0})
    (folder / "here").mkdir()
    (folder / "secret").write_text("root:of the folder above", "utf-8")
    records = [
        KeyRecord("gone", hash_secret("g"), AccessRole.ADMIN),
        KeyRecord("theirs", hash_secret("t"), AccessRole.VIEWER, frozenset({"research"})),
        KeyRecord("alma", hash_secret("a"), AccessRole.ALERTS),
        # Its keys end with it: a viewer's key without an end would be more than it has.
        KeyRecord(
            "late", hash_secret("l"), AccessRole.TEAM_ADMIN, frozenset({"vision"}), expires_ms=clock() + 10**8
        ),
    ]
    with (
        pytest.MonkeyPatch.context() as patch,
        ledger_with_findings(folder, clock) as ledger,
        running_issuer(beside) as issuer,
    ):
        patch.chdir(folder / "here")
        for record in records:
            ledger.add_key(replace(record, created_ms=clock(), created_by="root"))
        ledger.revoke_key("gone", "root", "")
        fetch = IssuerKeys(issuer.url, IssuerFetcher(issuer.ca_file, proxies=False))
        tokens = OidcTokens(OidcRules(issuer.url, AUDIENCE), GRANTS, fetch)
        fixed = FixedKeys([each.record() for each in settings.keys])
        app = create_app(
            ledger,
            settings,
            now=clock,
            advising=advising(),
            telling=NotificationStatus(("platform",), lambda: SenderStatus({}, {}, 0)),
            authenticator=Authenticator([fixed, LedgerKeys(ledger, clock)], [tokens], clock),
        )
        with TestClient(app, raise_server_exceptions=False) as client:
            found = World(app, client, issuer, folder)
            assert found.post("alma", ALERTS_PATH, CHANGES[ALERTS_PATH]).status_code == 200
            yield found


@pytest.fixture(autouse=True)
def nothing_is_left(world: World, request: pytest.FixtureRequest) -> Iterator[None]:
    """Around every test of this module but those that show that this can fail."""
    before = world.left()
    yield
    if request.cls is None:
        after = world.left()
        assert set(after) == set(before)
        assert [name for name in before if before[name] != after[name]] == []


def test_what_is_left_is_seen(world: World) -> None:
    before = world.left()
    assert {"finding", "finding_event", "api_key", "usage_line"} <= set(before)
    assert before["alert_group"][1], "something waits to be told"


def refused(answer: Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["code"]


@pytest.mark.fault(46)
@pytest.mark.fault(49)
@pytest.mark.parametrize("route", CHANGES)
def test_no_wrong_token_changes_anything(route: str, world: World) -> None:
    content = json.dumps(CHANGES[route]).encode()
    wrong = HEADERS | {what: [f"Bearer {make(world.issuer)}"] for what, make in WRONG.items()}
    for what, headers in wrong.items():
        assert world.send("POST", place(route), headers, content).status_code == 401, what
    nobody = [f"Bearer {world.issuer.token(groups=['others'])}"]
    assert world.send("POST", place(route), nobody, content).status_code == 403
    assert world.send("POST", place(route), [], content, key=key("root")[0]).status_code == 401


@pytest.mark.fault(47)
@pytest.mark.parametrize("route", CHANGES)
def test_nobody_changes_what_is_anothers(route: str, world: World) -> None:
    lead = [f"Bearer {world.issuer.token(groups=['gpu-leads', 'gpu-vision-members'])}"]
    content = json.dumps(CHANGES[route]).encode()
    senders = {who: key(who) for who in ("vera", "fin", "prom", "late")} | {"a lead": lead}
    for who, headers in (senders | ({} if route == ALERTS_PATH else {"alma": key("alma")})).items():
        answer = world.send("POST", place(route), headers, content)
        assert answer.status_code in (403, 404, 422), (who, answer.text)
    # What is one's own is as little a viewer's, or finance's, to change: 2 is of team vision.
    for who in ("vera", "fin", "prom"):
        refused(world.post(who, place(route, "2" if "findings" in route else None), CHANGES[route]))


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    "more",
    [
        {"role": "admin", "teams": []},
        {"role": "finance", "teams": []},
        {"role": "team-admin"},
        {"role": "metrics", "teams": []},
        {"role": "alerts", "teams": []},
        {"teams": []},
        {"teams": ["vision", "research"]},
        {"teams": ["vision"]},
        {"teams": ["vision"], "expires": "2036-01-01"},
        {"teams": ["vision"], "expires": "2026-10-02"},
        {"teams": ["vision"], "created_by": "root"},
        {"teams": ["vision"], "id": "theirs"},
    ],
    ids=str,
)
def test_no_key_is_made_beyond_what_its_maker_has(more: dict[str, Any], world: World) -> None:
    body = {"id": "stolen", "teams": ["vision"], **more}
    refused(world.post("late", "/v1/keys", body))


@pytest.mark.slow
@pytest.mark.fault(50)
@pytest.mark.fault(51)
@pytest.mark.fault(52)
@pytest.mark.fault(54)
def test_no_parameter_changes_anything(world: World) -> None:
    """Every parameter of every read, in query and path, as who may see everything."""
    tried = 0
    for route, item in world.app.openapi()["paths"].items():
        url = place(route.replace("{month}", "2026-10").replace("{uid}", "job-train"))
        url = url.replace("{kind}/{namespace}/{name}", "Job/ml/mine").replace("{id}", "1")
        for parameter in item.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                for value in INJECTIONS:
                    given = (
                        {"window": "2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"}
                        if "window" in str(item)
                        else {}
                    )
                    answer = world.send("GET", url, key("root"), **(given | {parameter["name"]: value}))
                    assert answer.status_code < 500, (url, parameter["name"], value)
                    tried += 1
        for value in (
            "..%2f..%2fsecret",
            "%2e%2e/secret",
            "1%00",
            "x'%3B DROP TABLE unit",
            "file:%2f%2fsecret",
        ):
            name = route.partition("{")[2].partition("}")[0]
            if name and "get" in item:
                answer = world.send("GET", route.replace(f"{{{name}}}", value), key("root"))
                refused(answer)
                assert "of the folder above" not in answer.text
                tried += 1
    assert tried > 200


FIELDS = [(route, name) for route, body in CHANGES.items() for name in [*body, "nobody_knows"]]


@pytest.mark.fault(50)
@pytest.mark.fault(52)
@pytest.mark.parametrize(("route", "field"), FIELDS)
def test_no_field_of_anothers_changes_anything(route: str, field: str, world: World) -> None:
    for value in (*INJECTIONS, ["' OR 1=1"], {"$gt": ""}, 10**40, None, True):
        for who in ("vera", "late"):
            refused(world.post(who, place(route), CHANGES[route] | {field: value}))


@pytest.mark.fault(50)
@pytest.mark.parametrize("route", CHANGES)
def test_no_body_that_is_giant_deep_or_no_json_changes_anything(route: str, world: World) -> None:
    """With a key that may do everything: only the body is wrong."""
    deep = b"[" * 100_000
    nested = json.dumps(CHANGES[route])[:-1].encode() + b', "more": ' + deep + b"]" * 100_000 + b"}"
    giant = json.dumps(CHANGES[route]).encode() + b" " * (4 << 20)
    for content in (b"{", b"null", b"[]", b'"x"', b"\xff\xfe", deep, nested.replace(b"{,", b"{"), giant):
        refused(world.send("POST", place(route), key("root"), content))
    form = world.client.post(
        place(route), headers={"Authorization": key("root")[0]}, data={"note": "x", "id": "stolen"}
    )
    assert form.status_code == 415
    for method in ("PUT", "PATCH", "DELETE"):
        refused(world.send(method, place(route), key("root"), b"{}"))
    for value in ("0", "-1", "1 OR 1=1", "999999", "..%2f1", "a%00b"):
        if "{id}" in route:
            refused(world.post("root", place(route, value), CHANGES[route]))


@pytest.mark.fault(51)
def test_no_manifest_changes_anything(world: World) -> None:
    for name in INJECTIONS:
        manifest = job(name, namespace=name)
        answer = world.post("root", "/v1/advisor/advice", {"manifest": manifest, "suggestions": False})
        assert answer.status_code < 500, answer.text
    refused(world.post("vera", "/v1/advisor/advice", {"manifest": job(namespace="ml"), "suggestions": False}))


@pytest.mark.fault(57)
def test_no_review_of_a_stranger_changes_anything() -> None:
    webhook = Webhook()
    try:
        for content in (b"{", b"null", b"[" * 100_000, b"x" * (4 << 20), b"\xff", b"{}", b'{"request": []}'):
            answer = webhook.post(content)
            assert answer.status_code >= 400 or answer.json()["response"]["allowed"] is True
        assert webhook.post(b"{}", url="/v1/admission/wrong").status_code in (401, 403, 404)
        assert webhook.engine.asked == []
    finally:
        webhook.close()


class TestControl:
    """That the comparison can fail: what is allowed leaves something, in one place each."""

    @pytest.mark.parametrize(
        ("who", "route", "seen"),
        [
            ("ada", "/v1/findings/{id}/acknowledge", "finding"),
            ("root", "/v1/keys", "api_key"),
            ("alma", ALERTS_PATH, "alert_group"),
        ],
    )
    def test_what_is_allowed_is_seen(self, who: str, route: str, seen: str, world: World) -> None:
        before = world.left()
        body = CHANGES[route]
        if route == ALERTS_PATH:
            body = json.loads(group(alert(node="n1"), key="another"))
        answer = world.post(who, place(route), body)
        assert answer.status_code in (200, 201), answer.text
        after = world.left()
        assert before[seen] != after[seen]

    def test_a_file_is_seen(self, world: World) -> None:
        before = world.left()
        Path("x").write_text("y", "utf-8")
        assert set(world.left()) - set(before) == {"here/x"}
