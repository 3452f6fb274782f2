"""Arbitrary JSON for properties of parsers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["1", "8Gi", "2026-10-24T00:00:00Z", "True", "name", "-1"])
)
JSON: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def objects_of(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with a name, a uid ``u`` and anything under ``keys``."""
    metadata = st.just({"name": "n", "uid": "u"})
    return st.fixed_dictionaries({"metadata": metadata}, optional=dict.fromkeys(keys, JSON))
