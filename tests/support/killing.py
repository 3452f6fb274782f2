"""SIGKILL of the service, of PostgreSQL and of Prometheus, in turn, while the service catches up with a week.

When the next one dies follows from how far the ledger is, so that kills fall into work however fast the
machine is, and from a seed: some while a transaction that writes is open, the others at any instant. The
first comes when a finding is told, the last ones when the week's digest is: the room has it then, and perhaps
nobody has noted so.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window
from tests.support.chat_server import ChatServer, chat_server
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, new_cluster
from tests.support.programs import Program, answers
from tests.support.prometheus import prometheus_command
from tests.support.replayed_week import (
    END_MS,
    NOW_MS,
    WEEK,
    Held,
    fill_undisturbed,
    held,
    settings_of,
    write_blocks,
)
from tests.support.service_process import ahead, said, service

_WRITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
_COUNT = "SELECT count(*), count(*) FILTER (WHERE state <> 'open') FROM ledger_window"
_WINDOWS_MS = HOUR_MS
_FINAL = "SELECT count(*), 1 FROM waste_window WHERE state = 'final'"
_UNSENT = "SELECT count(*), 1 FROM notify_post WHERE state = 'waiting'"
_RECEIPTS = "SELECT count(*), count(DISTINCT (channel, key)) FROM notify_post WHERE kind = 'receipt'"
_CLAIMED_MS = 3 * MINUTE_MS
"""Longer than a claim on a message holds: a process that claims one and dies has not sent it, as far as
others know."""
_LONGEST_S = 900.0


@dataclass
class Killed:
    """What was killed, and what it did then; and what came out of it."""

    windows: int
    victims: Counter[str] = field(default_factory=Counter)
    while_windows_were_due: int = 0
    while_writing: int = 0
    while_telling: int = 0
    took_s: float = 0.0
    undisturbed: Held | None = None
    disturbed: Held | None = None
    digests_told: int = 0
    findings_told: int = 0
    findings_repeated: int = 0
    receipts_told: int = 0
    """Jobs whose receipt is in the room."""
    receipts: Sequence[int] = ()
    """In the outbox: all of them, and how many are of different jobs."""
    verified: str = ""
    """What ``gpucost month verify`` said in the end."""

    @property
    def kills(self) -> int:
        return self.victims.total()


@dataclass
class _World:
    """The programs, and the only look at the ledger that needs none of gpucost."""

    server: PostgresServer
    postgres: Program
    prometheus: Program
    service: Program
    chat: ChatServer
    windows: int
    of_week: int

    def asked(self, statement: str) -> Sequence[int]:
        """The first row; nothing while the database does not answer."""
        try:
            with self.server.connect("ledger") as connection:
                return connection.execute(statement.encode()).fetchone() or ()
        except psycopg.Error:
            return ()

    def written(self) -> int:
        return (*self.asked(_COUNT), 0)[0]

    def until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LONGEST_S
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited for {what}\n{self.service.log.read_text()[-3000:]}")
            time.sleep(0.01)

    def until_written(self, windows: int) -> None:
        self.until(f"{windows} windows", lambda: self.written() >= windows)

    def has_told(self, *, digest: bool) -> bool:
        """Whether the room has a digest, or a finding."""
        return any(
            _is_digest(each.text) == digest for each in self.chat.shown if not _is_receipt(each.payload)
        )

    def wait_for_a_write(self) -> None:
        """Until a transaction that writes is open; for two seconds at most: the detectors' turn has none."""
        deadline = time.monotonic() + 2
        with self.server.connect("ledger") as connection:
            while time.monotonic() < deadline:
                found = connection.execute(_WRITING.encode()).fetchone()
                if found is not None and found[0]:
                    return

    def kill_a_backend(self, rng: random.Random) -> None:
        """Of PostgreSQL, of those that serve gpucost; the server then ends all and recovers by itself."""
        query = "SELECT pid FROM pg_stat_activity WHERE datname = 'ledger' AND pid <> pg_backend_pid()"
        with self.server.connect("ledger") as connection:
            pids = sorted(row[0] for row in connection.execute(query.encode()))
        os.kill(rng.choice(pids) if pids else self.postgres.pid, signal.SIGKILL)


def kill_in_turn(folder: Path, start_ms: int, kills: int, *, seed: int) -> Killed:
    """Replay from ``start_ms`` (ms UTC) to the Monday, with ``kills`` of them (four or more), and once
    undisturbed. It may take 40 minutes: then the next window ends."""
    span = Window(start_ms, END_MS)
    write_blocks(folder / "blocks", start_ms)
    rng = random.Random(seed)
    with _world(folder, span) as world:
        found = Killed(world.windows)
        calm = f"sqlite:///{folder / 'calm.db'}"
        room = settings_of(folder, calm, f"http://127.0.0.1:{_port(world.prometheus)}", world.chat, start_ms)
        fill_undisturbed(calm, room, span)
        found.undisturbed = held(calm, span)
        began = time.monotonic()
        world.service.start()
        _kill_all(world, found, kills, rng)
        world.until("messages that wait", lambda: world.asked(_UNSENT) == (0, 1))
        found.took_s = time.monotonic() - began
        found.receipts = world.asked(_RECEIPTS)
        world.service.stop()
        verified = said(world.service, "month", "verify")
        found.verified = f"{verified.returncode}: {verified.stdout}{verified.stderr}".strip()
        found.disturbed = held(world.server.url("ledger"), span)
        _count_told(world.chat, found)
    return found


