"""What every command is kept from knowing, and the day that several files read.

What runs tests beside one another tells its workers how wide its terminal is: commands must not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.findings_worlds import detect, ingest, prepare


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests do not use the login of the person who runs them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session")
def day_looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The day of ``findings_worlds`` in a ledger that the detectors have looked at, made once."""
    folder = tmp_path_factory.mktemp("findings")
    ingest(prepare(folder))
    detect(folder)
    return folder
