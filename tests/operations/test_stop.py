"""The end of the service: in order, within its grace, and nothing half-written or half-sent."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpucost.ledger.ledger import Ledger
from tests.operations.serving import (
    SLICES,
    WINDOWS,
    Served,
    clock,
    finish,
    post,
    served,
    telling,
    windows,
)
from tests.service.worlds import NOW_MS
from tests.support.chat_server import SECRET, Trouble, chat_server


def written(found: Served) -> int:
    """Windows in the ledger, as another process sees it."""
    try:
        with closing(sqlite3.connect(f"file:{found.folder / 'ledger.db'}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM ledger_window").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
@pytest.mark.fault(69)
def test_sigterm_in_the_middle_of_a_window_and_of_messages(tmp_path: Path) -> None:
    """One message is taken slowly, one never: the first is sent once, the second stays for the next start."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole = Served(tmp_path / "whole", SLICES)
    expected = finish(whole)
    whole.close()
    with chat_server() as slow, chat_server() as stuck:
        slow.always, stuck.always = Trouble(200, b"ok", after=True, slow_s=3), Trouble(hang=True)
        found = Served(tmp_path / "stopped", {**SLICES, **telling(slow=slow, stuck=stuck)})
        with Ledger.open(found.ledger_url, now=clock) as ledger:
            post(ledger, "slow")
            post(ledger, "stuck")
        found.start()
        try:
            found.until(lambda: bool(slow.asked and stuck.asked) and written(found) >= 1)
            found.process.send_signal(signal.SIGTERM)
            assert found.process.wait(60) == 0
        finally:
            found.close()
        assert len(slow.asked) == len(slow.shown) == 1
        assert stuck.shown == []
        assert SECRET not in found.log
        assert "gpucost.cli.commands.serve stopped" in found.log or '"stopped"' in found.log
    before = windows(found)
    with Ledger.open(found.ledger_url, now=lambda: NOW_MS, create=False) as ledger:
        # From tomorrow: the claim of who was killed in the middle of it has run out.
        due = ledger.due_posts(clock() + 86_400_000, ("slow", "stuck"), 10)
    assert [each.post.channel for each in due] == ["stuck"]
    assert 1 <= len(before) < WINDOWS
    found.write({**found.settings, "notify": {}})
    assert finish(found) == expected
    assert set(before) < set(expected)


@pytest.mark.slow
@pytest.mark.fault(69)
def test_who_stops_says_so_first_and_a_second_signal_ends_it(tmp_path: Path) -> None:
    with served(tmp_path, {"api": {"drain": "1m"}, **SLICES}) as found:
        found.until(lambda: found.status("/healthz/ready") == 200)
        found.process.send_signal(signal.SIGTERM)
        found.until(lambda: found.status("/healthz/ready") == 503)
        assert found.get("/healthz/ready").json() == {"status": "stopping"}
        assert found.status("/v1/findings") == 200, "who still comes is answered"
        found.until(lambda: "stopping: SIGTERM" in found.log)
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(30) == -signal.SIGTERM