def _kill_all(world: _World, found: Killed, kills: int, rng: random.Random) -> None:
    at_the_end = max(2, kills // 10)
    reached = sorted(rng.choices(range(1, world.windows - 1), k=kills - 1 - at_the_end))
    victims = itertools.cycle(("postgres", "prometheus", "backend", "service", "prometheus", "service"))
    for target, victim in zip(reached, victims, strict=False):
        _until_written(world, found, target, rng)
        if rng.random() < 0.5:
            world.wait_for_a_write()
        else:
            time.sleep(rng.uniform(0, 0.5))
        _kill(world, found, victim, rng)
    _until_written(world, found, world.windows, rng)
    if not found.while_telling:
        world.until("a finding in the room", lambda: world.has_told(digest=False))
        _kill_teller(world, found, rng)
    # It looks for digests that are due when it starts, and then once a minute.
    world.until("what is final", lambda: (*world.asked(_FINAL), 0)[0] >= world.of_week)
    for number in range(at_the_end):
        if number == 1:
            world.until("the digest in the room", lambda: world.has_told(digest=True))
        elif number:
            time.sleep(rng.uniform(0, 2))
        _kill_teller(world, found, rng)


def _until_written(world: _World, found: Killed, windows: int, rng: random.Random) -> None:
    """A process that sends the first finding meanwhile is killed then."""

    def is_news() -> bool:
        return not found.while_telling and world.has_told(digest=False)

    world.until(f"{windows} windows", lambda: world.written() >= windows or is_news())
    if is_news():
        _kill_teller(world, found, rng)
        world.until_written(windows)


def _kill_teller(world: _World, found: Killed, rng: random.Random) -> None:
    """When it runs again, it may claim what it had claimed before."""
    found.while_telling += 1
    ahead(world.service, _CLAIMED_MS)
    _kill(world, found, "service", rng)


def _kill(world: _World, found: Killed, victim: str, rng: random.Random) -> None:
    writing, written = world.asked(_WRITING), world.written()
    found.victims["postgres" if victim == "backend" else victim] += 1
    found.while_windows_were_due += written < world.windows
    found.while_writing += bool(writing and writing[0])
    if victim == "backend":
        world.kill_a_backend(rng)
        while not world.asked("SELECT 1"):
            time.sleep(0.02)
        return
    program: Program = getattr(world, victim)
    program.kill()
    time.sleep(rng.uniform(0, 0.3))
    program.start()


def _is_digest(text: str) -> bool:
    return "2026-W41" in text or "week" in text.lower()


def _is_receipt(payload: Mapping[str, object]) -> bool:
    return "--receipt" in str(payload)


def _count_told(chat: ChatServer, found: Killed) -> None:
    found.receipts_told = len({each.text for each in chat.shown if _is_receipt(each.payload)})
    openings = [each for each in chat.shown if not each.thread and not _is_receipt(each.payload)]
    found.digests_told = sum(_is_digest(each.text) for each in openings)
    told = Counter(str(each.payload.get("message")) for each in openings if not _is_digest(each.text))
    found.findings_told, found.findings_repeated = len(told), told.total() - len(told)


def _port(program: Program) -> int:
    [address] = [word for word in program.command if word.startswith("--web.listen-address=")]
    return int(address.rpartition(":")[2])


@contextmanager
def _world(folder: Path, span: Window) -> Iterator[_World]:
    """PostgreSQL and Prometheus run; the service does not yet."""
    with ExitStack() as stack:
        chat = stack.enter_context(chat_server())
        home = Path(tempfile.mkdtemp(prefix="gpucost-pg-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        server = PostgresServer(free_port())
        # What was committed must be there after a kill: here synchronous_commit stays on.
        command = new_cluster(home, server.port)
        postgres = Program("postgres", command, home / "log", lambda: _is_up(server), home)
        stack.enter_context(postgres)
        server.execute("CREATE DATABASE ledger")
        server.execute("CREATE EXTENSION amcheck", "ledger")
        address = f"127.0.0.1:{free_port()}"
        prometheus = Program(
            "prometheus",
            prometheus_command(folder / "blocks", address),
            folder / "prometheus.log",
            lambda: answers(f"http://{address}/-/ready"),
            folder,
        )
        stack.enter_context(prometheus)
        given = settings_of(folder, server.url("ledger"), f"http://{address}", chat, span.start_ms)
        program = service(folder, given, free_port(), NOW_MS)
        stack.callback(program.stop)
        of_week = (WEEK.end_ms - span.start_ms) // _WINDOWS_MS
        yield _World(server, postgres, prometheus, program, chat, span.length_ms // _WINDOWS_MS, of_week)


def _is_up(server: PostgresServer) -> bool:
    try:
        server.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
