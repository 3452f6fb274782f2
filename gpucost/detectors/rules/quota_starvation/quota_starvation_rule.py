"""Queues that wait while GPUs that would fit their work are idle: within other queues' quota, or within
none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.segments import union
from gpucost.cluster.views.quota import CHECKS_OUTSTANDING, NOT_ADMITTED_YET, TOPOLOGY_OUTSTANDING
from gpucost.cluster.views.wait_causes import NO_WORKER
from gpucost.contract.queue_metrics import WaitLayer
from gpucost.detectors.allocation_pieces import (
    LEAST_COVERAGE,
    board_ms,
    hours,
    lasting,
    since,
)
from gpucost.detectors.findings import (
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    RuleDetection,
    SubjectKind,
    ViewTime,
    WasteEpisode,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import ClusterHistory, DetectorFacts
from gpucost.detectors.inputs.queue_quotas import (
    QueueKind,
    QueuePlace,
    QueueQuotas,
    StepFunction,
    difference,
    least,
)
from gpucost.detectors.inputs.schedulability import unfit_now
from gpucost.detectors.inputs.unmet_demand import (
    BehindSpan,
    UnmetClaim,
    hopeless,
    unmet,
    with_since,
)
from gpucost.detectors.inputs.view_times import of_flavors
from gpucost.detectors.rule_settings import QuotaStarvationSettings, ScopedSettings
from gpucost.detectors.rules.quota_starvation.waiting_queues import (
    QueuedRequest,
    QuotaObstacle,
    WaitingQueue,
    obstacle,
    waiting_queues,
)
from gpucost.domain.buckets import Waste
from gpucost.domain.time import HOUR_MS
from gpucost.settings.types import milliseconds

NAME = WastePattern.QUOTA_STARVATION
STARVED, RESERVED = "starved", "reserved"
_MOST_HOLDERS = 3
_CHECKS = "admission checks are outstanding"
_WITH_QUOTA = {
    CHECKS_OUTSTANDING: _CHECKS,
    "UnsatisfiedChecks": _CHECKS,
    NO_WORKER: "MultiKueue has named no cluster yet",
    TOPOLOGY_OUTSTANDING: "the topology assignment is outstanding",
    NOT_ADMITTED_YET: "the admission is outstanding",
}
"""Reasons of waits that are no lack of quota, and what is outstanding; older versions of Kueue have another
word for checks."""


@dataclass(frozen=True, slots=True)
class _StarvationRun:
    """A maximal stretch in which free units fitted some job of a queue all the time."""

    start_ms: int
    end_ms: int

    @property
    def span(self) -> tuple[int, int]:
        return self.start_ms, self.end_ms

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


def run(facts: DetectorFacts, settings: ScopedSettings[QuotaStarvationSettings]) -> RuleDetection:
    drafts: list[FindingDraft] = []
    withheld: list[WithheldFinding] = list(_unseen(facts, settings.default))
    for queue, claims, behind in _queues(facts, settings, withheld):
        own = settings.at(_namespace(queue.place), queue.place.name)
        _judge(facts, queue, claims, behind, own, drafts, withheld)
    return RuleDetection(tuple(drafts), tuple(withheld))


def _queues(
    facts: DetectorFacts, settings: ScopedSettings[QuotaStarvationSettings], withheld: list[WithheldFinding]
) -> Iterator[tuple[WaitingQueue, list[UnmetClaim], list[BehindSpan]]]:
    """Queues whose work would have fitted free units: their claims on these, and when jobs that waited longer
    had them all."""
    shortest = min(milliseconds(each.after) for each in _all(settings))
    demand = with_since(facts.history.frames.demand)
    left_out = _left_out(facts, demand)
    wait = (demand["until_ms"] - demand["since_ms"]).to_numpy(np.int64)
    # A wait that is too short for its own queue takes nothing from those that have waited long enough for
    # theirs.
    too_short = demand.index[(wait >= shortest) & (wait < _own_after(settings, demand))]
    found = unmet(facts.history, shortest, frozenset(left_out).union(too_short.tolist()))
    claims: dict[int, list[UnmetClaim]] = {}
    for claim in found.claims:
        if claim.waste is Waste.STARVED:
            claims.setdefault(claim.row, []).append(claim)
    behind: dict[int, list[BehindSpan]] = {}
    for span in found.behind:
        behind.setdefault(span.row, []).append(span)
    named = _named(facts.history, demand, claims, settings)
    withheld.extend(_held_back(facts, settings, demand, left_out))
    # A request that no node could ever serve does not wait for quota either.
    out = demand.index.isin([*left_out, *hopeless(facts.history, demand)])
    for queue in waiting_queues(facts.history, demand[~out], settings.default.reserved_queues):
        rows = queue.demand.index.tolist()
        kept = [claim for row in rows for claim in claims.get(row, ())]
        spans = [span for row in rows for span in behind.get(row, ())]
        later = _within(spans, *named[queue.resource]) if queue.resource in named else []
        if kept or later:
            yield queue, kept, later


def _named(
    history: ClusterHistory,
    demand: pd.DataFrame,
    claims: Mapping[int, Sequence[UnmetClaim]],
    settings: ScopedSettings[QuotaStarvationSettings],
) -> Mapping[str, tuple[Ints, Ints]]:
    """By resource, starts and ends of the time in which a job has a claim on units of nodes that are ready:
    only then are others behind."""
    of_resource: dict[str, list[UnmetClaim]] = {}
    for row, mine in claims.items():
        of_resource.setdefault(str(demand.at[row, "resource"]), []).extend(mine)
    found = {}
    for resource, each in of_resource.items():
        ripe = _ripe(history, each, settings.default)
        found[resource] = union([claim.start_ms for claim in ripe], [claim.end_ms for claim in ripe])
    return found


def _within(spans: Sequence[BehindSpan], starts: Ints, ends: Ints) -> list[BehindSpan]:
    """The parts of spans that lie in stretches, which are in order and disjoint."""
    found = []
    for span in spans:
        first, last = np.searchsorted(ends, span.start_ms, "right"), np.searchsorted(starts, span.end_ms)
        for start, end in zip(starts[first:last].tolist(), ends[first:last].tolist(), strict=True):
            part = max(span.start_ms, start), min(span.end_ms, end)
            found.append(BehindSpan(span.row, *part))
    return found


def _own_after(
    settings: ScopedSettings[QuotaStarvationSettings], demand: pd.DataFrame
) -> npt.NDArray[np.int64]:
    """Per row, how long it must wait in its queue, in ms."""
    known: dict[tuple[str, str], int] = {}
    queues = demand["cluster_queue"].where(demand["cluster_queue"] != "", demand["queue"]).tolist()
    places = list(zip(demand["namespace"].tolist(), queues, strict=True))
    for place in set(places):
        # A queue's settings are looked up by the queue alone, as for its findings.
        namespace = "" if place[1] else place[0]
        known[place] = milliseconds(settings.at(namespace, place[1]).after)
    return np.array([known[place] for place in places], dtype=np.int64)


def _held_back(
    facts: DetectorFacts,
    settings: ScopedSettings[QuotaStarvationSettings],
    demand: pd.DataFrame,
    left_out: Mapping[int, str],
) -> Iterator[WithheldFinding]:
    """Once per place and reason: why work that waited long enough is left out."""
    rows = demand.loc[sorted(left_out)]
    for queue in waiting_queues(facts.history, rows):
        after = milliseconds(settings.at(_namespace(queue.place), queue.place.name).after)
        long = queue.demand[queue.demand["until_ms"] - queue.demand["since_ms"] >= after]
        for because in sorted({left_out[row] for row in long.index}):
            yield WithheldFinding(NAME, _subject(facts, queue), because)


def _all(settings: ScopedSettings[QuotaStarvationSettings]) -> list[QuotaStarvationSettings]:
    return [settings.default, *(each.settings for each in settings.overrides)]


def _left_out(facts: DetectorFacts, demand: pd.DataFrame) -> Mapping[int, str]:
    """Rows that wait for something other than GPUs, and for what."""
    held = demand["reason"].map(_WITH_QUOTA).dropna()
    found = {
        int(row): f"{because} for work that has its quota already"
        for row, because in zip(held.index.tolist(), held.tolist(), strict=True)
    }
    if facts.overview is None:
        return found
    waiting = demand[demand["end_ms"] >= facts.now_ms]
    unfit = unfit_now(facts.overview, waiting)
    names = ["job_uid", "pod_set", "resource", "since_ms"]
    for row, why in unfit.items():
        # The whole wait, over the rows before it: its shape was the same.
        alike = (demand[names] == demand.loc[row, names]).all(axis=1)
        job = f"{demand.loc[row, 'namespace']!s}/{demand.loc[row, 'job']!s}"
        because = f"{job} would find no place, so this is fragmentation: {why}"
        found.update({int(each): because for each in demand.index[alike]})
    return found


def _judge(
    facts: DetectorFacts,
    queue: WaitingQueue,
    claims: Sequence[UnmetClaim],
    behind: Sequence[BehindSpan],
    settings: QuotaStarvationSettings,
    drafts: list[FindingDraft],
    withheld: list[WithheldFinding],
) -> None:
    ripe = _ripe(facts.history, claims, settings)
    times = [
        *((each.start_ms, each.end_ms) for each in ripe),
        *((each.start_ms, each.end_ms) for each in behind),
    ]
    spans = union([start for start, _ in times], [end for _, end in times])
    fits = StepFunction.within(*spans)
    window = facts.history.window
    parts = {
        STARVED: difference(fits, queue.only_reserved),
        RESERVED: least(fits, queue.only_reserved),
    }
    for variant, when in parts.items():
        runs = _bridged(facts.history, when.stretches(window.start_ms, window.end_ms), settings)
        good_of = {each: _lasting(facts.history, each, settings) for each in runs}
        good = [part for parts_of_run in good_of.values() for part in parts_of_run]
        longest = max((each.length_ms for each in good), default=0)
        drafts.extend(
            _draft(facts, queue, variant, each, _cut(ripe, each, when), behind, longest) for each in good
        )
        cut_short = [each for each in runs if not good_of[each] and _is_cut_short(facts.history, each)]
        withheld.extend(_cut_short(facts, queue, each, settings) for each in cut_short)


def _ripe(
    history: ClusterHistory, claims: Sequence[UnmetClaim], settings: QuotaStarvationSettings
) -> list[UnmetClaim]:
    """Claims without the time in which their node was new."""
    fresh = _fresh(history, milliseconds(settings.warm_up))
    found = []
    for claim in claims:
        start = claim.start_ms
        for came, ready in fresh.get(claim.node, ()):
            if came < claim.end_ms and ready > start:
                if came > start:
                    found.append(_part(claim, start, came))
                start = ready
        if start < claim.end_ms:
            found.append(_part(claim, start, claim.end_ms))
    return found


def _fresh(history: ClusterHistory, warm_up_ms: int) -> dict[str, list[tuple[int, int]]]:
    """When each node was new, or back: where it was observed to be away for as long as that lasts."""
    rows, begin = history.frames.capacity, history.window.start_ms
    found: dict[str, list[tuple[int, int]]] = {}
    for node, times in rows.groupby("node", observed=True)[["start_ms", "end_ms"]]:
        starts, ends = union(times["start_ms"].tolist(), times["end_ms"].tolist())
        came = [starts[0]] if starts[0] > begin else []
        came += [
            start
            for end, start in zip(ends[:-1].tolist(), starts[1:].tolist(), strict=True)
            if history.seen_ms(end, start) >= warm_up_ms
        ]
        found[str(node)] = [(int(start), int(start) + warm_up_ms) for start in came]
    return found


def _part(claim: UnmetClaim, start_ms: int, end_ms: int) -> UnmetClaim:
    if (claim.start_ms, claim.end_ms) == (start_ms, end_ms):
        return claim
    return replace(claim, start_ms=start_ms, end_ms=end_ms)


def _bridged(
    history: ClusterHistory, stretches: tuple[Ints, Ints], settings: QuotaStarvationSettings
) -> list[_StarvationRun]:
    """Stretches as runs. A moment without observation between two of them is not a break, if it is shorter
    than the unobserved time allowed in the shortest run: so a run's start depends on nothing after it."""
    most = (1 - LEAST_COVERAGE) * milliseconds(settings.after)
    found: list[_StarvationRun] = []
    for start, end in zip(*(edges.tolist() for edges in stretches), strict=True):
        last = found[-1] if found else None
        if last is not None and start - last.end_ms <= most and not history.seen_ms(last.end_ms, start):
            found[-1] = _StarvationRun(last.start_ms, end)
        else:
            found.append(_StarvationRun(start, end))
    return found


