"""What others recorded lies beside the project, in ``../shared``, and is read there, never copied into it.

A clone without it runs everything else: what rests on our own recordings reads ``tests/data``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"


def missing(name: str) -> str:
    """Why a test is skipped that needs ``../shared/NAME``."""
    return f"without ../shared/{name}"


def needs_shared(name: str) -> pytest.MarkDecorator:
    """Skips where ``../shared/NAME`` is not there."""
    return pytest.mark.skipif(not SHARED.joinpath(name).exists(), reason=missing(name))
