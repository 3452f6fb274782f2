"""Fixtures that several parts share: the databases."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings
from typer.main import get_command
from xdist.remote import Producer

from gpucost.ledger.stores.api_keys import KEY_USES
from gpucost.settings.logs import REQUESTS
from tests.support.compiled_statements import share_compiled_statements
from tests.support.ledgers import PostgresLedgers, Prepare, new_ledger
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.scheduling import ByFile, in_order
from tests.support.skipped import skipped_line
from tests.support.slow_tests import mark_slow

_NUMBERS = itertools.count()

# A shell that runs the tests in the background has SIGINT ignored, as would the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No report of a test is kept for another, which may find other samples at the same address.
os.environ["XDG_CACHE_HOME"] = os.devnull

share_compiled_statements()

# Typer builds the commands of the whole application anew for each call of its runner.
typer.testing._get_command = cache(get_command)  # type: ignore[attr-defined]

# On a developer's machine every run tries other examples; in CI the same ones, so that a change is what
# turns it red. No deadlines: tests never assert a time. Thirty examples where a test says no number, since
# with a hundred property tests took a quarter of the time: --hypothesis-profile=deep tries 500.
settings.register_profile("developer", deadline=None, max_examples=30)
settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=500)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """While tests are collected nothing becomes garbage, yet Python would look through all of it again and
    again, which took half of the time. What is there when the first test begins stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow(items)
    in_order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """What was skipped is counted below all else."""
    yield
    terminalreporter.write_line(skipped_line(terminalreporter.stats.get("skipped", [])))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """What notes when keys were used has a thread of its own: it must not find its ledger closed."""
    for thread in threading.enumerate():
        if thread.name == KEY_USES:
            thread.join(10)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run."""
    with postgres_server(in_memory=True) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_ledgers(postgres: PostgresServer) -> PostgresLedgers:
    return PostgresLedgers(postgres)


@pytest.fixture
def postgres_url(postgres_ledgers: PostgresLedgers) -> Iterator[str]:
    """A new ledger in PostgreSQL."""
    with postgres_ledgers.new(f"test_{next(_NUMBERS)}") as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A new ledger in a SQLite file."""
    return new_ledger(tmp_path / "ledger.db")


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A new PostgreSQL database without tables."""
    with postgres.database(f"test_{next(_NUMBERS)}") as url:
        yield url


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


_KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=_KINDS)
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A new ledger that holds nothing, in a database of either kind: the tests of the ledger run on both."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=_KINDS)
def copy_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Prepare], str]]:
    """Gives a new ledger, in a database of either kind, that holds what a function wrote into another: what
    several tests begin with is written once."""
    if request.param == "sqlite":
        yield lambda prepare: new_ledger(tmp_path / "ledger.db", prepare)
        return
    ledgers: PostgresLedgers = request.getfixturevalue("postgres_ledgers")
    with ExitStack() as made:
        yield lambda prepare: made.enter_context(ledgers.new(f"test_{next(_NUMBERS)}", prepare))


@pytest.fixture(params=_KINDS)
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database of either kind that no ledger was opened in yet."""
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """A command that sets the log up does so for its process, which here goes on with other tests."""
    root, own = logging.getLogger(), logging.getLogger(REQUESTS)
    before = root.level, own.level
    yield
    for handler in [found for found in root.handlers if found.name == "gpucost"]:
        root.removeHandler(handler)
    root.setLevel(before[0])
    own.setLevel(before[1])