def _lasting(
    history: ClusterHistory, run: _StarvationRun, settings: QuotaStarvationSettings
) -> list[_StarvationRun]:
    """The parts of a run that lie in stretches that are long enough and observed well enough: whether a day
    is in it depends on no day before. A part's start depends on nothing after it."""
    after = milliseconds(settings.after)
    if run.length_ms < after:
        return []
    return [_StarvationRun(*part) for part in history.observed_parts(*run.span, after)]


def _is_cut_short(history: ClusterHistory, run: _StarvationRun) -> bool:
    """Whether the time before it, after it or within it is unknown."""
    window = history.window
    before = run.start_ms > window.start_ms and not history.seen_ms(run.start_ms - 1, run.start_ms)
    after = run.end_ms < window.end_ms and not history.seen_ms(run.end_ms, run.end_ms + 1)
    return before or after or history.seen_ms(run.start_ms, run.end_ms) < run.length_ms


def _cut_short(
    facts: DetectorFacts, queue: WaitingQueue, run: _StarvationRun, settings: QuotaStarvationSettings
) -> WithheldFinding:
    because = (
        f"free GPUs fitted what waited for {lasting(run.length_ms)} from {since(run.start_ms)} on, and part "
        f"of the time around was not observed: {lasting(milliseconds(settings.after))} are needed"
    )
    return WithheldFinding(NAME, _subject(facts, queue), because, lacks_data=True)


