"""Killed at any moment, a command that writes the ledger leaves what was or what shall be, and no half."""

from __future__ import annotations

import os
import random

import pytest

from tests.support.killed_commands import Databases, kill_at_random, operations, prepare

KILLS = int(os.environ.get("KILLS", "1"))
"""Of each operation; ``benchmarks/kills_of_commands.py`` does fifty."""


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Databases:
    server = None if request.param == "sqlite" else request.getfixturevalue("postgres")
    found = Databases(tmp_path_factory.mktemp("killed"), server)
    prepare(found)
    return found


@pytest.mark.slow
@pytest.mark.fault(39, 44, 45)
def test_a_killed_command_is_simply_run_again(databases: Databases) -> None:
    for operation in operations(databases):
        found = kill_at_random(databases, operation, KILLS, random.Random(f"19 {operation.name}"))
        assert found.wrong == [], operation.name
        assert (found.kills, found.seen.total()) == (KILLS, KILLS)
        assert not (operation.all_or_nothing and found.seen["between"])
