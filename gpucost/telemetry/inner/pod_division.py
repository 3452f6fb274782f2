"""What pods held, cut among the jobs that an inner scheduler ran in them, at every moment.

A Slurm node or a Ray cluster on Kubernetes is a pod, or some, with whole GPUs, held by whoever runs it.
``divide`` takes the rows of such pods (frames.ALLOCATIONS) and gives each job its GPUs of them, under the
pod's name and the job's own name, user and team; what no job had stays with the pod's holder. So at every
moment the parts of a row add up to it: what follows counts, prices and conserves them as it does pods.

- Only pods that the scheduler's own rule names are divided (``InnerScheduler``), whatever a record says.
- Jobs have a pod's GPUs in the order in which they began, those whose team is not believed after all others.
  One for which fewer are left has these: what its record says beyond them is charged to nobody and is a
  problem, since the pod's GPUs are paid for once.
- A job's GPUs are an equal number on each of its nodes; where that does not come out, the first nodes have
  one more, which is a problem. Without nodes (Ray) they are of any pods, in the order of their names.

``UnitSizes`` says how much of a GPU a unit that a pod holds is: a whole one, a MIG slice, one of several
replicas.

The parts of a moment depend on the records and pods of that moment alone, never on the window that is read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from gpucost.attribution.frames import ClusterFrames
from gpucost.contract.frames import ALLOCATIONS
from gpucost.domain.errors import DataProblem, DataProblemCode, InputError
from gpucost.domain.gpu import WHOLE, ResourceCatalog, ShareBasis, is_shared_resource
from gpucost.domain.jobs import JobKind
from gpucost.domain.time import HOUR_MS, Window
from gpucost.telemetry.evidence.frame_rows import FrameRow
from gpucost.telemetry.inner.inner_jobs import InnerJob, KnownRun, KnownRuns

_MOST_REFUSED = 20
_AT = {name: at for at, name in enumerate(ALLOCATIONS.column_names)}
_NODE, _POD, _UID, _RESOURCE = _AT["node"], _AT["pod"], _AT["pod_uid"], _AT["resource"]
_COUNT, _START, _END = _AT["count"], _AT["start_ms"], _AT["end_ms"]


class UnitSize(NamedTuple):
    """``gpus`` are those of a unit, None where that is not known. ``is_handed_out``: an inner scheduler can
    count such units as GPUs; else they are shares of GPUs that others have, too."""

    gpus: Fraction | None
    is_handed_out: bool = True


class UnitSizes:
    """Sizes by what the nodes of one cluster had when a pod's row began, by the rules of attribution."""

    def __init__(
        self,
        frames: ClusterFrames | None = None,
        catalog: ResourceCatalog | None = None,
        basis: ShareBasis = ShareBasis.COMPUTE,
    ) -> None:
        """Without ``frames`` a unit is what its name alone says."""
        self._catalog, self._basis = catalog or ResourceCatalog(), basis
        self._products: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self._replicas: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
        self._known: dict[tuple[str, str, int], UnitSize] = {}
        if frames is None:
            return
        nodes, counts = frames.nodes, frames.capacity
        for node, start, end, product in zip(
            *(nodes[name].tolist() for name in ("node", "start_ms", "end_ms", "product")), strict=True
        ):
            self._products[node].append((start, end, product))
        columns = ("node", "resource", "start_ms", "end_ms", "replicas")
        for node, resource, start, end, replicas in zip(
            *(counts[name].tolist() for name in columns), strict=True
        ):
            self._replicas[node, resource].append((start, end, replicas))

    def of(self, row: FrameRow) -> UnitSize:
        """Of a row of frames.ALLOCATIONS."""
        node, resource, start_ms, end_ms = (row[at] for at in (_NODE, _RESOURCE, _START, _END))
        key = str(node), str(resource), int(str(start_ms))
        if key not in self._known:
            self._known[key] = self._of(*key, int(str(end_ms)))
        return self._known[key]

    def _of(self, node: str, resource: str, start_ms: int, end_ms: int) -> UnitSize:
        is_part = is_shared_resource(resource) or self._catalog.shares.get(resource, WHOLE) != WHOLE
        product = next((p for a, b, p in self._products[node] if a < end_ms and b > start_ms), "")
        counts = self._replicas[node, resource]
        replicas = next((n for a, b, n in counts if a < end_ms and b > start_ms), 1)
        try:
            gpus: Fraction | None = self._catalog.unit(resource, product, replicas, self._basis).share
        except InputError:
            gpus = None
        return UnitSize(gpus, not is_part)


