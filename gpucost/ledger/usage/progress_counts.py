"""What jobs counted (steps, tokens, requests), beside the cost of the time in which they did.

A job counts in a window where one of its pods has a reading: the first pod of a gang often counts for all
of it. So all that its pods held in that window is the cost of what was counted, and what it held in other
windows is not. The reading of a pod that changed its team within a window is split by the time that it was
of each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pandas as pd
from sqlalchemy import BigInteger, Connection, Select, case, cast, func, select

from gpucost.domain.buckets import Bucket
from gpucost.domain.scope import Scope
from gpucost.domain.time import Window
from gpucost.ledger.db.dimensions import chunked, in_clusters
from gpucost.ledger.db.records import JOB_KEY_COLUMNS
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import HOLDER, LEDGER_WINDOW, PROGRESS_LINE, USAGE_LINE
from gpucost.ledger.sealed.sealed_reader import SealedStore

COUNT_COLUMNS = (
    *(*JOB_KEY_COLUMNS, "name", "amount", "pods"),
    *("counted_board_ms", "counted_unpriced_ms", "counted_nano", "held_board_ms"),
)
_HELD = Bucket.HELD.value
_Job = tuple[str, ...]
"""Values of JOB_KEY_COLUMNS."""
# (window, job, pod, name, amount, time of the pod as this job)
_Reading = tuple[Any, _Job, str, str, float, int]
# (window, job, board_ms, unpriced_ms, nano)
_Held = tuple[Any, _Job, int, int, int]

L, W, H, P = USAGE_LINE.c, LEDGER_WINDOW.c, HOLDER.c, PROGRESS_LINE.c
_HOLDER_COLUMNS = [H[name] for name in JOB_KEY_COLUMNS[1:]]


def progress(
    connection: Connection, scope: Scope, window: Window, job_uid: str | None, sealed: SealedStore
) -> pd.DataFrame:
    """See Ledger.progress."""
    if job_uid is not None:
        check_text("job_uid", job_uid)
    read = [_of_row(row) for row in connection.execute(_readings(scope, window, job_uid))]
    span = sealed.span(connection, window, scope.clusters)
    if span is not None:
        read += [(row[0], tuple(row[1:7]), *row[7:]) for row in span.progress(job_uid)]
    # A job may have counted in one of the two stores, and held in both.
    uids = sorted({reading[1][-1] for reading in read}) if job_uid is None or not read else [job_uid]
    held: list[_Held] = []
    for chunk in chunked(uids):
        held += [
            (row[0], tuple(row[1:7]), int(row[7]), int(row[8]), int(row[9]))
            for row in connection.execute(_of_jobs(scope, window, chunk))
        ]
    if span is not None and uids:
        held += [(row[0], tuple(row[1:7]), *row[7:]) for row in span.held_by_window(uids)]
    return _frame(scope, read, held)


def _readings(scope: Scope, window: Window, job_uid: str | None) -> Select[Any]:
    """Of each pod that counted, for each job and team that it was of in the window. Another team's part is
    needed to split what the pod counted."""
    statement = (
        select(P.window_id, W.cluster, *_HOLDER_COLUMNS, P.pod_uid, P.name, P.amount)
        .add_columns(cast(func.sum(L.board_ms), BigInteger))
        .join(LEDGER_WINDOW, W.id == P.window_id)
        .join(HOLDER, H.pod_uid == P.pod_uid)
        .join(USAGE_LINE, (L.holder_id == H.id) & (L.window_id == P.window_id))
        .where(W.start_ms >= window.start_ms, W.end_ms <= window.end_ms, L.bucket == _HELD, H.pod_uid != "")
        .where(*in_clusters(scope, W.cluster))
        .group_by(P.window_id, W.cluster, *_HOLDER_COLUMNS, P.pod_uid, P.name, P.amount)
    )
    if scope.teams is not None:
        own = select(H.pod_uid).where(H.team.in_(sorted(scope.teams)))
        statement = statement.where(P.pod_uid.in_(own))
    if job_uid is not None:
        own = select(H.pod_uid).where(H.job_uid == job_uid, H.pod_uid != "")
        statement = statement.where(P.pod_uid.in_(own))
    return statement


def _of_row(row: Any) -> _Reading:
    return row[0], tuple(row[1:7]), row[7], row[8], float(row[9]), int(row[10])


def _of_jobs(scope: Scope, window: Window, uids: Iterable[str]) -> Select[Any]:
    """What jobs held, by window."""
    unpriced = case((L.nano.is_(None), L.board_ms), else_=0)
    sums = (L.board_ms, unpriced, func.coalesce(L.nano, 0))
    return (
        select(L.window_id, W.cluster, *_HOLDER_COLUMNS)
        .add_columns(*(cast(func.sum(each), BigInteger) for each in sums))
        .select_from(USAGE_LINE)
        .join(HOLDER, H.id == L.holder_id)
        .join(LEDGER_WINDOW, W.id == L.window_id)
        .where(H.job_uid.in_(list(uids)), L.bucket == _HELD)
        .where(W.start_ms >= window.start_ms, W.end_ms <= window.end_ms)
        .where(*in_clusters(scope, W.cluster))
        .group_by(L.window_id, W.cluster, *_HOLDER_COLUMNS)
    )


def _frame(scope: Scope, read: list[_Reading], held: list[_Held]) -> pd.DataFrame:
    whole: dict[tuple[Any, str, str, str], int] = defaultdict(int)
    for window, job, pod, name, _, board_ms in read:
        whole[window, job[0], pod, name] += board_ms
    amounts = defaultdict[tuple[_Job, str], list[float]](list)
    pods = defaultdict[tuple[_Job, str], set[str]](set)
    windows = defaultdict[tuple[_Job, str], set[Any]](set)
    for window, job, pod, name, amount, board_ms in read:
        part = Fraction(board_ms, whole[window, job[0], pod, name] or 1)
        amounts[job, name].append(amount if part == 1 else float(Fraction(amount) * part))
        pods[job, name].add(pod)
        windows[job, name].add(window)
    of_job = defaultdict[_Job, list[_Held]](list)
    for each in held:
        of_job[each[1]].append(each)
    rows = []
    for (job, name), found in sorted(amounts.items()):
        if not _sees(scope, job):
            continue
        counted = [each for each in of_job[job] if each[0] in windows[job, name]]
        sums = (
            sum(each[2] for each in counted),
            sum(each[3] for each in counted),
            sum(each[4] for each in counted),
        )
        # fsum does not depend on the order in which a database returns rows.
        head = (*job, name, math.fsum(found), len(pods[job, name]))
        rows.append((*head, *sums, sum(each[2] for each in of_job[job])))
    frame = pd.DataFrame(rows, columns=list(COUNT_COLUMNS))
    types = dict.fromkeys((*JOB_KEY_COLUMNS, "name"), "str") | {"amount": "float64"}
    return frame.astype(types | dict.fromkeys(COUNT_COLUMNS[8:], "int64"))


def _sees(scope: Scope, job: _Job) -> bool:
    return scope.teams is None or job[1] in scope.teams
