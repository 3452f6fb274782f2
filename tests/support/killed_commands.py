"""SIGKILL of commands that write the ledger, at random moments, and the same command again.

Commands run as processes of their own, forked from one that has imported gpucost: a kill falls into the work
then, and not into the imports before it. Their clock stands still. After each kill the ledger is looked
through; after the repetition it must be that of a run that nobody killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpucost.domain.errors import GpuCostError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention import backup
from gpucost.telemetry.recorded_source import record
from tests.ledger import first_release
from tests.ledger.builders import MONTH, NOW_MS
from tests.service.worlds import frames
from tests.support.postgres import PostgresServer

LATER_MS = NOW_MS + 3_650 * DAY_MS
"""What the commands take for now: October 2026 is old enough to be folded."""
_WAIT_MS = 60_000
_LONGEST_S = 300.0
_MODULES = (
    "__main__",
    "pytest",
    "tests.support.killed_commands",
    "gpucost.cli.application",
    "gpucost.cli.commands.ingest",
    "gpucost.cli.commands.ledger",
    "gpucost.cli.commands.month",
    "gpucost.ledger.retention.backup",
    "gpucost.service.wiring.ledger",
    "gpucost.service.wiring.pipeline",
    "gpucost.service.detection.waste_accounting",
    "gpucost.service.ingest.retention_loop",
    "gpucost.service.settings.loader",
)
State = tuple[object, ...]


@dataclass
class Tally:
    """Of one operation on one database. ``seen`` says how the ledger, or the copy, was found after a kill: as
    ``before`` it, ``whole`` as after it, or ``between``. ``late`` kills found no process any more."""

    kills: int = 0
    late: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    takes_s: float = 0.0


@dataclass(frozen=True)
class Databases:
    """Ledgers of one kind by name, all in one folder or on one server."""

    folder: Path
    server: PostgresServer | None = None

    def url(self, name: str) -> str:
        return f"sqlite:///{self.file(name)}" if self.server is None else self.server.url(name)

    def file(self, name: str) -> Path:
        return self.folder / name / "ledger.db"

    def files(self, name: str) -> Path:
        """Where sealed months are."""
        return self.folder / name / "sealed"

    def make(self, name: str, template: str = "") -> None:
        """Empty, or as ``template`` is, which is not open."""
        (self.folder / name).mkdir()
        if self.server is not None:
            self.settle(template)
            self.server.execute(f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
        elif template and self.file(template).exists():
            shutil.copy(self.file(template), self.file(name))
        if template and self.files(template).exists():
            shutil.copytree(self.files(template), self.files(name))

    def drop(self, name: str) -> None:
        shutil.rmtree(self.folder / name)
        if self.server is not None:
            self.server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def settle(self, name: str) -> None:
        """Until the server has noticed that the process that had it open is dead."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
        deadline = time.monotonic() + _LONGEST_S
        while self.server is not None and time.monotonic() < deadline:
            with self.server.connect() as connection:
                if connection.execute(query.encode()).fetchone() == (0,):
                    return
            time.sleep(0.01)


@dataclass(frozen=True)
class Operation:
    """``words`` are of gpucost, with {folder} of the ledger and {home} of all; or ``shell`` makes a line for
    the shell. It begins with a copy of ``template``. ``all_or_nothing``: no reader ever sees a part of it."""

    name: str
    template: str
    words: str = ""
    shell: Callable[[str, Path], str] | None = None
    all_or_nothing: bool = True


INGEST = Operation(
    "ingest",
    "empty",
    "ingest --source recorded:{home}/recording --from 2026-10-01T00:00:00Z --to 2026-10-01T08:00:00Z",
    all_or_nothing=False,
)
CLOSE = Operation("close", "filled", "month close 2026-10 --author ann --reason one-day")
ROLL_UP = Operation("roll-up", "closed", "ledger prune --author ann")
SEAL = Operation("seal", "closed", "ledger seal 2026-10 --author ann")
UNSEAL = Operation("unseal", "sealed", "ledger unseal 2026-10 --author ann")
UPGRADE = Operation("upgrade", "first", "ledger upgrade")
BACKUP = {
    False: Operation("backup", "folded", "ledger backup {folder}/copy"),
    True: Operation("backup", "folded", shell=lambda url, folder: backup.dump_command(url, folder / "copy")),
}
RESTORE = {
    False: Operation("restore", "filled", "ledger restore {home}/whole.copy --replace"),
    True: Operation(
        "restore",
        "empty",
        shell=lambda url, folder: backup.restore_command(url, folder.parent / "whole.copy"),
    ),
}


