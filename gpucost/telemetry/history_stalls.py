"""Stretches in which a gang held GPUs while it lacked members, as the queue collector tells them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpucost.contract import queue_metrics as m
from gpucost.telemetry.history_runs import Run, StateReader, by_labels, covering
from gpucost.telemetry.rows import Row

_KEY = ("gang_uid",)
_OWNED = ("namespace", "job_kind", "job_name", "job_uid", "queue")


def read_stalls(state: StateReader) -> list[Row]:
    """Rows of frames.STALLS, clipped to the window: from the instant that the series names to the minute in
    which it was last seen. One that goes on after a gap in which nothing was seen went on all through it,
    since it names the same instant."""
    since = by_labels(state.runs(m.GANG_PARTIAL_SINCE, _KEY), _KEY)
    if not since:
        return []
    info = by_labels(state.runs(m.GANG_INFO, (*_KEY, *_OWNED)), _KEY)
    counts = [
        by_labels(state.runs(spec, _KEY), _KEY)
        for spec in (m.GANG_MIN_MEMBERS, m.GANG_RUNNING, m.GANG_PENDING)
    ]
    rows: list[Row] = []
    for key, runs in since.items():
        around = [known.get(key, []) for known in counts]
        for start, end in _stretches(runs):
            rows += _rows(state, key[0], info.get(key, []), around, (start, end))
    return rows


def _stretches(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Of runs of one gang in order: one stretch for each instant that is named."""
    ends: dict[int, int] = {}
    for run in runs:
        ends[round(run.value * 1000)] = run.end_ms
    reached = 0
    for since_ms, end in sorted(ends.items()):
        if max(since_ms, reached) < end:
            yield max(since_ms, reached), end
            reached = end


def _rows(
    state: StateReader,
    gang: str,
    info: Sequence[Run],
    around: Sequence[Sequence[Run]],
    stretch: tuple[int, int],
) -> Iterator[Row]:
    low, high = max(stretch[0], state.window.start_ms), min(stretch[1], state.window.end_ms)
    if low >= high:
        return
    cuts = {low, high}
    for runs in around:
        cuts |= {edge for start, end, _ in covering(runs, low, high) for edge in (start, end)}
    edges = sorted(cuts)
    owned = _at(info, low)
    rows: list[list[object]] = []
    for start, end in pairwise(edges):
        known = [_at(runs, start) for runs in around]
        if owned is None or any(run is None for run in known):
            continue
        counts = [int(run.value) for run in known if run is not None]
        head = [state.reader.cluster, gang, *(owned.labels.get(name, "") for name in _OWNED), *counts]
        if rows and rows[-1][:-2] == head and rows[-1][-1] == start:
            rows[-1][-1] = end
        else:
            rows.append([*head, start, end])
    yield from (tuple(row) for row in rows)


def _at(runs: Sequence[Run], at_ms: int) -> Run | None:
    """What held then, or was last seen before it; else what was seen first."""
    return next((run for run in reversed(runs) if run.start_ms <= at_ms), runs[0] if runs else None)
