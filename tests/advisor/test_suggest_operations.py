"""Operations of RFC 6902 on a manifest."""

from __future__ import annotations

from typing import Any

import pytest

from gpucost.advisor.suggest.patches import patched

OPERATIONS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([{"op": "add", "path": "/a/x~1y", "value": 1}], {"a": {"b": [1, 2], "x/y": 1}}),
    ([{"op": "add", "path": "/a/b/0", "value": 0}], {"a": {"b": [0, 1, 2]}}),
    ([{"op": "add", "path": "/a/b/-", "value": 3}], {"a": {"b": [1, 2, 3]}}),
    ([{"op": "replace", "path": "/a/b/1", "value": 9}], {"a": {"b": [1, 9]}}),
    ([{"op": "remove", "path": "/a/b"}], {"a": {}}),
    (
        [{"op": "add", "path": "/c", "value": {}}, {"op": "add", "path": "/c/~0d", "value": 1}],
        {"a": {"b": [1, 2]}, "c": {"~d": 1}},
    ),
]


@pytest.mark.parametrize(("operations", "expected"), OPERATIONS)
def test_operations_on_a_manifest(operations: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    before = {"a": {"b": [1, 2]}}
    assert patched(before, operations) == expected
    assert before == {"a": {"b": [1, 2]}}, "the manifest that was read stays as it was"


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "move", "path": "/a", "from": "/b"},
        {"op": "replace", "path": "/nowhere", "value": 1},
        {"op": "remove", "path": "/a/b/7"},
        {"op": "add", "path": "/a/b/3", "value": 1},
        {"op": "replace", "path": "", "value": {}},
    ],
)
def test_operations_that_cannot_be_done(operation: dict[str, Any]) -> None:
    with pytest.raises((ValueError, LookupError)):
        patched({"a": {"b": [1, 2]}}, [operation])
