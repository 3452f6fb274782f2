"""docs/api.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import FastAPI

from gpucost.access.principal import AccessRole

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_route_is_documented(app: FastAPI) -> None:
    documented = set(re.findall(r"`(GET|POST) (/[^`]*)`", PAGE))
    paths = app.openapi()["paths"]
    assert documented == {(method.upper(), path) for path, item in paths.items() for method in item}


def test_every_role_is_documented() -> None:
    assert all(f"`{role}`" in PAGE for role in AccessRole)


def test_every_error_code_is_documented() -> None:
    source = (Path(__file__).parents[2] / "gpucost" / "api" / "server" / "errors.py").read_text(
        encoding="utf-8"
    )
    codes = set(re.findall(r'^        "([a-z_]+)",$', source, re.MULTILINE)) | {
        "missing_parameter",
        "forbidden",
    }
    assert {"unknown_parameter", "internal", "unauthorized"} <= codes
    assert all(f"`{code}`" in PAGE for code in codes)