class NodeNameSource(StrEnum):
    """What an inner scheduler's node is called after: the pod, or the Kubernetes node, whole or to its first
    dot. The values are those of the settings."""

    POD = "pod"
    NODE = "node"
    SHORT_NODE = "short_node"


@dataclass(frozen=True)
class InnerScheduler:
    """Which pods an inner scheduler may divide: those of ``namespace`` in ``cluster`` whose names fit
    ``pods`` and, where it is given, whose job's name fits ``owners``.

    The scheduler's name of a pod's node is ``node_name``, with the groups of ``pods`` (``\\1``), unless
    ``node_from`` says otherwise. ``teams`` are patterns of the teams that its records may name. Nodes that
    fit ``elsewhere`` are no pods.
    """

    name: str
    kind: str
    cluster: str
    namespace: str
    pods: re.Pattern[str]
    owners: re.Pattern[str] | None = None
    node_name: str = r"\g<0>"
    node_from: NodeNameSource = NodeNameSource.POD
    teams: tuple[str, ...] = ("*",)
    elsewhere: re.Pattern[str] | None = None

    def selects(self, namespace: str, pod: str, job: str) -> bool:
        """Whether it may divide a pod of its cluster."""
        named = namespace == self.namespace and self.pods.fullmatch(pod) is not None
        return named and (self.owners is None or self.owners.fullmatch(job) is not None)

    def node_of(self, pod: str, node: str) -> str:
        """The inner scheduler's name for a pod that it may divide, on the Kubernetes node ``node``."""
        if self.node_from is not NodeNameSource.POD:
            return node if self.node_from is NodeNameSource.NODE else node.partition(".")[0]
        found = self.pods.fullmatch(pod)
        return found.expand(self.node_name) if found else pod

    def may_name(self, team: str) -> bool:
        return any(fnmatchcase(team, pattern) for pattern in self.teams)

    def line_of(
        self, row: FrameRow, job: InnerJob | None, count: int, start_ms: int, end_ms: int
    ) -> FrameRow:
        """A part of a row, as the job's, or as what the pod's holder keeps."""
        part = list(row)
        part[_COUNT], part[_START], part[_END] = count, start_ms, end_ms
        if job is not None:
            name = "" if job.name in ("", job.key) else f" {job.name}"
            part[_AT["job_kind"]], part[_AT["job"]] = JobKind.OTHER.value, f"{self.kind}/{job.key}{name}"
            part[_AT["job_uid"]] = f"{self.name}/{job.key}"
            part[_AT["team_label"]], part[_AT["project"]], part[_AT["user"]] = job.team, "", job.user
        return tuple(part)


class _Demand(NamedTuple):
    """What a run has of one place; ``gpus`` is None where that is not known."""

    run: KnownRun
    gpus: int | None
    is_uneven: bool
    is_named: bool
    """Whether it may name its team."""

    @property
    def turn(self) -> tuple[bool, int, str]:
        """Those that are not believed come last: else a number that is too large would take what others
        had."""
        return not self.is_named, self.run.job.start_ms, self.run.job.key


_Event = int | tuple[_Demand, bool]
"""The position of a row, or a run, and whether it is not certain that it goes on."""
_Counts = Sequence[tuple[int, int]]
"""Units by the position of their row, in the order in which they are taken."""


@dataclass
class _WantedUnits:
    """What the runs of one place want at a moment, kept from one moment to the next: users of Ray may have
    thousands of jobs at once, and not all are to be looked at whenever one begins or ends.

    ``sure`` runs have GPUs, of ``untold`` a number that is not known and the others ``units`` together, of
    which those ``in_order`` want some. ``open_ended`` may have some, ``open_units`` and the ``open_untold``.
    """

    in_order: list[_Demand] = field(default_factory=list)
    sure: int = 0
    untold: int = 0
    units: int = 0
    open_ended: int = 0
    open_untold: int = 0
    open_units: int = 0

    def add(self, demand: _Demand, is_open: bool) -> None:
        self._count(demand, is_open, 1)
        if demand.gpus and not is_open:
            insort(self.in_order, demand, key=lambda each: each.turn)

    def remove(self, demand: _Demand, is_open: bool) -> None:
        self._count(demand, is_open, -1)
        if demand.gpus and not is_open:
            del self.in_order[bisect_left(self.in_order, demand.turn, key=lambda each: each.turn)]

    def _count(self, demand: _Demand, is_open: bool, one: int) -> None:
        units, untold = one * (demand.gpus or 0), one * (demand.gpus is None)
        if is_open:
            self.open_ended += one
            self.open_units += units
            self.open_untold += untold
        else:
            self.sure += one
            self.units += units
            self.untold += untold


