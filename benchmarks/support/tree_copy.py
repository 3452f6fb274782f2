"""A copy of the tree in which things are broken one after another, and tests are run in forks.

A fork finds the libraries that tests import loaded already, which is most of what a run of one test costs;
nothing of the product is loaded before it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_QUIET = ("-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore")
_SOURCES = ("gpucost", "exporters", "alerts", "dashboards")
_LIBRARIES = (
    "pytest coverage hypothesis.strategies hypothesis.stateful schemathesis schemathesis.pytest.plugin"
    " kmock aiohttp httpx fastapi uvicorn sqlalchemy.dialects.sqlite sqlalchemy.dialects.postgresql"
    " psycopg alembic pandas pydantic yaml prometheus_client apprise jinja2 xdist pytest_asyncio"
)


@dataclass(slots=True)
class RunNotes:
    """What a run of tests said: its exit status (None: it took too long), who was red, and of each test its
    seconds and the rows of the fault matrix that it proves."""

    status: int | None = None
    red: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)


class RunWatcher:
    """A plugin of pytest: it records the results of a run, and names the running test to coverage."""

    def __init__(self, first: dict[str, float], measured: Any, settings: Path) -> None:
        self.notes = RunNotes()
        self._first, self._measured, self._settings = first, measured, settings

    def pytest_configure(self) -> None:
        """How small an example can be made of a red property does not matter here."""
        import hypothesis

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("brief", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("brief")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The fastest first."""
        items.sort(key=lambda item: self._first.get(item.nodeid, 0))
        for item in items:
            self.notes.rows[item.nodeid] = [row for mark in item.iter_markers("fault") for row in mark.args]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """What a test runs in a process of its own is counted as its own too."""
        if self._measured:
            self._measured.switch_context(nodeid)
            lines = (f"data_file = {self._settings.parent / 'coverage'}", "parallel = true")
            sources = [f"source = {_listed(self._settings.parent / 'tree')}", f"context = {_quoted(nodeid)}"]
            self._settings.write_text("\n".join(["[run]", *lines, *sources, ""]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self.notes.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.notes.red.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.notes.red.append(report.nodeid)


def _listed(root: Path) -> str:
    return "\n    ".join(str(root / name) for name in _SOURCES)


def _quoted(nodeid: str) -> str:
    """Coverage puts variables of the environment for a dollar."""
    return nodeid.replace("$", "$$").replace("\n", " ")


class TreeCopy:
    """The files of the tree as they are now, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "tree"
        if not self.root.exists():
            self._write()
        for name in _LIBRARIES.split():
            with suppress(ImportError):
                importlib.import_module(name)

    def _write(self) -> None:
        listing = ("git", "ls-files", "-z")
        listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name, follow_symlinks=False)
        if (ROOT.parent / "shared").exists():
            (self.folder / "shared").symlink_to(ROOT.parent / "shared")

    @contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """The file with this text. It is as before afterwards."""
        file = self.root / name
        before, stamp = file.read_text(encoding="utf-8"), file.stat()
        try:
            file.write_text(text, encoding="utf-8")
            # Compiled files are distinguished by seconds and size.
            os.utime(file, (stamp.st_atime, stamp.st_mtime + 10))
            yield
        finally:
            file.write_text(before, encoding="utf-8")
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def run(self, tests: Iterable[str], seconds: dict[str, float], longest_s: float) -> RunNotes:
        """Runs these tests until one is red, the fastest first."""
        return self._forked(["-x", *tests], longest_s, first=seconds)

    def measured(self, arguments: Iterable[str], *plugins: object) -> RunNotes:
        """Runs all of them with coverage. What it said before is taken again where there is a file of it."""
        kept = self.folder / "measured.json"
        if kept.exists():
            return RunNotes(**json.loads(kept.read_text()))
        notes = self._forked([*arguments], None, plugins=plugins, is_measured=True)
        combine = (sys.executable, "-m", "coverage", "combine", "--append", "--data-file=coverage", "--quiet")
        subprocess.run(combine, cwd=self.folder, capture_output=True, check=False)
        kept.write_text(json.dumps(asdict(notes)))
        return notes

    def tests_by_line(self) -> dict[str, dict[int, set[str]]]:
        """File -> line -> which tests ran it, as pytest names them; what runs on import is of ''."""
        with sqlite3.connect(self.folder / "coverage") as database:
            rows = database.execute(
                "select file.path, line_bits.numbits, context.context from line_bits"
                " join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
            ).fetchall()
        found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path, bits, context in rows:
            lines = found[str(Path(path).relative_to(self.root))]
            for line in (8 * at + bit for at, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1):
                lines[line].add(context)
        return found

    def _forked(
        self,
        arguments: list[str],
        longest_s: float | None,
        first: dict[str, float] | None = None,
        plugins: Iterable[object] = (),
        is_measured: bool = False,
    ) -> RunNotes:
        kept = self.folder / "notes.json"
        kept.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                os.setsid()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._enter(is_measured)
                measured = self._coverage() if is_measured else None
                watcher = RunWatcher(first or {}, measured, self.folder / "coverage.ini")
                watcher.notes.status = int(pytest.main([*_QUIET, *arguments], plugins=[watcher, *plugins]))
                if measured:
                    measured.stop()
                    measured.save()
                kept.write_text(json.dumps(asdict(watcher.notes)))
            finally:
                os._exit(1)
        if not _ended(child, longest_s):
            return RunNotes()
        return RunNotes(**json.loads(kept.read_text())) if kept.exists() else RunNotes(status=1)

    def _coverage(self) -> Any:
        import coverage

        sources = [str(self.root / name) for name in _SOURCES]
        measured = coverage.Coverage(str(self.folder / "coverage"), source=sources, config_file=False)
        measured.start()
        return measured

    def _enter(self, is_measured: bool) -> None:
        """The tree is where this process is, for it and for those it starts."""
        os.chdir(self.root)
        with (self.folder / "output").open("ab") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        places = [str(self.root), str(self.root / "exporters")]
        sys.path[:0] = places
        for name in [name for name in sys.modules if name.partition(".")[0] in {"benchmarks", "tests"}]:
            del sys.modules[name]
        os.environ |= {"PYTHONPATH": os.pathsep.join(places), "CI": "true"}
        if is_measured:
            os.environ["COVERAGE_PROCESS_START"] = str(self.folder / "coverage.ini")
        else:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True


def _ended(child: int, longest_s: float | None) -> bool:
    """Whether it ended by itself. Who does not may tidy up first: tests start servers."""
    if _waited(child, longest_s):
        return True
    os.kill(child, signal.SIGINT)
    if not _waited(child, 20.0):
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return False


def _waited(child: int, patience_s: float | None) -> bool:
    if patience_s is None:
        return bool(os.waitpid(child, 0))
    end = time.monotonic() + patience_s
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
