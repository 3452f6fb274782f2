"""Two spans of time side by side: what each group cost, and the causes that add up to the difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.errors import InputError
from gpucost.domain.time import Window
from gpucost.reports.base import display
from gpucost.reports.base.frame_sums import sums
from gpucost.reports.base.values import NOTHING, CostAmount
from gpucost.reports.month.change_causes import (
    ChangeCause,
    SpanLines,
    explain,
    largest_first,
)

CHANGED_BY = ("team", "project", "cluster", "model", "cluster_queue", "namespace", "job_kind")
"""What a row of a comparison may be."""
CHANGE_DIMS = (
    *("cluster", "model", "bucket", "namespace", "job", "job_uid", "team"),
    *("project", "cluster_queue", "job_kind"),
)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A group, with what it cost then and now, adjustments included. ``causes`` add up to ``change_nano``,
    the largest first."""

    group: str
    now: CostAmount
    before: CostAmount
    change_nano: int
    causes: tuple[ChangeCause, ...]


@dataclass(frozen=True, slots=True)
class SpanChange:
    """What ``now`` cost beside ``before``: rows by ``by``, the largest change first. For who sees every team,
    time that nobody held is in rows of its own, so that all rows together are the capacity. ``causes`` are
    all of all rows, and add up to ``change_nano``; ``notes`` say what of either span is not there."""

    now: Window
    before: Window
    by: str
    currency: str
    teams_in_scope: tuple[str, ...] | None
    total: CostAmount
    total_before: CostAmount
    change_nano: int
    rows: tuple[ChangeRow, ...]
    causes: tuple[ChangeCause, ...]
    notes: tuple[str, ...]


def build_change(
    spans: tuple[Window, Window],
    currency: str,
    teams_in_scope: tuple[str, ...] | None,
    now: SpanLines,
    before: SpanLines,
    by: str,
) -> SpanChange:
    """The change from ``before`` to ``now``. Raises InputError for a ``by`` that is none of CHANGED_BY."""
    if by not in CHANGED_BY:
        raise InputError("by", by, ", ".join(CHANGED_BY))
    causes = explain(now, before, by)
    sides = [_amounts(each, by) for each in (now, before)]
    rows = []
    for group, found in causes.items():
        own = [side.get(group, NOTHING) for side in sides]
        rows.append(ChangeRow(group, own[0], own[1], sum(cause.nano for cause in found), found))
    total, total_before = (sum(side.values(), NOTHING) for side in sides)
    return SpanChange(
        now=spans[0],
        before=spans[1],
        by=by,
        currency=currency,
        teams_in_scope=teams_in_scope,
        total=total,
        total_before=total_before,
        change_nano=sum(row.change_nano for row in rows),
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.change_nano), row.group))),
        causes=largest_first(cause for row in rows for cause in row.causes),
        notes=(*_notes(now, "this span"), *_notes(before, "the span before")),
    )


def _amounts(span: SpanLines, by: str) -> Mapping[str, CostAmount]:
    found = {group: CostAmount(0, nano) for group, nano in span.adjusted.items()}
    for (group, bucket), each in sums(span.lines, [by, "bucket"]).items():
        if bucket != Bucket.OVERCOMMITTED:
            nobody = HOLDER_OF_BUCKET.get(Bucket(bucket))
            name = str(group) if nobody is None or group else nobody
            found[name] = found.get(name, NOTHING) + each.amount
    return found


def _notes(span: SpanLines, name: str) -> Iterable[str]:
    lines = span.lines
    bare_ms = int(lines.loc[lines["bucket"] == str(Bucket.HELD), "unpriced_ms"].sum())
    if bare_ms:
        yield f"{display.hours(bare_ms)} GPU-hours held in {name} have no price, and are in no amount"
    if span.time is None:
        return
    for cluster in sorted({*span.time.covered_ms, *span.time.observed_ms}):
        part = span.time.part(cluster, held=True)
        if part < 1:
            yield f"{display.name(cluster)} was observed for {display.percent(part, 1)} of {name}"
