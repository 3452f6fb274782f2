"""POST /v1/alerts/alertmanager: who may send, what is refused; it is stored before it is answered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpucost.access.keys import format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.api.app import create_app
from gpucost.api.server.errors import ALERTS_PATH, LARGEST_GROUP
from gpucost.ledger.ledger import Ledger
from gpucost.notify.alertmanager import MOST_ALERTS, parse
from gpucost.notify.sending.delivery import SenderStatus
from gpucost.service.notifications.loop import NotificationStatus
from gpucost.service.settings.api import ApiKey, ApiSettings
from tests.api.test_routes import samples
from tests.service.test_telling import alert, group
from tests.service.worlds import Clock, filled_ledger

KEYS = tuple(
    ApiKey(id=role.value, sha256=hash_secret(role.value), role=role, teams=teams)
    for role, teams in (
        (AccessRole.ALERTS, frozenset()),
        (AccessRole.ADMIN, frozenset()),
        (AccessRole.METRICS, frozenset()),
        (AccessRole.FINANCE, frozenset()),
        (AccessRole.VIEWER, frozenset({"research"})),
    )
)
HEADERS = {"Content-Type": "application/json"}


def status() -> NotificationStatus:
    return NotificationStatus(
        ("platform",), lambda: SenderStatus({("platform", "finding", "sent"): 3}, {}, 0)
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alerts")
    filled_ledger(folder, Clock()).close()
    return folder / "ledger.db"


@pytest.fixture
def ledger(filled: Path, tmp_path: Path) -> Iterator[Ledger]:
    shutil.copy(filled, tmp_path)
    with Ledger.open(f"sqlite:///{tmp_path / filled.name}", now=Clock()) as found:
        yield found


def client(
    ledger: Ledger, telling: NotificationStatus | None = None, role: AccessRole | None = AccessRole.ALERTS
) -> TestClient:
    app = create_app(ledger, ApiSettings(keys=KEYS), now=Clock(), telling=telling)
    headers = HEADERS if role is None else HEADERS | {"Authorization": f"Bearer {format_key(role, role)}"}
    return TestClient(app, headers=headers, raise_server_exceptions=False)


def test_a_group_is_stored_before_it_is_answered(ledger: Ledger) -> None:
    answer = client(ledger, status()).post(ALERTS_PATH, content=group(alert(), alert("resolved", x="y")))
    assert (answer.status_code, answer.json()) == (200, {"alerts": 2})
    ((content, _),) = ledger.alert_groups(ledger.alert_group_times(since_ms=0).keys()).values()
    assert json.loads(content)["alerts"][0]["labels"]["alertname"] == "GpuCostSourceDown"


@pytest.mark.parametrize(
    ("role", "code"),
    [
        (None, 401),
        (AccessRole.VIEWER, 403),
        (AccessRole.FINANCE, 403),
        (AccessRole.METRICS, 403),
        (AccessRole.ADMIN, 200),
    ],
)
def test_only_alertmanager_and_admins_may_send(ledger: Ledger, role: AccessRole | None, code: int) -> None:
    assert client(ledger, status(), role).post(ALERTS_PATH, content=group(alert())).status_code == code
    assert len(ledger.alert_group_times(since_ms=0)) == (code == 200)


@pytest.mark.parametrize("url", ["/v1/reports/2026-10", "/v1/findings", "/metrics", "/readyz"])
def test_alertmanagers_key_reads_nothing(ledger: Ledger, url: str) -> None:
    assert client(ledger, status()).get(url).status_code == 403


def test_without_a_channel_it_is_told_so(ledger: Ledger) -> None:
    answer = client(ledger).post(ALERTS_PATH, content=group(alert()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_told")
    assert "notify.channels" in answer.json()["error"]["message"]
    assert ledger.alert_group_times(since_ms=0) == {}


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(group(alert())) | values).encode()


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        (b"{", 422, "body"),
        (b"null", 422, "payload"),
        (changed(version="3"), 422, "version"),
        (changed(status="fire"), 422, "status"),
        (changed(groupKey=""), 422, "groupKey"),
        (changed(alerts={}), 422, "alerts"),
        (changed(alerts=[{"status": "firing", "labels": {"a": 1}}]), 422, "alerts[0].labels.a"),
        (b"x" * (LARGEST_GROUP + 1), 413, "body"),
        (changed(more=[])[:-2] + b"[]," * 500_000 + b"[]]}", 422, "body"),
    ],
)
def test_what_is_wrong_is_named(ledger: Ledger, content: bytes, code: int, field: str) -> None:
    answer = client(ledger, status()).post(ALERTS_PATH, content=content)
    assert (answer.status_code, answer.json()["error"]["field"]) == (code, field)
    assert ledger.alert_group_times(since_ms=0) == {}


def test_a_group_of_4_mib_is_kept_as_far_as_it_is_read(ledger: Ledger) -> None:
    """Alertmanager does not send again what was answered with a 413: that would be the end of the group."""
    described = {"annotations": {"description": "is down, as \u00e4 says; " * 50}}
    alerts = [alert(instance=str(number)) | described for number in range(3_000)]
    body = json.loads(group(alert(), truncated=7)) | {"alerts": alerts}
    content = json.dumps(body, ensure_ascii=False).encode()
    assert LARGEST_GROUP - 1_000_000 < len(content) <= LARGEST_GROUP == 4 << 20
    answer = client(ledger, status()).post(ALERTS_PATH, content=content)
    assert (answer.status_code, answer.json()) == (200, {"alerts": MOST_ALERTS})
    ((kept, _),) = ledger.alert_groups(ledger.alert_group_times(since_ms=0).keys()).values()
    found = parse(json.loads(kept))
    assert (len(found.alerts), found.truncated) == (MOST_ALERTS, 3_000 - MOST_ALERTS + 7)


def test_forms_and_parameters_are_refused(ledger: Ledger) -> None:
    found = client(ledger, status())
    assert (
        found.post(ALERTS_PATH, content=group(alert()), headers={"Content-Type": "text/plain"}).status_code
        == 415
    )
    assert found.post(f"{ALERTS_PATH}?team=x", content=group(alert())).status_code == 400


def test_metrics_say_how_telling_goes(ledger: Ledger) -> None:
    found = samples(client(ledger, status(), AccessRole.ADMIN).get("/metrics").text)
    posts = found["gpucost_notify_posts_total"]
    assert posts["platform", "finding", "sent"] == 3
    assert posts["platform", "alert", "dead"] == 0
    assert found["gpucost_notify_waiting"] == {("platform",): 0}
    assert found["gpucost_notify_oldest_seconds"] == {("platform",): 0}
    assert found["gpucost_notify_dead_letters"] == {("platform",): 0}
    assert found["gpucost_notify_suppressed_total"]["finding", "cool_down"] == 0
    nobody = samples(client(ledger, None, AccessRole.ADMIN).get("/metrics").text)
    assert not [name for name in nobody if name.startswith("gpucost_notify")]
