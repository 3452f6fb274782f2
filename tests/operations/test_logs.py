"""The log: a line per request, one id in all of them, nothing forged and nothing secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.api.server.middleware import REQUEST_ID
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiKey, ApiSettings
from gpucost.service.settings.model import LedgerSettings, PrometheusSettings, Settings
from gpucost.service.wiring.configuration import ServiceConfiguration
from gpucost.settings.logs import SecretRedactor, configure, one_line, request_id, set_levels
from tests.service.worlds import Clock

SECRET = "only-the-caller-knows-this"
PASSWORD = "hunter2/of the:ledger"
URL = "postgresql+psycopg://gpucost:hunter2%2Fof%20the%3Aledger@db.example/gpucost?sslpassword=deadbeef"
HOOK = "https://hooks.example/services/T000/B000/XXXXhunter2"
LIBRARIES = ("uvicorn.error", "sqlalchemy.engine", "httpx2", "alembic", "urllib3.connectionpool")
Lines = Callable[[], str]


@pytest.fixture(params=["text", "json"])
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    """What was logged; set up as the service does, and taken down again."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    settings = Settings(
        ledger=LedgerSettings(url=URL),  # type: ignore[arg-type]
        prometheus=PrometheusSettings(bearer_token="token-of-prometheus"),  # type: ignore[arg-type]
    )
    secrets = ServiceConfiguration.read(lambda: settings).secrets()
    configure(request.param, "debug", SecretRedactor([*secrets, HOOK]), stream=stream)
    try:
        yield stream.getvalue
    finally:
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(logging.NOTSET)
        set_levels("warning")
        root.handlers[:] = before
        root.setLevel(level)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    keys = (
        ApiKey(id="fin", sha256=hash_secret(SECRET), role=AccessRole.FINANCE),
        ApiKey(id="prom", sha256=hash_secret(SECRET), role=AccessRole.METRICS),
    )
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=Clock()) as ledger:
        found = create_app(ledger, ApiSettings(keys=keys), now=Clock())

        def breaks() -> None:
            password, hook = PASSWORD, HOOK
            raise RuntimeError(f"cannot connect to {URL}: {password!r}; then {hook}\n2026-10-01 forged")

        found.add_api_route("/breaks", breaks)
        yield found


def client(app: FastAPI, key_id: str = "fin", secret: str = SECRET) -> TestClient:
    headers = {"Authorization": f"Bearer {format_key(key_id, secret)}"}
    return TestClient(app, headers=headers, raise_server_exceptions=False)


def records(lines: Lines) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines().splitlines()]


def test_a_line_per_request_says_who_and_what_and_not_the_path(app: FastAPI, lines: Lines) -> None:
    answered = client(app).get("/v1/jobs/hunter2-job", headers={REQUEST_ID: "mine-1.2_3"})
    assert (answered.status_code, answered.headers[REQUEST_ID]) == (404, "mine-1.2_3")
    text = lines()
    assert all(word in text for word in ("mine-1.2_3", "/v1/jobs/{uid}", "404", "fin", "GET"))
    assert "hunter2-job" not in text
    client(app).get("/healthz")
    client(app).get("/healthz/ready")
    assert "/healthz" not in lines()


@pytest.mark.parametrize("given", ["", "a" * 65, "two words", "a\tb", "ä", "a/b", "x;y"])
def test_an_id_that_is_none_is_replaced(given: str, app: FastAPI) -> None:
    answered = client(app).get("/healthz", headers={REQUEST_ID: given.encode("latin-1")})
    assert answered.headers[REQUEST_ID] not in ("", given)


def test_every_answer_has_an_id(app: FastAPI, lines: Lines) -> None:
    asking = client(app)
    for answered, status in (
        (asking.get("/nope"), 404),
        (asking.post("/v1/findings/1/mute", content=b"x" * 70_000), 413),
        (asking.get("/v1/reports/nope"), 422),
        (client(app, secret="wrong").get("/"), 401),
        (client(app, "prom").get("/v1/findings"), 403),
        (asking.delete("/v1/findings"), 405),
    ):
        assert answered.status_code == status
        assert answered.headers[REQUEST_ID] in lines()
    broken = asking.get("/breaks")
    assert broken.status_code == 500
    assert broken.headers[REQUEST_ID] in broken.json()["error"]["message"]
    assert lines().count(broken.headers[REQUEST_ID]) >= 2, "its trace and its line"


@pytest.mark.fault(56)
def test_nothing_secret_is_in_the_log(app: FastAPI, lines: Lines) -> None:
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.DEBUG)
    key = format_key("fin", SECRET)
    asking = client(app)
    asking.get(f"/v1/reports/2026-10?access_token={key}")
    asking.get("/v1/findings", headers={"Referer": f"https://ada:{SECRET}@example/?k={key}"})
    client(app, secret=f"{SECRET}x").get("/")
    TestClient(app, headers={"Authorization": f"Bearer eyJhbGciOi.{SECRET}.sig"}).get("/")
    TestClient(app).get(f"http://ada:{SECRET}@testserver/v1/findings")
    assert asking.get("/breaks").status_code == 500
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        logger.debug("headers %s", {"authorization": f"Bearer {key}", "x": f"Bearer {SECRET}"})
        logger.debug("HTTP Request: POST %s", HOOK)
        logger.debug("GET %s", "http://p.example/api/v1/query?token=token-of-prometheus")
        try:
            raise ConnectionError(f"{URL} said no to {PASSWORD}")
        except ConnectionError:
            logger.exception("engine %s", URL)
    text = lines()
    assert "/breaks" in text
    assert "db.example" in text, "the place stays"
    for secret in (SECRET, "hunter2", PASSWORD, "XXXXhunter2", "token-of-prometheus", "deadbeef"):
        assert secret not in text, secret
        assert json.dumps(secret)[1:-1] not in text, secret


def test_no_line_can_be_forged(app: FastAPI, lines: Lines) -> None:
    forged = "2026-10-01T00:00:00.000Z INFO gpucost all is well"
    logging.getLogger("gpucost").warning("host %s", f"x\r\n{forged}\x1b[31m\x85\u2028{forged}\x00")
    with request_id("abc"):
        client(app).request("BREW\n", "/breaks")
    TestClient(app).get("/", headers={"Host": "x\x0b\x1b[2J" + forged})
    client(app).get("/breaks")
    text = lines()
    assert "all is well" in text
    for line in text.split("\n"):
        assert not line.startswith(forged)
        assert line.isprintable()
        assert not line or line[0] in "2{ "


@pytest.mark.parametrize("text", ["plain", "umläut", "a\nb", "\x1b[0m", "\u202e", "\ud800", "\x00"])
def test_one_line(text: str) -> None:
    found = one_line(text)
    assert found.isprintable()
    assert (found == text) is text.isprintable()


def test_libraries_are_heard_from_warnings_on() -> None:
    try:
        set_levels("debug", requests=False)
        assert logging.getLogger("gpucost.service").isEnabledFor(logging.DEBUG)
        assert not any(logging.getLogger(name).isEnabledFor(logging.INFO) for name in LIBRARIES)
        assert not logging.getLogger("gpucost.requests").isEnabledFor(logging.INFO)
    finally:
        set_levels("warning")
