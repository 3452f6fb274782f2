"""The tests that were promised exist: faults, cost vectors and telemetry traps, each with its mark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FAULTS = range(1, 74)
TRAPS = range(1, 35)
VECTORS = [f"V{number}" for number in range(1, 29)]


@cache
def marks() -> frozenset[tuple[str, object]]:
    """The name and argument of every mark, of every test; read once."""
    return frozenset(mark for path in TESTS.rglob("test_*.py") for mark in _marks(path))


def _marks(path: Path) -> Iterator[tuple[str, object]]:
    for found in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute):
            name, arguments = found.func.attr, found.args
            if ast.unparse(found.func) == f"pytest.mark.{name}":
                yield from ((name, each.value) for each in arguments if isinstance(each, ast.Constant))


@pytest.mark.parametrize("row", FAULTS)
def test_every_row_of_the_fault_matrix_has_a_test(row: int) -> None:
    assert ("fault", row) in marks()


@pytest.mark.parametrize("vector", VECTORS)
def test_every_cost_vector_has_a_test(vector: str) -> None:
    assert ("vector", vector) in marks()


@pytest.mark.parametrize("trap", TRAPS)
def test_every_telemetry_trap_has_a_test(trap: int) -> None:
    assert ("trap", trap) in marks()