@dataclass
class _Doubts:
    """GPU time by problem and hour of UTC, so that each is recorded with its own window; None where none of
    it is known."""

    scheduler: str
    touched: dict[tuple[DataProblemCode, str], dict[int, Fraction | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(
        self, code: DataProblemCode, detail: str, gpus: Fraction | None, start_ms: int, end_ms: int
    ) -> None:
        """``gpus`` of this time; None where it is not known how many."""
        if gpus == 0 or start_ms >= end_ms:
            return
        by_hour = self.touched[code, detail]
        for hour in Window(start_ms, end_ms).split(HOUR_MS):
            before = by_hour.setdefault(hour.start_ms, None)
            if gpus is not None:
                by_hour[hour.start_ms] = (before or 0) + gpus * hour.length_ms

    def problems(self, cluster: str) -> Iterator[DataProblem]:
        for (code, detail), by_hour in sorted(self.touched.items()):
            for at_ms, gpu_ms in sorted(by_hour.items()):
                told = None if gpu_ms is None else round(gpu_ms)
                yield DataProblem(code, cluster, self.scheduler, detail, told, at_ms)


def divide(
    rows: Sequence[FrameRow],
    scheduler: InnerScheduler,
    known: KnownRuns,
    window: Window,
    sizes: UnitSizes | None = None,
) -> tuple[list[FrameRow], list[DataProblem]]:
    """``rows`` of pods that ``scheduler`` may divide, inside ``window``, with what its jobs had taken out of
    them and put beside them; and problems. No moment has other units of a pod than before. ``sizes`` are for
    the GPU time of problems; without them units are what their names alone say."""
    sizes = sizes or UnitSizes()
    doubts = _Doubts(scheduler.name)
    places: dict[str, list[FrameRow]] = defaultdict(list)
    for row in rows:
        places[_place_of(scheduler, row)].append(row)
    demands: dict[str, list[_Demand]] = defaultdict(list)
    for run in known.runs:
        if run.doubt_ms > window.start_ms and run.job.start_ms < window.end_ms:
            for place, demand in _demands(run, scheduler.may_name(run.job.team)):
                demands[place].append(demand)
    parts: list[FrameRow] = []
    for place in sorted(places.keys() | demands.keys()):
        here = sorted(places.get(place, ()), key=lambda row: (str(row[_POD]), str(row[_UID]), row))
        divided = _PlaceDivision(scheduler, place, here, [sizes.of(row) for row in here], doubts)
        divided.run(demands.get(place, ()), window)
        parts += divided.parts()
    _tell_what_is_missing(rows, sizes, known, window, doubts)
    return parts, list(doubts.problems(scheduler.cluster))


def _place_of(scheduler: InnerScheduler, row: FrameRow) -> str:
    return scheduler.node_of(str(row[_POD]), str(row[_NODE])) if scheduler.kind == "slurm" else ""


def _demands(run: KnownRun, is_named: bool) -> Iterator[tuple[str, _Demand]]:
    """What it has of each place."""
    job = run.job
    if not job.nodes or job.gpus is None:
        yield from ((place, _Demand(run, job.gpus, False, is_named)) for place in job.nodes or ("",))
        return
    each, more = divmod(job.gpus, len(job.nodes))
    for n, node in enumerate(job.nodes):
        yield node, _Demand(run, each + (n < more), more > 0, is_named)


@dataclass
class _PlaceDivision:
    """The rows of one place, in the order in which their units are taken, and what comes of them."""

    scheduler: InnerScheduler
    place: str
    rows: Sequence[FrameRow]
    sizes: Sequence[UnitSize]
    doubts: _Doubts
    found: dict[tuple[int, tuple[str, int] | None], tuple[InnerJob | None, list[list[int]]]] = field(
        default_factory=dict
    )
    """Start, end and count of parts, by position of the row, key of the job and its start."""

    def run(self, demands: Iterable[_Demand], window: Window) -> None:
        begun: dict[int, list[_Event]] = defaultdict(list)
        ended: dict[int, list[_Event]] = defaultdict(list)
        spans: list[tuple[int, int, _Event]] = [
            (int(str(row[_START])), int(str(row[_END])), n) for n, row in enumerate(self.rows)
        ]
        for each in demands:
            run = each.run
            spans.append((run.job.start_ms, run.end_ms, (each, False)))
            spans.append((run.end_ms, run.doubt_ms, (each, True)))
        for start_ms, end_ms, what in spans:
            start_ms, end_ms = max(start_ms, window.start_ms), min(end_ms, window.end_ms)
            if start_ms < end_ms:
                begun[start_ms].append(what)
                ended[end_ms].append(what)
        here: list[int] = []
        wanted = _WantedUnits()
        for start_ms, end_ms in pairwise(sorted(begun.keys() | ended.keys())):
            for what in ended.get(start_ms, ()):
                if isinstance(what, int):
                    here.remove(what)
                else:
                    wanted.remove(*what)
            for what in begun.get(start_ms, ()):
                if isinstance(what, int):
                    insort(here, what)
                else:
                    wanted.add(*what)
            self._deal(here, wanted, start_ms, end_ms)

    def _deal(self, here: Sequence[int], wanted: _WantedUnits, start_ms: int, end_ms: int) -> None:
        """Units of rows in one stretch, in which nothing changes."""
        left: _Counts = [(n, int(str(self.rows[n][_COUNT]))) for n in here]
        why = self._why_not(here) if wanted.sure else ""
        if why:
            self._doubt(DataProblemCode.INNER_UNPLACED, why, self._touched(wanted, left), start_ms, end_ms)
        else:
            left = self._take(wanted, left, start_ms, end_ms)
        if not why and wanted.untold:
            unknown = f"no number of GPUs is on record for jobs {self._where}: what no other had is the pod's"
            self._doubt(DataProblemCode.INNER_UNKNOWN, unknown, self._gpus(left), start_ms, end_ms)
        if wanted.open_ended:
            no_end = f"jobs {self._where} have no end on record: what they may have had since is the pod's"
            told = self._gpus(left if wanted.open_untold else _first(left, wanted.open_units))
            self._doubt(DataProblemCode.END_UNKNOWN, no_end, told, start_ms, end_ms)
        for n, count in left:
            self._add(n, None, count, start_ms, end_ms)

    @property
    def _where(self) -> str:
        return f"on {self.place}" if self.place else "of Ray"

    def _why_not(self, here: Sequence[int]) -> str:
        """Why no job can have a part of these rows; empty where jobs can."""
        of_node = f"the node {self.place}" if self.place else "a Ray cluster"
        if not here:
            if self._is_elsewhere:
                return ""
            return f"jobs had GPUs of {of_node}, and no pod that it may divide held any then"
        pods = {self.rows[n][_UID] for n in here}
        if self.place and len(pods) > 1:
            return f"jobs had GPUs of {of_node}, which {len(pods)} pods at once are said to be"
        kinds = {(self.rows[n][_UID], self.rows[n][_RESOURCE]) for n in here}
        if len(kinds) > len(pods):
            return f"jobs had GPUs of {of_node}, of which a pod held several resources"
        if not all(self.sizes[n].is_handed_out for n in here):
            return f"jobs had GPUs of {of_node}, of which a pod held a part that is no unit of its own"
        return ""

    def _gpus(self, counts: _Counts) -> Fraction | None:
        """GPUs of units by row; None where that is not known of some."""
        held = [(self.sizes[n].gpus, count) for n, count in counts]
        known = [size * count for size, count in held if size is not None]
        return sum(known, Fraction(0)) if len(known) == len(held) else None

    def _beyond(self, here: _Counts, units: int) -> Fraction | None:
        """GPUs of units that no row has: each as large as the largest unit here is, and a GPU where there is
        none."""
        if not units:
            return Fraction(0)
        sizes = [self.sizes[n] for n, _ in here]
        known = [one.gpus if one.is_handed_out else WHOLE for one in sizes if one.gpus is not None]
        if len(known) < len(sizes):
            return None
        return units * max(known, default=WHOLE)

    def _touched(self, wanted: _WantedUnits, left: _Counts) -> Fraction | None:
        """GPUs of runs that can have no part of the rows: no more than the rows have, where there are any."""
        asked, held = self._beyond(left, wanted.units), self._gpus(left)
        if not left:
            return asked
        if asked is None or held is None or wanted.untold:
            return held
        return min(asked, held)

    def _take(self, wanted: _WantedUnits, left: _Counts, start_ms: int, end_ms: int) -> _Counts:
        """Gives runs their units of which row, under no job where one may not name its team. Returns what is
        left."""
        rest = list(reversed(left))
        taken, not_theirs, uneven = 0, list[tuple[int, int]](), list[tuple[int, int]]()
        for demand in wanted.in_order:
            if not rest:
                break
            got = 0
            while rest and got < (demand.gpus or 0):
                n, count = rest.pop()
                mine = min(count, (demand.gpus or 0) - got)
                if mine < count:
                    rest.append((n, count - mine))
                self._add(n, demand.run.job if demand.is_named else None, mine, start_ms, end_ms)
                got += mine
                if not demand.is_named:
                    not_theirs.append((n, mine))
                elif demand.is_uneven:
                    uneven.append((n, mine))
            taken += got
        if not self._is_elsewhere:
            why = f"jobs {self._where} had more GPUs than its pods held: what is beyond is charged to nobody"
            beyond = self._beyond(left, wanted.units - taken)
            self._doubt(DataProblemCode.INNER_UNPLACED, why, beyond, start_ms, end_ms)
        why = f"jobs {self._where} name teams that its records may not name: theirs is the pod's"
        self._doubt(DataProblemCode.INNER_UNPLACED, why, self._gpus(not_theirs), start_ms, end_ms)
        why = f"GPUs of jobs {self._where} are not as many on each of their nodes: taken as even as can be"
        self._doubt(DataProblemCode.INNER_UNKNOWN, why, self._gpus(uneven), start_ms, end_ms)
        return list(reversed(rest))

    @property
    def _is_elsewhere(self) -> bool:
        elsewhere = self.scheduler.elsewhere
        return elsewhere is not None and elsewhere.fullmatch(self.place) is not None

    def _doubt(
        self, code: DataProblemCode, why: str, gpus: Fraction | None, start_ms: int, end_ms: int
    ) -> None:
        self.doubts.add(code, why, gpus, start_ms, end_ms)

    def _add(self, n: int, job: InnerJob | None, count: int, start_ms: int, end_ms: int) -> None:
        """Parts without a job may come twice for a stretch; both count."""
        if not count:
            return
        of_run = None if job is None else (job.key, job.start_ms)
        _, parts = self.found.setdefault((n, of_run), (job, []))
        if parts and parts[-1][:2] == [start_ms, end_ms]:
            parts[-1][2] += count
        else:
            parts.append([start_ms, end_ms, count])

    def parts(self) -> Iterator[FrameRow]:
        """Each as long as its count stays the same."""
        for (n, _), (job, stretches) in self.found.items():
            since, until, had = stretches[0]
            for start_ms, end_ms, count in stretches[1:]:
                if (start_ms, count) != (until, had):
                    yield self.scheduler.line_of(self.rows[n], job, had, since, until)
                    since, had = start_ms, count
                until = end_ms
            yield self.scheduler.line_of(self.rows[n], job, had, since, until)


def _first(left: _Counts, units: int) -> _Counts:
    """The first of what is left, so many units or fewer."""
    found = []
    for n, count in left:
        mine = min(count, units)
        units -= mine
        if mine:
            found.append((n, mine))
    return found


def _tell_what_is_missing(
    rows: Sequence[FrameRow], sizes: UnitSizes, known: KnownRuns, window: Window, doubts: _Doubts
) -> None:
    """Time of pods after the latest file, and records that were refused."""
    since = window.start_ms if known.as_of_ms is None else max(known.as_of_ms, window.start_ms)
    why = "no file of records is of this time or later: what pods held then is theirs"
    for row in rows:
        size, end_ms = sizes.of(row).gpus, int(str(row[_END]))
        gpus = None if size is None else size * int(str(row[_COUNT]))
        doubts.add(DataProblemCode.INNER_UNKNOWN, why, gpus, max(int(str(row[_START])), since), end_ms)
    more = len(known.refused) - _MOST_REFUSED
    told = (*known.refused[:_MOST_REFUSED], *([f"and {more} more records"] if more > 0 else ()))
    for sentence in told if rows else ():
        detail = f"records were refused: {sentence}"
        doubts.add(DataProblemCode.INNER_UNKNOWN, detail, None, window.start_ms, window.end_ms)
