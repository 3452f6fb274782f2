"""What routes keep: one reading for many who ask, nothing after a change, nothing of another scope."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from gpucost.access.keys import format_key
from gpucost.api.app import create_app
from gpucost.api.server.operations_status import OperationsStatus
from gpucost.api.server.rate_limits import RequestGate
from gpucost.api.server.services import ApiServices
from gpucost.domain.errors import LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.service.reporting.report_cache import FlightTicket, ReportCache
from gpucost.service.settings.api import ApiSettings
from tests.api.conftest import KEYS, SECRETS
from tests.api.findings import lives, save
from tests.service.worlds import Clock, filled_ledger

REPORT = "/v1/reports/2026-10"
SPAN = "window=2026-10-01T00:00:00Z/2026-10-02T00:00:00Z"
HEAVY = (REPORT, f"{REPORT}?format=csv", f"/v1/allocations?{SPAN}&group_by=team,job", f"/v1/waste?{SPAN}")
PATHS = (*HEAVY, "/v1/jobs/uid-train", "/v1/findings")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with filled_ledger(tmp_path, Clock()) as found:
        yield found


def fresh(ledger: Ledger, heavy: int = 8) -> FastAPI:
    return create_app(ledger, ApiSettings(keys=KEYS, heavy=heavy), now=Clock())


def ask(app: FastAPI, paths: Sequence[str], key: str = "root") -> list[httpx2.Response]:
    """All at once."""
    headers = {"Authorization": f"Bearer {format_key(key, SECRETS[key])}"}

    async def all_of_them() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
            return await asyncio.gather(*(client.get(path) for path in paths))

    return asyncio.run(all_of_them())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often lines were summed up, which takes a moment."""
    found, real = Counter[str](), Ledger.aggregate

    def aggregate(self: Ledger, *args: object, **named: object) -> object:
        found["aggregate"] += 1
        time.sleep(0.3)
        return real(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "aggregate", aggregate)
    return found


def impatient(app: FastAPI, heavy: int) -> FastAPI:
    services: ApiServices = app.state.services
    services.__dict__["gate"] = RequestGate(services.settings, OperationsStatus(), patience_s=0.1)
    assert services.settings.heavy == heavy
    return app


@pytest.mark.fault(54)
def test_fifty_readers_of_one_report_cost_one_reading(ledger: Ledger, reads: Counter[str]) -> None:
    """They need one turn, however long it takes, and no thread."""
    [alone] = ask(fresh(ledger), [REPORT])
    once = reads.total()
    app = impatient(fresh(ledger, heavy=1), 1)
    answers = ask(app, [REPORT] * 50)
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.content for answer in answers} == {alone.content}
    assert reads.total() == 2 * once
    assert len({answer.headers["x-request-id"] for answer in answers}) == 50
    assert {answer.content for answer in ask(app, [REPORT] * 3)} == {alone.content}
    assert reads.total() == 2 * once


@pytest.mark.fault(54)
def test_different_questions_take_turns_or_are_told_when(ledger: Ledger, reads: Counter[str]) -> None:
    app = impatient(fresh(ledger, heavy=2), 2)
    answers = ask(app, [f"/v1/allocations?{SPAN}&user={number}" for number in range(20)])
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 503)
    assert reads.total() == [answer.status_code for answer in answers].count(200)


def test_who_asks_after_a_change_gets_what_is_now(ledger: Ledger, tmp_path: Path) -> None:
    """Another client writes to the ledger: another process, as far as this one knows."""
    app = fresh(ledger)
    before = [answer.content for answer in ask(app, PATHS)]
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=Clock()) as other:
        save(other, *lives())
    after = [answer.content for answer in ask(app, PATHS)]
    assert after != before
    assert after == [answer.content for answer in ask(fresh(ledger), PATHS)]
    # By itself too.
    number = ledger.findings(EVERYTHING, states=["open"])[0].id
    assert number is not None
    ledger.acknowledge(EVERYTHING, number, "ann")
    assert ask(app, ["/v1/findings"])[0].content != after[-1]


def test_no_scope_gets_what_another_one_asked_for(ledger: Ledger) -> None:
    save(ledger, *lives())
    app = fresh(ledger)
    for key in ("root", "ada", "vera", "fin"):
        kept = [(answer.status_code, answer.content) for answer in ask(app, PATHS, key)]
        alone = [(answer.status_code, answer.content) for answer in ask(fresh(ledger), PATHS, key)]
        assert kept == alone, key


def test_an_error_is_for_all_who_wait_and_for_nobody_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, tries = impatient(fresh(ledger, heavy=1), 1), list[int]()
    asked, real = Counter[Hashable](), ReportCache.ticket

    def ticket(self: ReportCache, key: Hashable) -> FlightTicket:
        found = real(self, key)
        asked[key] += 1
        return found

    def gone(*_: object, **__: object) -> object:
        tries.append(1)
        deadline = time.monotonic() + 60
        while max(asked.values()) < 10 and time.monotonic() < deadline:  # until all of them wait
            time.sleep(0.01)
        raise LedgerUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "aggregate", gone)
        patched.setattr(ReportCache, "ticket", ticket)
        assert {answer.status_code for answer in ask(app, [REPORT] * 10)} == {503}
        assert len(tries) == 1
    assert ask(app, [REPORT])[0].status_code == 200


def _reads_alone(ledger: Ledger) -> bool:
    before = ledger.mark()
    assert ledger.clusters() == ()
    return ledger.mark() == before


def test_the_mark_changes_with_every_commit_and_with_nothing_else(ledger_url: str) -> None:
    with (
        Ledger.open(ledger_url, now=Clock()) as ledger,
        Ledger.open(ledger_url, now=Clock()) as other,
    ):
        # PostgreSQL may be looking after its tables meanwhile.
        assert any(_reads_alone(ledger) for _ in range(20))
        seen = {ledger.mark()}
        for writer in (ledger, other, ledger):
            save(writer, lives()[len(seen) - 1])
            assert ledger.mark() not in seen
            seen.add(ledger.mark())
