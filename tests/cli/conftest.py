"""What runs tests beside one another tells its workers how wide its terminal is: commands must not know."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login of whoever runs the tests is none of theirs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
