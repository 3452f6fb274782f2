"""The frames in memory: one pandas DataFrame per FrameSpec of the contract, checked on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    CAPACITY,
    COHORTS,
    DEMAND,
    DOMAINS,
    EVICTIONS,
    HEALTH,
    NODES,
    OBSERVED,
    PROGRESS,
    QUOTAS,
    SERVING,
    SIGNALS,
    STALLS,
    ColumnType,
    FrameSpec,
)
from gpucost.domain.errors import DataProblem, InputError

# Most frames are small, and text in Python objects then takes a fifth less time than in Arrow (an eighth of
# the demo's, and of detectors' over 10 million rows). Only frames of millions of names need more memory.
pd.set_option("mode.string_storage", "python")

ColumnSeries: TypeAlias = "pd.Series[Any]"


def empty_frame(spec: FrameSpec) -> pd.DataFrame:
    """No rows, the columns and dtypes of ``spec``."""
    return pd.DataFrame({name: values.copy() for name, values in _empty_columns(spec).items()})


@cache
def _empty_columns(spec: FrameSpec) -> dict[str, Any]:
    """Made once: a source returns up to fifteen frames, most of them empty. Not kept as a frame, of which
    pandas would keep a weak reference for each copy."""
    return {column.name: pd.Series(dtype=column.type.value).array for column in spec.columns}


def conform(frame: pd.DataFrame, spec: FrameSpec) -> pd.DataFrame:
    """``frame`` with exactly the columns and dtypes of ``spec``, in its order. What it may lack is null, or
    no text.

    Raises InputError naming the column that is missing, unknown, null or of a type that does not convert
    without loss (1.5 for an integer, text for a number).
    """
    unknown = [name for name in frame.columns if name not in spec.column_names]
    if unknown:
        raise InputError(f"{spec.name}.{unknown[0]}", "unknown column", ", ".join(spec.column_names))
    columns = {}
    for column in spec.columns:
        if column.name not in frame.columns:
            if column.may_lack:
                lacking = "" if column.type is ColumnType.TEXT else np.nan
                columns[column.name] = pd.Series(lacking, index=frame.index, dtype=column.type.value)
                continue
            raise InputError(f"{spec.name}.{column.name}", "missing column", column.help)
        columns[column.name] = _convert(frame[column.name], f"{spec.name}.{column.name}", column.type)
    return pd.DataFrame(columns)


def _convert(series: ColumnSeries, field_name: str, type_: ColumnType) -> ColumnSeries:
    if series.dtype.name == type_.value or (type_ is ColumnType.TEXT and series.dtype.name == "category"):
        converted = series  # categories are text in a smaller form
    elif type_ is ColumnType.INTEGER:
        converted = _to_integer(series, field_name)
    elif type_ is ColumnType.TEXT:
        if not series.map(lambda value: isinstance(value, str)).all():
            bad = series[~series.map(lambda value: isinstance(value, str))].tolist()[0]
            raise InputError(field_name, bad, "text; empty text where there is none")
        converted = series.astype("str")
    else:
        try:
            converted = series.astype("float64")
        except (TypeError, ValueError):
            bad = series[pd.to_numeric(series, errors="coerce").isna() & series.notna()]
            raise InputError(field_name, [*bad, *series][0], "numbers, null where missing") from None
    if type_ is ColumnType.TEXT and converted.isna().any():
        raise InputError(field_name, None, "text; empty text where there is none")
    return converted


def _to_integer(series: ColumnSeries, field_name: str) -> ColumnSeries:
    if series.isna().any():
        raise InputError(field_name, None, "whole numbers, none missing")
    try:
        converted = series.astype("int64")
    except (TypeError, ValueError, OverflowError):
        raise InputError(field_name, series.tolist()[0], "whole numbers of 64 bits") from None
    if not (converted == series).all():
        raise InputError(field_name, series[converted != series].tolist()[0], "whole numbers of 64 bits")
    return converted


@dataclass(frozen=True)
class ClusterFrames:
    """What a source returns of one cluster and stretch of time, and what it could not interpret.

    Frames from ``activity`` on are for detectors only: a source leaves them empty unless they are requested.
    ``lacks`` names the frames that are empty because the source cannot provide them, each with the reason.
    ``source`` names where they come from, where that is not the same for all that a source returns.
    ``of_pods`` are the allocations as pods had them, where ``allocations`` are divided among the jobs of an
    inner scheduler. ``provider_ids`` are nodes, each with the machine of a cloud that it is
    (``spec.providerID``).
    """

    allocations: pd.DataFrame = field(default_factory=lambda: empty_frame(ALLOCATIONS))
    nodes: pd.DataFrame = field(default_factory=lambda: empty_frame(NODES))
    capacity: pd.DataFrame = field(default_factory=lambda: empty_frame(CAPACITY))
    observed: pd.DataFrame = field(default_factory=lambda: empty_frame(OBSERVED))
    signals: pd.DataFrame = field(default_factory=lambda: empty_frame(SIGNALS))
    progress: pd.DataFrame = field(default_factory=lambda: empty_frame(PROGRESS))
    activity: pd.DataFrame = field(default_factory=lambda: empty_frame(ACTIVITY))
    serving: pd.DataFrame = field(default_factory=lambda: empty_frame(SERVING))
    demand: pd.DataFrame = field(default_factory=lambda: empty_frame(DEMAND))
    stalls: pd.DataFrame = field(default_factory=lambda: empty_frame(STALLS))
    evictions: pd.DataFrame = field(default_factory=lambda: empty_frame(EVICTIONS))
    quotas: pd.DataFrame = field(default_factory=lambda: empty_frame(QUOTAS))
    health: pd.DataFrame = field(default_factory=lambda: empty_frame(HEALTH))
    domains: pd.DataFrame = field(default_factory=lambda: empty_frame(DOMAINS))
    cohorts: pd.DataFrame = field(default_factory=lambda: empty_frame(COHORTS))
    problems: tuple[DataProblem, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    of_pods: pd.DataFrame | None = None
    provider_ids: frozenset[tuple[str, str]] = frozenset()
