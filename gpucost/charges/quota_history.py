"""Quotas as a scheduler had them, written as the quotas and cohorts of a charge policy.

``quota_file`` takes what a source saw of ClusterQueues and Cohorts (units of a flavor and resource, from one
instant to another) and gives the text of a ``QuotaFile``: GPUs of a model, dated by the instants at which
they changed. Kueue's rules (pkg/cache/scheduler/resource_node.go, v0.19.2): quota and lending limits are of
a flavor and resource; so a queue's quotas of the flavors of one model are added up, and so are their limits,
where a flavor without a limit counts with all of its quota. A cohort's lending limit is of all that leaves
it, whosever quota that was.

``reservations`` are what Kueue had reserved for admitted work (``status.flavorsUsage``; what is reserved
while admission checks are outstanding is not in it), written where it was more than pods of the queue held
(``unheld``): there, and only there, charges differ by it. Where nobody looked, nothing is known to have been
reserved. The dates of a source that looks by the minute, and reads exporters once a minute, are late by up to
two: shorter times are as likely the end of a job that was seen late, and are left out, with their sum.

What cannot be said in the file is left out, and named in a comment at its head: a flavor whose model or share
of a GPU is not known, limits that hold for a part of a model. Cohorts have no dates in a policy: one whose
place in the tree changed is written once for each place, under names of their own.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from pydantic import Field

from gpucost.charges.capacity_cells import CapacityCell
from gpucost.domain.buckets import Bucket
from gpucost.domain.configfile import DatedConfigModel, NanoAmount, Text
from gpucost.domain.money import NANO, plain
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Window, iso

FlavorKey = tuple[str, str, str]
"""Cluster, flavor and resource."""
CohortPath = tuple[str, ...]
"""A cohort and those above it, the root last."""
PoolQueue = tuple[str, str, str]
"""Cluster, GPU model and ClusterQueue."""
_BRIDGED_MS = 5 * MINUTE_MS
_DATED_MS = 2 * MINUTE_MS


class QueueReservation(DatedConfigModel):
    """Quota that a scheduler had reserved for admitted work of a queue (Kueue: ``status.flavorsUsage`` of a
    ClusterQueue), whether its pods ran or not."""

    queue: Text = Field(description="text, a ClusterQueue")
    model: Text = Field(description="text, the GPU model as usage lines name it, such as H100")
    gpus: NanoAmount = Field(description="GPUs that were reserved, such as 16 or 2.5")
    cluster: Text = Field(description="text, the cluster")


_start_ms = attrgetter("start_ms")


def by_pool(
    reservations: Iterable[QueueReservation],
) -> Mapping[tuple[str, str], list[list[QueueReservation]]]:
    """By cluster and model: the reservations of each queue, by time."""
    queues: dict[PoolQueue, list[QueueReservation]] = defaultdict(list)
    for each in reservations:
        queues[each.cluster, each.model, each.queue].append(each)
    found: dict[tuple[str, str], list[list[QueueReservation]]] = defaultdict(list)
    for (cluster, model, _), own in sorted(queues.items()):
        found[cluster, model].append(sorted(own, key=_start_ms))
    return found


def inside(own: Sequence[QueueReservation], window: Window) -> Iterator[QueueReservation]:
    """Those of one queue and pool, by time and one after the other, that hold at some time of ``window``."""
    # The one that holds at its beginning is the last that began by then.
    for n in range(max(0, bisect_right(own, window.start_ms, key=_start_ms) - 1), len(own)):
        if own[n].start_ms >= window.end_ms:
            return
        if own[n].end_ms > window.start_ms:
            yield own[n]


def double_reservation(reservations: Sequence[QueueReservation]) -> tuple[int, int] | None:
    """The positions of two of the same queue, model, cluster and time; None where there are none."""
    own: dict[PoolQueue, list[int]] = defaultdict(list)
    for n, each in enumerate(reservations):
        own[each.cluster, each.model, each.queue].append(n)
    for alike in own.values():
        # There may be thousands: only neighbours in time are compared.
        alike.sort(key=lambda n: reservations[n].start_ms)
        for n, after in pairwise(alike):
            if reservations[n].coincides(reservations[after]):
                return min(n, after), max(n, after)
    return None


class QuotaSpan(NamedTuple):
    """What a ClusterQueue had of a flavor and resource in ``[start_ms, end_ms)``, in units of the resource.
    ``cohort`` is the one that it names itself, empty where it shares with nobody."""

    cluster: str
    queue: str
    cohort: str
    flavor: str
    resource: str
    start_ms: int
    end_ms: int
    nominal: Fraction
    lending_limit: Fraction | None
    used: Fraction | None = None
    """What was reserved of it for admitted work; None where that is not known."""


class CohortSpan(NamedTuple):
    """Where a cohort stood in ``[start_ms, end_ms)``; with a flavor, what it had of its own there, in
    units."""

    cluster: str
    cohort: str
    parent: str
    flavor: str
    resource: str
    start_ms: int
    end_ms: int
    nominal: Fraction | None
    lending_limit: Fraction | None


class UnitModel(NamedTuple):
    """The GPU model of a flavor, and the share of a GPU that one unit of its resource is."""

    model: str
    share: Fraction


@dataclass(frozen=True)
class QuotaHistory:
    """What is known of quotas in ``window``.

    ``units`` are the models of flavors as usage shows them: none or several where it does not say which.
    ``observed`` is the time in which each cluster was watched: quota does not end because nobody looked.
    ``teams`` pay for queues, ``cohort_teams`` for the quota of cohorts. ``remarks`` are written at the head
    of the file.
    """

    window: Window
    spans: Sequence[QuotaSpan]
    cohorts: Sequence[CohortSpan]
    units: Mapping[FlavorKey, frozenset[UnitModel]]
    observed: Mapping[str, Sequence[Window]]
    teams: Mapping[str, str]
    cohort_teams: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    cells: Iterable[CapacityCell] = ()
    """What pods held in the window: reservations are known by the side of it only. Read at most once."""


class ReservedStretch(NamedTuple):
    """What was reserved of a queue's GPUs of one model in ``[start_ms, end_ms)``; ``unheld_ms`` of it, in
    GPU-milliseconds, no pod of the queue held."""

    start_ms: int
    end_ms: int
    gpus: Fraction
    unheld_ms: Fraction = Fraction(0)


class _Stretch(NamedTuple):
    """What an entry of the file says in ``[start_ms, end_ms)``, in GPUs."""

    start_ms: int
    end_ms: int
    gpus: Fraction
    limit: Fraction | None
    path: CohortPath


class _Amount(NamedTuple):
    """An amount of one flavor and resource."""

    start_ms: int
    end_ms: int
    nominal: Fraction
    limit: Fraction | None
    cohort: str


def quota_file(history: QuotaHistory) -> str:
    """The text of the file: the same history gives the same text."""
    return _QuotaWriter(history).text()


class _QuotaWriter:
    def __init__(self, history: QuotaHistory) -> None:
        self._history = history
        self._remarks = list(history.remarks)
        self._left_out: dict[str, None] = {}
        self._tree = _CohortTree(history)

    def text(self) -> str:
        entries, reservations = [*self._queues(), *self._shared()], [*self._reservations()]
        lines = ["# Quotas as they were, written by `gpucost chargeback quotas`. Name this file in a policy:"]
        lines += ["# quotas_file: NAME. Check who pays for what before it is used."]
        lines += [f"# {each}" for each in (*self._remarks, *self._left_out)]
        lines += ["version: 1", *_section("quotas", entries), *_section("cohorts", self._tree.entries())]
        lines += _section("reservations", reservations) if reservations else []
        return "\n".join(lines) + "\n"

    def _queues(self) -> Iterator[str]:
        """The quotas of queues, in order of cluster, queue and model."""
        found: dict[tuple[str, str, str], dict[FlavorKey, list[_Amount]]] = defaultdict(dict)
        spans: dict[tuple[str, FlavorKey], list[QuotaSpan]] = defaultdict(list)
        for each in self._history.spans:
            spans[each.queue, (each.cluster, each.flavor, each.resource)].append(each)
        for (queue, key), own in sorted(spans.items()):
            unit = self._unit(key, f"queue {_quoted(queue)}")
            if unit is not None:
                amounts = [
                    _Amount(
                        each.start_ms, each.end_ms, each.nominal * unit.share,
                        None if each.lending_limit is None else each.lending_limit * unit.share, each.cohort,
                    )
                    for each in own
                ]  # fmt: skip
                found[key[0], queue, unit.model][key] = self._bridged(key[0], amounts)
        for (cluster, queue, model), flavors in sorted(found.items()):
            head = {"team": self._history.teams[queue], "model": model}
            place = {"cluster": cluster, "queue": queue}
            for stretch in self._summed(cluster, [*flavors.values()]):
                yield self._entry(head, place, stretch)

    def _shared(self) -> Iterator[str]:
        """The quotas of cohorts of their own."""
        found: dict[tuple[str, str, str], dict[FlavorKey, list[_Amount]]] = defaultdict(dict)
        spans: dict[tuple[str, FlavorKey], list[CohortSpan]] = defaultdict(list)
        for each in self._history.cohorts:
            if each.flavor:
                spans[each.cohort, (each.cluster, each.flavor, each.resource)].append(each)
        for (cohort, key), own in sorted(spans.items()):
            unit = self._unit(key, f"cohort {_quoted(cohort)}")
            if unit is not None:
                amounts = [
                    _Amount(
                        each.start_ms, each.end_ms, (each.nominal or Fraction(0)) * unit.share,
                        None if each.lending_limit is None else each.lending_limit * unit.share, cohort,
                    )
                    for each in own
                ]  # fmt: skip
                found[key[0], cohort, unit.model][key] = self._bridged(key[0], amounts)
        for (cluster, cohort, model), flavors in sorted(found.items()):
            whole = self._flavors_of(cluster, model) <= {*flavors}
            team = self._history.cohort_teams.get(cohort)
            head: dict[str, str] = {} if team is None else {"team": team}
            for stretch in self._summed(cluster, [*flavors.values()], of_cohort=True, whole=whole):
                yield self._entry({**head, "shared": "", "model": model}, {"cluster": cluster}, stretch)
            if not whole and any(each.limit is not None for of in flavors.values() for each in of):
                self._left_out[
                    f"Left out: the lending limit of cohort {_quoted(cohort)} on {_quoted(model)}: it is of "
                    "some flavors of that model, and others leave the cohort without limit."
                ] = None

    def _reservations(self) -> Iterator[str]:
        """What was reserved while pods of the queue did not hold all of it."""
        reserved = self._reserved()
        if not reserved:
            return
        told, short, n = set[str](), Fraction(0), 0
        found = unheld(reserved, _noted(self._history.cells, told))
        for (cluster, model, queue), stretches in sorted(found.items()):
            if cluster not in told:
                self._left_out[
                    f"Left out: what was reserved in cluster {_quoted(cluster)}: the ledger does not say of "
                    "which ClusterQueue its pods are."
                ] = None
                continue
            for run in _runs(stretches):
                if run[-1].end_ms - run[0].start_ms <= _DATED_MS:
                    n, short = n + 1, sum((each.unheld_ms for each in run), short)
                    continue
                for each in run:
                    names = {"queue": queue, "model": model, "cluster": cluster}
                    parts = [f"{key}: {_quoted(value)}" for key, value in names.items()]
                    dates = f'valid_from: "{iso(each.start_ms)}", valid_to: "{iso(each.end_ms)}"'
                    yield f"{{{', '.join(parts)}, gpus: {_decimal(each.gpus)}, {dates}}}"
        if n:
            hours = Fraction(int(short * 100 / HOUR_MS), 100)
            self._left_out[
                f"Left out: what was reserved and not held for two minutes or less: {n} times, together "
                f"{_decimal(hours)} GPU-hours. Dates are no more exact than that."
            ] = None

    def _reserved(self) -> dict[PoolQueue, list[ReservedStretch]]:
        """What was reserved, in GPUs: the flavors of one model together, while somebody looked."""
        found: dict[PoolQueue, list[QuotaSpan]] = defaultdict(list)
        for each in self._history.spans:
            key = each.cluster, each.flavor, each.resource
            if each.used is None:
                self._left_out[
                    f"Left out: reservations in cluster {_quoted(each.cluster)} at the times at which the "
                    "source does not say what was reserved."
                ] = None
            unit = self._unit(key, f"queue {_quoted(each.queue)}") if each.used else None
            if unit is not None and each.used:
                found[each.cluster, unit.model, each.queue].append(each._replace(used=each.used * unit.share))
        return {
            key: [
                stretch
                for part in self._history.observed.get(key[0], ())
                if (seen := part.intersect(self._history.window)) is not None
                for stretch in _added(own, seen)
            ]
            for key, own in found.items()
        }

    def _entry(self, head: Mapping[str, str], place: Mapping[str, str], stretch: _Stretch) -> str:
        parts = ["shared: true" if key == "shared" else f"{key}: {_quoted(head[key])}" for key in head]
        parts.append(f"gpus: {_decimal(stretch.gpus)}")
        parts += [f"{key}: {_quoted(value)}" for key, value in place.items()]
        if stretch.path:
            parts.append(f"cohort: {_quoted(self._tree.label(stretch.path))}")
        if stretch.limit is not None:
            parts.append(f"lending_limit: {_decimal(stretch.limit)}")
        parts += [f'valid_from: "{iso(stretch.start_ms)}"', f'valid_to: "{iso(stretch.end_ms)}"']
        return f"{{{', '.join(parts)}}}"

    def _unit(self, key: FlavorKey, of: str) -> UnitModel | None:
        """The model and share of a flavor's units; None, with a remark, where usage does not say one."""
        units = self._history.units.get(key, frozenset())
        if len(units) == 1:
            return next(iter(units))
        _, flavor, resource = key
        what = f"Left out: {_quoted(resource)} of flavor {_quoted(flavor)}, {of}"
        models = sorted({each.model for each in units})
        if not units:
            why = "no pod held any in this time, so its model is not known (--model FLAVOR=MODEL)"
        elif len(models) > 1:
            why = f"pods held {', '.join(map(_quoted, models))} in it (--model FLAVOR=MODEL)"
        else:
            why = "its units are different parts of a GPU on different nodes"
        self._left_out[f"{what}: {why}."] = None
        return None

    def _flavors_of(self, cluster: str, model: str) -> set[FlavorKey]:
        """The flavors and resources of a model that queues of the cluster have quota of."""
        keys = {(each.cluster, each.flavor, each.resource) for each in self._history.spans}
        units = self._history.units
        return {
            key for key in keys if key[0] == cluster and model in {each.model for each in units.get(key, ())}
        }

    def _bridged(self, cluster: str, amounts: Iterable[_Amount]) -> list[_Amount]:
        """Amounts without the breaks in which the cluster was not watched: until it was seen to be another
        one, the amount holds that was seen last."""
        observed = self._history.observed.get(cluster, ())
        found: list[_Amount] = []
        for each in sorted(amounts, key=lambda amount: amount.start_ms):
            before = found[-1] if found else None
            if before is not None and before.end_ms <= each.start_ms:
                seen = sum(
                    max(0, min(part.end_ms, each.start_ms) - max(part.start_ms, before.end_ms))
                    for part in observed
                )
                if each.start_ms == before.end_ms or seen <= _BRIDGED_MS:
                    if before[2:] == each[2:]:
                        found[-1] = before._replace(end_ms=each.end_ms)
                        continue
                    found[-1] = before._replace(end_ms=each.start_ms)
            found.append(each)
        return found

    def _summed(
        self,
        cluster: str,
        flavors: Sequence[Sequence[_Amount]],
        *,
        of_cohort: bool = False,
        whole: bool = True,
    ) -> Iterator[_Stretch]:
        """The flavors of one model together: a stretch for each time in which nothing changed."""
        window = self._history.window
        edges = {edge for own in flavors for each in own for edge in (each.start_ms, each.end_ms)}
        edges |= self._tree.edges(cluster)
        inside = sorted({min(max(edge, window.start_ms), window.end_ms) for edge in edges})
        last: _Stretch | None = None
        for start, end in pairwise(inside):
            here = [each for own in flavors for each in own if each.start_ms <= start < each.end_ms]
            if not here:
                continue
            gpus = sum((each.nominal for each in here), Fraction(0))
            limits = [each.limit for each in here]
            limit: Fraction | None = None
            if of_cohort:
                if whole and len(here) == len(flavors) and None not in limits:
                    limit = sum((each for each in limits if each is not None), Fraction(0))
            elif any(each is not None for each in limits):
                limit = sum(
                    (each.nominal if each.limit is None else min(each.limit, each.nominal) for each in here),
                    Fraction(0),
                )
            path = self._tree.path(cluster, here[-1].cohort, start)
            stretch = _Stretch(start, end, gpus, limit, path)
            if last is not None and last.end_ms == start and last[2:] == stretch[2:]:
                last = last._replace(end_ms=end)
                continue
            if last is not None:
                yield last
            last = stretch
        if last is not None:
            yield last