def _unseen(facts: DetectorFacts, settings: QuotaStarvationSettings) -> Iterator[WithheldFinding]:
    """Gaps long enough to hide a starving job."""
    window = facts.history.window
    seen_start, seen_end = (edge.clip(window.start_ms, window.end_ms).tolist() for edge in facts.history.seen)
    for start, end in zip([window.start_ms, *seen_end], [*seen_start, window.end_ms], strict=True):
        if end - start >= milliseconds(settings.after):
            because = (
                f"nobody observed the cluster for {lasting(end - start)} from {since(start)} on: whether "
                "anybody waited and what was free then is unknown"
            )
            yield WithheldFinding(
                NAME, FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster), because, True
            )


def _cut(claims: Sequence[UnmetClaim], run: _StarvationRun, when: StepFunction) -> list[UnmetClaim]:
    """The parts of claims that lie in a run, where ``when`` is above 0."""
    starts = np.array([claim.start_ms for claim in claims], np.int64)
    ends = np.array([claim.end_ms for claim in claims], np.int64)
    found = []
    for start, end in zip(*(edges.tolist() for edges in when.stretches(*run.span)), strict=True):
        for n in np.flatnonzero((starts < end) & (ends > start)).tolist():
            claim = claims[n]
            found.append(_part(claim, max(claim.start_ms, start), min(claim.end_ms, end)))
    return found