def operations(databases: Databases) -> tuple[Operation, ...]:
    on_server = databases.server is not None
    return INGEST, CLOSE, ROLL_UP, SEAL, UNSEAL, BACKUP[on_server], RESTORE[on_server], UPGRADE


def prepare(databases: Databases) -> None:
    """The ledgers that operations begin with, each made from the one before."""
    home = databases.folder
    record(home / "recording", frames())
    databases.make("empty")
    databases.make("first")
    first_release.make(databases.url("first"))
    steps = (
        ("filled", INGEST),
        ("closed", CLOSE),
        ("folded", ROLL_UP),
        ("sealed", SEAL),
        ("whole", BACKUP[databases.server is not None]),
    )
    for name, operation in steps:
        databases.make(name, operation.template)
        run = _Run(databases, operation, name)
        assert run.to_the_end() == 0, run.said()
    (home / "whole" / "copy").rename(home / "whole.copy")


def kill_at_random(databases: Databases, operation: Operation, kills: int, rng: random.Random) -> Tally:
    """``kills`` that found their process alive, each of a run of its own."""
    tally = Tally()
    undisturbed = f"{operation.name}-0"
    databases.make(undisturbed, operation.template)
    before = _state(databases.url(undisturbed), databases.files(undisturbed))
    run = _Run(databases, operation, undisturbed)
    began = time.monotonic()
    assert run.to_the_end() == 0, run.said()
    tally.takes_s = time.monotonic() - began
    after = _result(databases, operation, undisturbed)
    databases.drop(undisturbed)
    while tally.kills < kills:
        assert tally.late < 10 * kills + 20, "it is always over before it is killed"
        name = f"{operation.name}-{tally.kills + tally.late + 1}"
        databases.make(name, operation.template)
        _Once(databases, operation, name, before, after, tally).kill(rng.uniform(0, tally.takes_s))
        databases.drop(name)
    return tally


@dataclass
class _Once:
    """One kill: what was found after it, and after the repetition."""

    databases: Databases
    operation: Operation
    name: str
    before: State
    after: State
    tally: Tally

    def kill(self, after_s: float) -> None:
        run = _Run(self.databases, self.operation, self.name)
        process = run.start()
        time.sleep(after_s)
        is_alive = process.is_alive()
        _kill_group(process)
        self.tally.kills += is_alive
        self.tally.late += not is_alive
        self.databases.settle(self.name)
        seen = self._seen()
        if is_alive:
            self.tally.seen[seen] += 1
        if seen == "between" and self.operation.all_or_nothing:
            self._is_wrong(f"half of it after {after_s:.3f} s")
        again = replace(run, clock_ms=LATER_MS + 1_000)
        # A copy that is there is never replaced: it is looked at as it is.
        if not self._is_done(seen) and again.to_the_end():
            self._is_wrong(f"the second time: {again.said()}")
            return
        if _result(self.databases, self.operation, self.name) != self.after:
            self._is_wrong("another end")
        self._look_for_leftovers()

    def _is_done(self, seen: str) -> bool:
        is_import = self.operation.name == "restore" and self.databases.server is not None
        return seen == "whole" and (self.operation.name == "backup" or is_import)

    def _seen(self) -> str:
        if self.operation.name == "backup":
            copy = self.databases.folder / self.name / "copy"
            self._refuse_part(copy.with_name("copy.part"))
            return "before" if not copy.exists() else "whole"
        state = _state(self.databases.url(self.name), self.databases.files(self.name))
        return "before" if state == self.before else "whole" if state == self.after else "between"

    def _refuse_part(self, part: Path) -> None:
        """Half a dump must not go in as a whole one."""
        if part.exists() and _restored(self.databases, part, f"{self.name}-part") not in (None, self.after):
            self._is_wrong("half a dump was taken for a whole one")

    def _look_for_leftovers(self) -> None:
        folder = self.databases.folder / self.name
        copy = folder / "copy"
        # Killed when the copy had its name: the draft is another of it, which the next backup removes.
        left = {each.name for each in folder.iterdir() if not (copy.exists() and each.samefile(copy))}
        kept = {each for each in left if each.startswith("ledger.db.replaced-")}
        extra = left - {"ledger.db", "ledger.db-wal", "ledger.db-shm", "log", "sealed", *kept}
        files = self.databases.files(self.name)
        extra |= {each.name for each in files.glob("*") if each.name.startswith(".")}
        if self.operation.name == "unseal":
            extra |= {each.name for each in files.rglob("*") if each.is_file()}
        if extra or len(kept) > 2:
            self._is_wrong(f"left over: {sorted(extra | kept)}")

    def _is_wrong(self, what: str) -> None:
        self.tally.wrong.append(f"{self.name}: {what}")