def _noted(cells: Iterable[CapacityCell], told: set[str]) -> Iterator[CapacityCell]:
    """``cells`` as they pass; ``told`` are the clusters in which a pod's ClusterQueue is known."""
    for cell in cells:
        if cell.cluster not in told and any(row.queue for row in cell.rows):
            told.add(cell.cluster)
        yield cell


def unheld(
    reserved: Mapping[PoolQueue, Sequence[ReservedStretch]], cells: Iterable[CapacityCell]
) -> dict[PoolQueue, list[ReservedStretch]]:
    """The parts of ``reserved`` in which pods of the queue held less, by time; parts of equal GPUs that meet
    are one. Where there is no cell nothing is charged, and nothing is found.

    Rows are taken at their mean rate, as charges do: between instants at which one of them, or a
    reservation, begins or ends, nothing changes.
    """
    queues: dict[tuple[str, str], list[PoolQueue]] = defaultdict(list)
    for key in reserved:
        queues[key[:2]].append(key)
    found: dict[PoolQueue, list[ReservedStretch]] = defaultdict(list)
    for cell in cells:
        for key in queues.get((cell.cluster, cell.model), ()):
            found[key] += _unheld_in(cell, key[2], reserved[key])
    return {key: [*_joined(sorted(own))] for key, own in found.items() if own}