def _draft(
    facts: DetectorFacts,
    queue: WaitingQueue,
    variant: str,
    run: _StarvationRun,
    claims: Sequence[UnmetClaim],
    behind: Sequence[BehindSpan],
    longest_ms: int,
) -> FindingDraft:
    episodes = tuple(_episode(facts, queue, claim) for claim in claims)
    demand = queue.demand
    here = demand[(demand["start_ms"] < run.end_ms) & (demand["end_ms"] > run.start_ms)]
    later = [each for each in behind if each.start_ms < run.end_ms and each.end_ms > run.start_ms]
    fitting = here[here.index.isin([*(each.row for each in claims), *(each.row for each in later)])]
    oldest_ms = int(fitting["since_ms"].min())
    found = _obstacle(facts, queue, here, fitting, run)
    goes_on = run.end_ms >= facts.now_ms
    at_end = sum(claim.boards for claim in claims if claim.end_ms == run.end_ms)
    own = queue.own_unused.mean(run.start_ms, run.end_ms)
    is_kept = variant == RESERVED
    view = _kept_view(facts, queue, run) if is_kept else None
    counted = hours(board_ms(episodes) if view is None else sum(each.board_ms for each in view))
    begun_ms = facts.history.window.start_ms
    since_ms = min(oldest_ms, run.start_ms) if run.start_ms <= begun_ms else run.start_ms
    most = queue.pending.most(run.start_ms, run.end_ms)
    return FindingDraft(
        NAME,
        variant,
        _subject(facts, queue),
        since_ms,
        f"Work of {queue.place} {'waits' if goes_on else 'waited'} for up to {most:g} {queue.resource} "
        f"{_since(since_ms, begun_ms)}; for {lasting(run.length_ms)} free GPUs would have fitted it "
        f"({counted}{', kept free on purpose' if is_kept else _of_others(claims, later)}): {found.why}.",
        _evidence(queue, run, _since(oldest_ms, begun_ms), longest_ms, own, found),
        replace(found.action, frees_boards=at_end),
        "for information: the smaller of what waited and the unused quota of others, times time"
        if is_kept
        else "free GPUs that its waiting work would have had, times time; of several that could have had "
        "one the longest waiting counts",
        queue=queue.place.name,
        ended_ms=None if goes_on else run.end_ms,
        episodes=() if is_kept else episodes,
        view=view,
        checked=_checked(facts),
        at_least=FindingSeverity.INFO if is_kept else FindingSeverity.LOW,
    )


