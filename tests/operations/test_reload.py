"""A configuration that is read again while the service runs: taken as a whole, or not at all."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gpucost.access.authenticator import Authenticator
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.loader import load_settings
from gpucost.service.settings.model import LedgerSettings, Settings
from gpucost.service.wiring.configuration import ServiceConfiguration, fingerprint, read_as_seen
from gpucost.simulator.cluster import demo_teams_text
from tests.operations.serving import (
    SLICES,
    WINDOWS,
    Served,
    descriptors,
    finish,
    post,
    reloading,
    served,
    telling,
    windows,
)
from tests.service.worlds import DAY, NOW_MS
from tests.support.chat_server import chat_server

RELOADS, POSTS = 20, 3
GOOD = "gpucost_config_last_reload_successful"
HASH = "gpucost_config_hash"


@pytest.mark.slow
@pytest.mark.fault(68)
def test_what_is_wrong_is_not_taken_and_what_is_right_is(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"reload": {"watch": "200ms"}, "detectors": {"enabled": False}}
    with served(tmp_path, settings) as found:
        first = found.metric(HASH)
        assert found.metric(GOOD) == "1.0"
        found.write({**found.settings, "ingest": {"window": "7m"}})
        found.until(lambda: found.metric(GOOD) == "0.0")
        assert "ingest.window: '0:07:00' is not allowed" in found.log
        assert found.metric(HASH) == first
        assert found.status("/v1/findings") == 200, "the one before goes on"

        found.write({**found.settings, "api": {**found.settings["api"], "port": 1, "max_steps": 7}})
        found.until(lambda: "api.port cannot change while the service runs" in found.log)
        assert found.metric(HASH) == first, "nothing of it is taken"

        found.write(found.settings)
        found.until(lambda: found.metric(GOOD) == "1.0")
        rules = tmp_path / "teams.yaml"
        found.write({**found.settings, "teams": {"rules": str(rules)}})
        found.until(lambda: found.metric(GOOD) == "0.0")
        rules.write_text(demo_teams_text(), encoding="utf-8")
        found.until(lambda: found.metric(GOOD) == "1.0" and found.metric(HASH) != first)

        limited = {**found.settings, "api": {**found.settings["api"], "max_steps": 1}}
        found.write({**limited, "log": {"level": "error", "requests": False}})
        window = "/v1/allocations?window=2026-10-01T00:00:00Z/2026-10-01T02:00:00Z&step=1h"
        found.until(lambda: found.status(window) == 422)

        limited_hash = found.metric(HASH)
        found.write({**limited, "reload": {"watch": "0s"}})
        found.until(lambda: found.metric(HASH) not in (limited_hash, ""))
        unwatched = found.metric(HASH)
        found.write({**limited, "reload": {"watch": "0s"}, "ingest": {"poll": "2m"}})
        found.process.send_signal(signal.SIGHUP)  # since it is not watched
        found.until(lambda: found.metric(HASH) not in (unwatched, ""))
        assert found.metric(GOOD) == "1.0"
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(60) == 0
        assert found.log.count("ingest.window: '0:07:00'") == 1, "said once, however often it was looked at"
    with Ledger.open(found.ledger_url, now=lambda: NOW_MS, create=False) as ledger:
        assert ledger.verify() == ()


@pytest.mark.slow
@pytest.mark.fault(68)
def test_reloads_in_the_middle_of_a_day_double_nothing_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Authenticator] = []
    monkeypatch.setattr(Authenticator, "close", lambda self: closed.append(self))
    (tmp_path / "whole").mkdir()
    (tmp_path / "reloaded").mkdir()
    whole = Served(tmp_path / "whole", SLICES)
    expected = finish(whole)
    with chat_server() as chat:
        found = Served(tmp_path / "reloaded", {**SLICES, **telling(chat=chat)})
        with reloading(found) as (made, ledger):
            for number in range(POSTS):
                post(ledger, "chat", str(number))
            made.running.start()
            found.until(lambda: len(ledger.windows(DAY)) > 0)
            interrupted, held = 0, []
            for number in range(RELOADS):
                before = len(ledger.windows(DAY))
                found.write({**found.settings, "api": {**found.settings["api"], "max_steps": 10 + number}})
                assert made.reload()
                interrupted += 0 < before < WINDOWS
                held.append((descriptors(), threading.active_count()))
            assert interrupted > 1, "some of them came while the day was being written"
            found.until(lambda: len(ledger.windows(DAY)) == WINDOWS and len(chat.shown) == POSTS)
            # The first few may open what is kept: connections of the pool.
            for counts in zip(*held, strict=True):
                assert max(counts[10:]) <= max(counts[:10]) + 2, held
    assert len({id(each) for each in closed}) == len(closed) == RELOADS + 2, (
        "with that of whole, and the last"
    )
    assert [shown.payload["text"].count("words") for shown in chat.shown] == [1] * POSTS
    assert len(chat.asked) == POSTS
    assert windows(found) == expected
    for each in (whole, found):
        each.close()


def test_what_is_written_during_a_reload_is_taken_by_the_next_look(tmp_path: Path) -> None:
    found = Served(tmp_path, {"detectors": {"enabled": False}})

    def steps(number: int) -> None:
        found.write({**found.settings, "api": {**found.settings["api"], "max_steps": number}})

    with reloading(found) as (made, _):
        made.running.start()
        steps(7)
        made.taken = lambda *_: steps(8)  # while it takes over
        assert made.look()
        assert made.configuration.settings.api.max_steps == 7
        made.taken = lambda *_: None
        assert made.look()
        assert made.configuration.settings.api.max_steps == 8
        assert not made.look()
    found.close()


def test_what_is_written_while_files_are_read_has_another_fingerprint(tmp_path: Path) -> None:
    settings, token = tmp_path / "c.yaml", tmp_path / "token"
    token.write_text("one", encoding="utf-8")
    settings.write_text(f"prometheus: {{bearer_token_file: {token}}}", encoding="utf-8")
    writes = ["two", "three"]

    def read() -> ServiceConfiguration:
        found = ServiceConfiguration.read(lambda: load_settings(settings))
        if writes:
            token.write_text(writes.pop(0), encoding="utf-8")
        return found

    found, seen = read_as_seen(read, settings, ())
    assert not writes, "what it names was not known before the first reading"
    assert found.files() == (token,)
    assert seen != fingerprint(found.files(), settings)
    found, seen = read_as_seen(read, settings, found.files())
    assert seen == fingerprint(found.files(), settings)


def test_files_that_the_charge_policy_names_are_watched(tmp_path: Path) -> None:
    quotas, policy, settings = (tmp_path / name for name in ("q.yaml", "p.yaml", "c.yaml"))
    quotas.write_text("version: 1\nquotas: [{team: a, model: H100, gpus: 1}]\n", encoding="utf-8")
    policy.write_text("version: 1\nname: p\nquotas_file: q.yaml\n", encoding="utf-8")
    settings.write_text(f"charges: {{policy: {policy}}}", encoding="utf-8")
    found, seen = read_as_seen(
        lambda: ServiceConfiguration.read(lambda: load_settings(settings)), settings, (policy, quotas)
    )
    assert found.files() == (policy, quotas)
    before = found.hash
    quotas.write_text("version: 1\nquotas: [{team: a, model: H100, gpus: 2}]\n", encoding="utf-8")
    assert seen != fingerprint(found.files(), settings)
    assert ServiceConfiguration.read(lambda: load_settings(settings)).hash != before


def configuration(**settings: Any) -> ServiceConfiguration:
    return ServiceConfiguration.read(lambda: Settings(**settings))


def test_what_a_process_cannot_change_is_named() -> None:
    first = configuration()
    other = configuration(
        api=ApiSettings(port=1, max_steps=3),
        ledger=LedgerSettings(url="sqlite:///other.db"),  # type: ignore[arg-type]
        webhook={"deadline_ms": 400},
    )
    assert first.fixed_changes(other) == ("api.port", "webhook.deadline_ms", "ledger.url")
    assert first.fixed_changes(configuration(api=ApiSettings(max_steps=3))) == ()


def test_the_hash_is_of_what_is_in_force_and_of_no_secret() -> None:
    first = configuration(prometheus={"bearer_token": "one-secret"})
    assert first.hash == configuration(prometheus={"bearer_token": "another-secret"}).hash
    assert first.hash != configuration(prometheus={"timeout": "1m"}).hash


def test_files_are_told_apart_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUCOST_CONFIG", raising=False)
    for name, text in (("..1", "a-secret-token"), ("..2", "a-secret-token"), ("..3", "another-token")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text, encoding="utf-8")
    data = tmp_path / "..data"
    data.symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    settings = tmp_path / "c.yaml"
    settings.write_text(f"prometheus: {{bearer_token_file: {tmp_path / 'token'}}}", encoding="utf-8")
    found = ServiceConfiguration.read(lambda: load_settings(settings))
    assert found.files() == (tmp_path / "token",)
    assert "a-secret-token" in found.secrets()

    def turn(target: str) -> str:
        (tmp_path / "new").symlink_to(target)
        (tmp_path / "new").replace(data)
        return fingerprint(found.files())

    first = fingerprint(found.files())
    assert turn("..2") == first, "other links to the same"
    assert turn("..3") != first
    assert turn("..1") == first
    (tmp_path / "..1" / "token").unlink()
    assert fingerprint(found.files()) != first
