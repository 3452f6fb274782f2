"""The allocations of a few pods, row by row, for rules that loop over candidates; and amounts as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import pandas as pd

from gpucost.cluster.views.commands import is_plain, kubectl
from gpucost.detectors.findings import FindingAction, FindingSubject, SubjectKind, WasteEpisode
from gpucost.domain.buckets import Waste
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, iso

LEAST_COVERAGE = 0.9
"""The part of the samples of a rule's input that must exist for it to report anything (design, data
quality)."""


class AllocationPiece(NamedTuple):
    """One row of ``ClusterHistory.held``: ``boards`` in ``[start_ms, end_ms)``, NaN where the share is not
    known."""

    cluster: str
    node: str
    namespace: str
    pod: str
    pod_uid: str
    job_kind: str
    job: str
    job_uid: str
    workload: str
    queue: str
    cluster_queue: str
    team: str
    user: str
    resource: str
    units: int
    boards: float
    start_ms: int
    end_ms: int

    @property
    def subject(self) -> FindingSubject:
        """The job of the pod."""
        return FindingSubject(SubjectKind.JOB, self.cluster, self.job, self.namespace, self.job_uid)

    def episode(
        self, waste: Waste, start_ms: int, end_ms: int, boards: float | None = None
    ) -> WasteEpisode | None:
        """A claim on its time within ``[start_ms, end_ms)``, on all GPUs it held unless ``boards`` says less;
        None where it held nothing then."""
        start, end = max(self.start_ms, start_ms), min(self.end_ms, end_ms)
        if start >= end:
            return None
        amount = None if math.isnan(self.boards) else self.boards
        amount = amount if boards is None else boards
        return WasteEpisode(waste, self.cluster, self.node, self.pod_uid, start, end, amount, self.resource)


class PriorHolding:
    """How many GPUs a job held in the minute before an instant, for instants that must come in order."""

    def __init__(self, rows: Iterable[AllocationPiece]) -> None:
        self._coming = sorted((row.start_ms, n, row) for n, row in enumerate(rows))
        self._next = 0
        self._open: list[tuple[int, int, AllocationPiece]] = []
        self._held: dict[tuple[str, str], tuple[int, float]] = {}
        self._sum = 0.0

    def boards(self, instant_ms: int) -> float:
        """For a pod that changed in that minute, what it held last; unknown shares count as 0."""
        while self._next < len(self._coming) and self._coming[self._next][0] < instant_ms:
            _, n, row = self._coming[self._next]
            self._next += 1
            self._drop((row.pod_uid, row.resource))
            boards = 0.0 if math.isnan(row.boards) else row.boards
            self._held[row.pod_uid, row.resource] = n, boards
            self._sum += boards
            heappush(self._open, (row.end_ms, n, row))
        while self._open and self._open[0][0] < instant_ms - MINUTE_MS:
            _, n, row = heappop(self._open)
            key = row.pod_uid, row.resource
            if self._held.get(key, (-1, 0.0))[0] == n:
                self._drop(key)
        # Sums of parts of GPUs, added and subtracted again: nine digits of them are exact.
        return round(self._sum, 9)

    def _drop(self, key: tuple[str, str]) -> None:
        self._sum -= self._held.pop(key, (-1, 0.0))[1]


def pieces(held: pd.DataFrame, column: str, values: Collection[str]) -> dict[str, list[AllocationPiece]]:
    """The rows of ``held`` whose ``column`` is one of ``values``, by that value, ordered by time."""
    found: dict[str, list[AllocationPiece]] = {}
    if not values:
        return found
    rows = held[held[column].isin(list(values))].sort_values(["start_ms", "pod_uid", "node", "resource"])
    at = AllocationPiece._fields.index(column)
    names = ("count" if name == "units" else name for name in AllocationPiece._fields)
    for row in zip(*(rows[name].tolist() for name in names), strict=True):
        found.setdefault(row[at], []).append(AllocationPiece(*row))
    return found


def by_namespace(rows: Iterable[AllocationPiece]) -> list[list[AllocationPiece]]:
    """Rows of one uid by namespace: a uid is what an owner reference claims, and pods of another namespace
    are another job."""
    found: dict[str, list[AllocationPiece]] = {}
    for row in rows:
        found.setdefault(row.namespace, []).append(row)
    return list(found.values())


def board_ms(episodes: Iterable[WasteEpisode]) -> int:
    """GPU time of claims; claims with an unknown number of GPUs count as 0."""
    return round(sum((each.end_ms - each.start_ms) * (each.boards or 0.0) for each in episodes))


def within(episodes: Iterable[WasteEpisode], spans: Sequence[tuple[int, int]]) -> Iterator[WasteEpisode]:
    """The parts of claims that lie in one of ``spans``, which do not overlap."""
    for each in episodes:
        for start, end in spans:
            if start < each.end_ms and end > each.start_ms:
                yield replace(each, start_ms=max(start, each.start_ms), end_ms=min(end, each.end_ms))


def boards_at(rows: Iterable[AllocationPiece], instant_ms: int) -> float:
    """GPUs that these rows hold at an instant, without those whose share is not known."""
    here = (row.boards for row in rows if row.start_ms <= instant_ms < row.end_ms)
    return sum(boards for boards in here if not math.isnan(boards))


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans that touch or overlap merged, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return found


def hours(amount_ms: float) -> str:
    """GPU time as text: ``12.5 GPU-hours``."""
    number = amount_ms / HOUR_MS
    return f"{number:,.0f} GPU-hours" if number >= 100 else f"{number:.3g} GPU-hours"


def lasting(length_ms: int) -> str:
    """A duration as text: ``45 s``, ``12 min``, ``3.2 h``."""
    if length_ms < MINUTE_MS:
        return f"{length_ms / SECOND_MS:g} s"
    if length_ms < 2 * HOUR_MS:
        return f"{length_ms // MINUTE_MS} min"
    return f"{length_ms / HOUR_MS:.1f} h"


def amount(number: float, one: str, many: str = "") -> str:
    """``1 GPU``, ``2.5 GPUs``."""
    return f"{number:g} {one if number == 1 else many or one + 's'}"


def since(instant_ms: int) -> str:
    """To the second, as the finding itself gives its start."""
    return iso(instant_ms // SECOND_MS * SECOND_MS)


def with_names(action: FindingAction, *names: str) -> FindingAction:
    """The action as it is, if all ``names`` in its patch are plain; else without a patch: a reader should not
    have to check what a strange name does in a command or in YAML."""
    if not action.patch or all(map(is_plain, names)):
        return action
    return replace(action, text=f"{action.text.rstrip('.')} (by hand: its name is no plain name).", patch="")


_SUSPENDED: dict[str, tuple[str, str]] = {
    JobKind.JOB: ("jobs.batch", '{"spec":{"suspend":true}}'),
    JobKind.CRON_JOB: ("jobs.batch", '{"spec":{"suspend":true}}'),
    JobKind.JOB_SET: ("jobsets.jobset.x-k8s.io", '{"spec":{"suspend":true}}'),
    JobKind.TRAIN_JOB: ("trainjobs.trainer.kubeflow.org", '{"spec":{"suspend":true}}'),
    JobKind.RAY_JOB: ("rayjobs.ray.io", '{"spec":{"suspend":true}}'),
    **{
        kind: (f"{kind.lower()}s.kubeflow.org", '{"spec":{"runPolicy":{"suspend":true}}}')
        for kind in (
            *(JobKind.PYTORCH_JOB, JobKind.TF_JOB, JobKind.XGBOOST_JOB),
            *(JobKind.PADDLE_JOB, JobKind.JAX_JOB, JobKind.MPI_JOB),
        )
    },
}
"""Kinds that can be suspended: the resource as kubectl has it, and the patch (their API references)."""


NOT_MADE_AGAIN = frozenset({JobKind.POD, JobKind.OTHER})
"""Kinds without a known controller that recreates a deleted pod: no command of gpucost deletes their pods."""


def by_its_owner(pods: Sequence[str]) -> str:
    """The advice to use the owner instead of deleting pods, by their names."""
    again = "this pod" if len(pods) == 1 else "these pods"
    return (
        f"No controller makes {again} again ({', '.join(pods)}): ask whoever runs it to save its work, "
        "end it and start it anew"
    )


def stop_command(rows: Sequence[AllocationPiece]) -> str:
    """The command that makes a job give back what it holds and keeps its object, by the first of ``rows``.

    Kueue's workload is deactivated where there is one, else the job is suspended where its kind allows it; of
    all others the pods are deleted, and their controller recreates them. A uid may be claimed by pods of
    another namespace: those are not touched. Empty for pods that no controller recreates (to deactivate the
    Workload of a plain pod deletes the pod).
    """
    first = rows[0]
    if first.job_kind in NOT_MADE_AGAIN:
        return ""
    where = ("-n", first.namespace)
    if first.workload and first.cluster_queue:
        name = f"workloads.kueue.x-k8s.io/{first.workload}"
        return kubectl(*where, "patch", name, "--type=merge", "-p", '{"spec":{"active":false}}')
    if first.job_kind == JobKind.VOLCANO_JOB:
        return shlex.join(("vcctl", "job", "suspend", "--namespace", first.namespace, "--name", first.job))
    if first.job_kind in _SUSPENDED:
        resource, patch = _SUSPENDED[first.job_kind]
        return kubectl(*where, "patch", f"{resource}/{first.job}", "--type=merge", "-p", patch)
    return kubectl(*where, "delete", "pod", *_pods_of(rows))


def stop_action(text: str, rows: Sequence[AllocationPiece], boards: float) -> FindingAction:
    """Stop a job with ``stop_command``; without a command where a name in it is not plain."""
    first = rows[0]
    if first.job_kind in NOT_MADE_AGAIN:
        return FindingAction(f"{text.rstrip('.')}. {by_its_owner(_pods_of(rows))}", "", boards)
    names = (first.namespace, first.job, *filter(None, (first.workload,)), *_pods_of(rows))
    return with_names(FindingAction(text, stop_command(rows), boards), *names)


def _pods_of(rows: Sequence[AllocationPiece]) -> list[str]:
    """Pods of the first row's namespace, by name."""
    return sorted({row.pod for row in rows if row.namespace == rows[0].namespace})
