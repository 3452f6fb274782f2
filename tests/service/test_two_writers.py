"""Two processes, each with a cluster of its own, write one month into one PostgreSQL at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.scope import EVERYTHING
from gpucost.ledger.ledger import Ledger
from gpucost.telemetry.recorded_source import record
from tests.ledger.builders import MONTH, NOW_MS
from tests.service.worlds import frames

CLUSTERS = ("north", "south")
INGEST = "ingest --from 2026-10-01T00:00:00Z --to 2026-10-02T00:00:00Z --source"


def of_cluster(name: str) -> ClusterFrames:
    """Clones: the same names and uids in each, so that both writers add the same rows of names."""
    found = frames()
    held = {field.name: getattr(found, field.name) for field in fields(found)}
    renamed = {
        key: frame.assign(cluster=name)
        for key, frame in held.items()
        if isinstance(frame, pd.DataFrame) and "cluster" in frame
    }
    return replace(found, **renamed)


def started(url: str, recording: Path) -> subprocess.Popen[bytes]:
    """An hour is a transaction, so that the two take turns many times."""
    words = [*INGEST.split(), f"recorded:{recording}"]
    return subprocess.Popen(
        [sys.executable, "-c", "from gpucost.cli import main; main()", *words],
        env={**os.environ, "GPUCOST_LEDGER__URL": url, "GPUCOST_INGEST__BATCH": "1h"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=recording,
    )


def content(url: str) -> object:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        assert ledger.verify() == ()
        closed = ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="a day")
        windows = ledger.windows(MONTH.window)
        sums = ledger.aggregate(EVERYTHING, MONTH.window, ["cluster", "team", "job", "bucket", "node"])
        assert {each.cluster for each in windows} == set(CLUSTERS)
        return closed.digest, [(each.cluster, each.window, each.digest) for each in windows], sums.to_csv()


@pytest.mark.slow
@pytest.mark.postgres
def test_two_writers_of_one_month(postgres_url: str, sqlite_url: str, tmp_path: Path) -> None:
    """What they wrote is what one after the other writes, to the digest of the month."""
    recordings = [tmp_path / name for name in CLUSTERS]
    for name, folder in zip(CLUSTERS, recordings, strict=True):
        record(folder, of_cluster(name))
    writers = [started(postgres_url, folder) for folder in recordings]
    for writer in writers:
        said, _ = writer.communicate(timeout=300)
        assert writer.returncode == 0, said.decode()
    for folder in recordings:
        writer = started(sqlite_url, folder)
        said, _ = writer.communicate(timeout=300)
        assert writer.returncode == 0, said.decode()
    assert content(postgres_url) == content(sqlite_url)