def _of_others(claims: Sequence[UnmetClaim], later: Sequence[BehindSpan]) -> str:
    """The part whose GPU-hours belong to other findings, since each GPU-hour counts once."""
    if not later:
        return ""
    what = "some more" if claims else "all of them"
    return f"; {what} counted where work waited longer"


def _kept_view(facts: DetectorFacts, queue: WaitingQueue, run: _StarvationRun) -> tuple[ViewTime, ...]:
    """What others keep unused and it could have: of the flavors that these queues have it in."""
    which = QueueQuotas.of(facts.history).others(queue.place, queue.resource)
    return of_flavors(facts, queue.resource, which, queue.could_have, *run.span)


def _episode(facts: DetectorFacts, queue: WaitingQueue, claim: UnmetClaim) -> WasteEpisode:
    place = (facts.cluster, claim.node, "", claim.start_ms, claim.end_ms)
    return WasteEpisode(Waste.STARVED, *place, claim.boards, queue.resource)


def _evidence(
    queue: WaitingQueue, run: _StarvationRun, oldest: str, longest_ms: int, own: float, found: QuotaObstacle
) -> tuple[FindingEvidence, ...]:
    a, b = run.span
    source = f"quotas and demand of {queue.place}"
    held = [
        FindingEvidence(f"unused by {place}", round(units, 2), "units", "nominal quota less use, in the mean")
        for place, units in queue.holders(a, b)[:_MOST_HOLDERS]
    ]
    return (
        FindingEvidence("waiting, in the mean", round(queue.pending.mean(a, b), 2), "units", source),
        FindingEvidence(
            "could have run on the unused quota of others",
            round(queue.could_have.integral(a, b) / HOUR_MS, 4), "unit-hours", source,
        ),
        FindingEvidence("all of it could have",
                        round(queue.could_have_all.mean(a, b), 4), "of the time", source),
        *held,
        FindingEvidence("unused of its own quota", round(own, 2), "units", "in the mean"),
        FindingEvidence("what keeps it from using them", found.why),
        FindingEvidence("the longest waiting has waited", oldest),
        FindingEvidence("longest such stretch in the history", round(longest_ms / HOUR_MS, 2), "hours"),
    )  # fmt: skip


def _since(instant_ms: int, begun_ms: int) -> str:
    """A run that reaches the start of the history may have begun before it."""
    return f"{'at least ' if instant_ms <= begun_ms else ''}since {since(instant_ms)}"


def _obstacle(
    facts: DetectorFacts, queue: WaitingQueue, here: pd.DataFrame, fitting: pd.DataFrame, run: _StarvationRun
) -> QuotaObstacle:
    """As of now, or, when it is over, as of the middle of it. ``here`` is all that waits, ``fitting`` the
    part that free GPUs would have fitted: the longest waiting of these is the witness."""
    goes_on = run.end_ms >= facts.now_ms
    at_ms = run.end_ms - 1 if goes_on else (run.start_ms + run.end_ms) // 2
    witnesses = _at(fitting, at_ms).sort_values(["since_ms", "namespace", "job_uid"])
    first, last = witnesses.iloc[0], _at(here, at_ms)
    ask = QueuedRequest(
        queue.place,
        queue.resource,
        int((witnesses["min_pods"].clip(lower=1) * witnesses["units"]).min()),
        float((last["pods"] * last["units"]).sum()),
        str(first["namespace"]),
        str(first["job"]),
        str(first["workload"]),
        says_quota=bool((last["layer"] == WaitLayer.QUOTA.value).any()),
    )
    rows = QueueQuotas.of(facts.history).at(queue.resource, at_ms)
    return obstacle(rows, ask, facts.overview if goes_on else None)


def _at(demand: pd.DataFrame, at_ms: int) -> pd.DataFrame:
    """The rows that hold at an instant; all of them if none does."""
    found = demand[(demand["start_ms"] <= at_ms) & (demand["end_ms"] > at_ms)]
    return found if len(found) else demand


def _checked(facts: DetectorFacts) -> tuple[str, ...]:
    shapes = "CPU, memory, labels and taints of nodes" if facts.overview is not None else "GPUs per node only"
    return (f"it would have fitted ({shapes})", "no admission checks outstanding", "no node that just came")


def _namespace(place: QueuePlace) -> str:
    return place.name if place.line is QueueKind.NAMESPACE else ""


def _subject(facts: DetectorFacts, queue: WaitingQueue) -> FindingSubject:
    uid = f"{queue.place} {queue.resource}"
    return FindingSubject(SubjectKind.QUEUE, facts.cluster, queue.place.name, uid=uid)