@dataclass(frozen=True)
class _Run:
    databases: Databases
    operation: Operation
    name: str
    clock_ms: int = LATER_MS

    @property
    def folder(self) -> Path:
        return self.databases.folder / self.name

    def start(self) -> multiprocessing.process.BaseProcess:
        url = self.databases.url(self.name)
        if self.operation.shell is not None:
            words = ["sh", "-c", self.operation.shell(url, self.folder)]
        else:
            words = self.operation.words.format(folder=self.folder, home=self.databases.folder).split()
        given = words, self.operation.shell is None, url, self.folder / "log", self.clock_ms
        process = _forks().Process(target=_command, args=given)
        process.start()
        return process

    def to_the_end(self) -> int:
        """Its exit code."""
        process = self.start()
        process.join(_LONGEST_S)
        code = process.exitcode
        _kill_group(process)
        return -1 if code is None else code

    def said(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")[-2_000:]


def _forks() -> multiprocessing.context.ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_MODULES))
    return context


def _command(words: list[str], is_ours: bool, url: str, log: Path, clock_ms: int) -> None:
    """In the process itself: a group of its own, so that what it starts dies with it."""
    os.setsid()
    os.environ.update(GPUCOST_LEDGER__URL=url, GPUCOST_INGEST__BATCH="2h", HOME=str(log.parent), **_tools())
    os.environ["GPUCOST_LEDGER__SEALED"] = str(log.parent / "sealed")
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if not is_ours:
        os.execvp(words[0], words)
    time.time_ns = lambda: clock_ms * 1_000_000
    sys.argv = ["gpucost", *words]
    from gpucost.cli import main

    main()


def _tools() -> Mapping[str, str]:
    """Where PostgreSQL's own are; nothing is changed where they are not."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"), key=lambda path: int(path.parts[-3]))
    return {"PATH": f"{found[-1].parent}:{os.environ['PATH']}"} if found else {}


def _kill_group(process: multiprocessing.process.BaseProcess) -> None:
    assert process.pid is not None
    if process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group of its own yet
            process.kill()
    process.join()


def _result(databases: Databases, operation: Operation, name: str) -> State:
    """What came out: the ledger, or the copy of it as a ledger."""
    if operation.name != "backup":
        return _state(databases.url(name), databases.files(name))
    copy = databases.folder / name / "copy"
    return _restored(databases, copy, f"{name}-restored") or ("not to be restored",)


def _restored(databases: Databases, copy: Path, name: str) -> State | None:
    """The ledger that a copy becomes; None where it cannot be restored."""
    databases.make(name)
    try:
        if databases.server is None:
            backup.restore(copy, databases.file(name), _WAIT_MS)
        else:
            words = backup.restore_command(databases.url(name), copy)
            done = subprocess.run(
                ["sh", "-c", words], env={**os.environ, **_tools()}, capture_output=True, check=False
            )
            if done.returncode:
                assert _state(databases.url(name)) == ("",), "all of it or nothing"
                return None
        return _state(databases.url(name))
    except GpuCostError:
        return None
    finally:
        databases.drop(name)


def _state(url: str, sealed: Path | None = None) -> State:
    """What the ledger holds, but for when it was written; of another schema only which it is. Lines are in
    the digests, which are computed again from them, and in the hashes of sealed files."""
    if url.startswith("sqlite") and not Path(url.removeprefix("sqlite:///")).exists():
        return ("",)
    database = LedgerDatabase.unchecked(url, _WAIT_MS, create=False)
    try:
        revision, newest = database.revision()
    finally:
        database.close()
    if revision != newest:
        return (revision,)
    place = "" if sealed is None else str(sealed)
    with Ledger.open(url, now=lambda: LATER_MS, wait_ms=_WAIT_MS, create=False, sealed=place) as ledger:
        month, fold, seal = ledger.month(MONTH), ledger.folded(MONTH), ledger.sealed(MONTH)
        return (
            revision,
            tuple(
                (each.cluster, each.window, each.state, each.version, each.digest)
                for each in ledger.windows(MONTH.window)
            ),
            (month.state, month.version, month.digest, month.author),
            None if fold is None else (fold.digest, fold.lines),
            None if seal is None else (seal.digest, seal.lines),
            tuple(
                (each.action, each.author, each.subject, each.reason, each.detail)
                for each in ledger.audit(EVERYTHING)
            ),
            tuple(each.nano for each in ledger.adjustments(EVERYTHING, MONTH)),
            ledger.waste(EVERYTHING, MONTH.window, ["team"]).to_csv(),
            ledger.verify(),
            ledger.integrity().damage,
        )