def _unheld_in(
    cell: CapacityCell, queue: str, reserved: Sequence[ReservedStretch]
) -> Iterator[ReservedStretch]:
    window = cell.window
    # Stretches follow each other.
    first = max(0, bisect_right(reserved, window.start_ms, key=_start_ms) - 1)
    past = bisect_right(reserved, window.end_ms - 1, key=_start_ms)
    here = [each for each in reserved[first:past] if each.end_ms > window.start_ms]
    if not here:
        return
    rows = [row for row in cell.of_bucket(Bucket.HELD) if row.queue == queue]
    edges = {edge for row in rows for edge in (row.first_ms, row.last_ms)}
    for each in here:
        start, end = max(each.start_ms, window.start_ms), min(each.end_ms, window.end_ms)
        for left, right in pairwise(sorted({start, end, *(edge for edge in edges if start < edge < end)})):
            held = sum(
                (
                    Fraction(row.board_ms, row.last_ms - row.first_ms)
                    for row in rows
                    if row.first_ms <= left and right <= row.last_ms
                ),
                Fraction(0),
            )
            if each.gpus > held:
                yield ReservedStretch(left, right, each.gpus, (each.gpus - held) * (right - left))


def _added(own: Sequence[QuotaSpan], window: Window) -> Iterator[ReservedStretch]:
    """What flavors of one model come to together in ``window``, by time."""
    edges = {edge for each in own for edge in (each.start_ms, each.end_ms)}
    inner = {edge for edge in edges if window.start_ms < edge < window.end_ms}
    ordered = sorted(own, key=_start_ms)
    open_spans: list[QuotaSpan] = []
    n = 0
    for start, end in pairwise([window.start_ms, *sorted(inner), window.end_ms]):
        while n < len(ordered) and ordered[n].start_ms <= start:
            open_spans.append(ordered[n])
            n += 1
        open_spans = [each for each in open_spans if each.end_ms > start]
        gpus = sum((each.used for each in open_spans if each.used), Fraction(0))
        if gpus:
            yield ReservedStretch(start, end, gpus)


