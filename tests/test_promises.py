"""The tests that were promised exist: faults, cost vectors and telemetry traps, each with its mark."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FAULTS = [*range(1, 46), 50, *range(57, 61), 67]
TRAPS = range(1, 35)
VECTORS = [f"V{number}" for number in range(1, 29)]


def marks(name: str) -> set[object]:
    return {value for path in TESTS.rglob("test_*.py") for value in _arguments(path, name)}


def _arguments(path: Path, name: str) -> Iterator[object]:
    for found in ast.walk(ast.parse(path.read_text("utf-8"))):
        is_call = isinstance(found, ast.Call) and isinstance(found.func, ast.Attribute)
        if is_call and found.func.attr == name and ast.unparse(found.func).startswith("pytest.mark."):
            yield from (argument.value for argument in found.args if isinstance(argument, ast.Constant))


@pytest.mark.parametrize("row", FAULTS)
def test_every_row_of_the_fault_matrix_has_a_test(row: int) -> None:
    assert row in marks("fault")


@pytest.mark.parametrize("vector", VECTORS)
def test_every_cost_vector_has_a_test(vector: str) -> None:
    assert vector in marks("vector")


@pytest.mark.parametrize("trap", TRAPS)
def test_every_telemetry_trap_has_a_test(trap: int) -> None:
    assert trap in marks("trap")
