"""Rows as tuples -> the frame of a FrameSpec."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gpucost.attribution.frames import conform, empty_frame
from gpucost.contract.frames import FrameSpec

Row = tuple[object, ...]


def frame_of(spec: FrameSpec, rows: Sequence[Row]) -> pd.DataFrame:
    """``rows`` have the columns of ``spec``, in its order."""
    if not rows:
        return empty_frame(spec)
    columns = zip(spec.column_names, zip(*rows, strict=True), strict=True)
    return conform(pd.DataFrame({name: list(values) for name, values in columns}), spec)