def _joined(stretches: Iterable[ReservedStretch]) -> Iterator[ReservedStretch]:
    last: ReservedStretch | None = None
    for each in stretches:
        if last is not None and last.end_ms == each.start_ms and last.gpus == each.gpus:
            last = last._replace(end_ms=each.end_ms, unheld_ms=last.unheld_ms + each.unheld_ms)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _runs(stretches: Sequence[ReservedStretch]) -> Iterator[list[ReservedStretch]]:
    """Stretches that meet, together."""
    run: list[ReservedStretch] = []
    for each in stretches:
        if run and run[-1].end_ms != each.start_ms:
            yield run
            run = []
        run.append(each)
    if run:
        yield run


class _CohortTree:
    """Where cohorts stood, and what each place is called in the file."""

    def __init__(self, history: QuotaHistory) -> None:
        self._runs: dict[tuple[str, str], list[CohortSpan]] = defaultdict(list)
        for each in sorted(history.cohorts, key=lambda span: span.start_ms):
            if not each.flavor:
                self._runs[each.cluster, each.cohort].append(each)
        self._labels: dict[CohortPath, str] = {}
        self._end_ms = history.window.end_ms

    def edges(self, cluster: str) -> set[int]:
        return {
            edge
            for (of, _), runs in self._runs.items()
            for each in (runs if of == cluster else ())
            for edge in (each.start_ms, each.end_ms)
        }

    def path(self, cluster: str, cohort: str, at_ms: int) -> CohortPath:
        """The cohort and those above it then. Kueue admits nothing in a circle of cohorts; the path ends
        before it closes."""
        found: list[str] = []
        while cohort and cohort not in found:
            found.append(cohort)
            runs = self._runs.get((cluster, cohort), ())
            # Before it was first seen, and while nobody looked, it stands where it was seen next to that.
            known = [each for each in runs if each.start_ms <= at_ms] or list(runs[:1])
            cohort = known[-1].parent if known else ""
        return tuple(found)

    def label(self, path: CohortPath) -> str:
        """The name of a cohort in one place of the tree: its own for the first place that is asked for."""
        if path not in self._labels:
            if path[1:]:
                self.label(path[1:])
            name, n = path[0], 2
            while name in self._labels.values():
                name, n = f"{path[0]} ({n})", n + 1
            self._labels[path] = name
        return self._labels[path]

    def entries(self) -> Iterator[str]:
        """The cohorts that stand below others."""
        for path, name in self._labels.items():
            if path[1:]:
                yield f"{{name: {_quoted(name)}, parent: {_quoted(self._labels[path[1:]])}}}"


def _section(name: str, entries: Iterable[str]) -> Iterator[str]:
    lines = [f"  - {each}" for each in entries]
    yield from [f"{name}:", *lines] if lines else [f"{name}: []"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _decimal(gpus: Fraction) -> str:
    """GPUs, rounded down to nano-units, without needless zeros."""
    text = plain(gpus.numerator * NANO // gpus.denominator)
    return text.rstrip("0").rstrip(".") if "." in text else text
