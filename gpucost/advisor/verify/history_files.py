"""Files of recorded histories (docs/advisor-cases.md, "Histories"): arrivals, clusters, and what came of it.

A history is one list of arrivals and several configurations of a cluster; each says what the scheduler did
with it. Every field is checked, and unknown ones are refused, as in files of cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpucost.advisor.kueue.requests import QuotaRequest, ask_of
from gpucost.advisor.model.cycle_results import PodSetFlavors
from gpucost.advisor.replay.kueue_replay import ReplayTimings
from gpucost.advisor.replay.replay_timeline import ReplayArrival, StoryEviction
from gpucost.advisor.verify.case_files import kind_of
from gpucost.advisor.verify.case_objects import CaseCluster, flavor_name, pod_set
from gpucost.advisor.verify.case_schema import NOW_MS, VERSION, JsonFields, fields, items
from gpucost.cluster.objects.kueue import ClusterQueue, Workload
from gpucost.cluster.objects.metadata import ObjectMeta
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import SECOND_MS

HISTORY_SCHEMA = 1
SCAN_PHASE, NO_REST, FAIR_TREE = "scan-phase", "no-rest", "fair-tree"
TRAPS = (SCAN_PHASE, NO_REST, FAIR_TREE)
_WHY = ("instant", "evictions")
_DESCRIPTION = ("about", "conventions", "counts")
_HISTORY_FILE = "a file of recorded histories: docs/advisor-cases.md"


class RecordedAdmission(NamedTuple):
    """``counts`` has only pod sets that got fewer pods than they asked for."""

    at_ms: int
    flavors: Mapping[str, Mapping[str, str]]
    counts: Mapping[str, int]


class RecordedStory(NamedTuple):
    """What the scheduler did with one workload; ``ended_ms`` None where it never ended."""

    admissions: tuple[RecordedAdmission, ...]
    evictions: tuple[StoryEviction, ...]
    ended_ms: int | None


class RecordedUnrest(NamedTuple):
    """When preemption had no rest, and how that showed: ``instant`` or ``evictions``."""

    at_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class HistoryConfiguration:
    """One cluster over the arrivals of its history. ``change`` says in words what is different from the
    first, A. ``changes`` are whole ClusterQueues with when they are so; ``truth`` is by uid."""

    name: str
    change: str
    state: ClusterState
    config: KueueConfig
    timings: ReplayTimings
    changes: tuple[tuple[int, ClusterQueue], ...]
    traps: tuple[str, ...]
    truth: Mapping[str, RecordedStory]
    unrest: RecordedUnrest | None


@dataclass(frozen=True, slots=True)
class SchedulerHistory:
    id: str
    arrivals: tuple[ReplayArrival[QuotaRequest], ...]
    configurations: tuple[HistoryConfiguration, ...]


class HistoryFile(NamedTuple):
    """``unread`` are fields of the file that have no meaning here."""

    histories: tuple[SchedulerHistory, ...]
    version: str
    unread: tuple[str, ...] = ()


def has_histories(found: object) -> bool:
    """Whether decoded JSON is meant as a file of histories."""
    return isinstance(found, Mapping) and "histories" in found


def histories_of(found: object, name: str) -> HistoryFile:
    """The histories of decoded JSON; ``name`` is for errors. Raises InputError for the first field that is
    wrong, by its path."""
    whole = JsonFields(found, name)
    schema = whole.whole("schema", HISTORY_SCHEMA)
    if schema != HISTORY_SCHEMA:
        raise InputError(whole.at("schema"), schema, str(HISTORY_SCHEMA))
    for key in _DESCRIPTION:
        whole.raw(key)
    version = whole.text("kueueVersion", "")
    if whole.raw("histories") is None:
        raise InputError(whole.at("histories"), ErrorRemark("missing"), _HISTORY_FILE)
    listed = items(whole.raw("histories"), whole.at("histories"))
    histories = tuple(
        _history(each, f"{whole.at('histories')}[{place}]") for place, each in enumerate(listed)
    )
    return HistoryFile(histories, version, tuple(whole.unread()))


def _history(found: object, path: str) -> SchedulerHistory:
    with fields(found, path) as part:
        id_ = part.text("id")
        part.path = f"{path} ({id_[:80]})"
        for key in ("generator", "info"):
            part.raw(key)
        arrivals = tuple(_arrival(each) for each in part.objects("arrivals"))
        known = {each.uid: each for each in arrivals}
        if len(known) < len(arrivals):
            raise InputError(part.at("arrivals"), ErrorRemark("a name twice"), "each name once")
        configurations = tuple(_configuration(each, known) for each in part.objects("configurations"))
    return SchedulerHistory(id_, arrivals, configurations)


def _arrival(part: JsonFields) -> ReplayArrival[QuotaRequest]:
    name, queue = part.name("name"), part.name("queue")
    at_ms = NOW_MS + part.whole("createdSecond", None, 0) * SECOND_MS
    sets = tuple(pod_set(each) for each in part.objects("podSets"))
    workload = Workload(ObjectMeta(name, queue, name, at_ms, {}, {}), sets, queue, part.whole("priority", 0))
    run_ms = part.whole("runSeconds", None, 0) * SECOND_MS
    ask = ask_of(workload, queue, KueueConfig(VERSION))
    return ReplayArrival(name, at_ms, run_ms, ask, part.flag("keepsProgress"))


def _configuration(
    part: JsonFields, known: Mapping[str, ReplayArrival[QuotaRequest]]
) -> HistoryConfiguration:
    name, change = part.name("name"), part.text("change", "")
    for key in ("counts", "scanPhaseDiffers"):
        part.raw(key)
    config, timings = _settings(part)
    with fields(part.raw("cluster"), part.at("cluster")) as inner:
        state = CaseCluster(inner).state(config)
    for each in known.values():
        if each.ask.queue not in state.cluster_queue_by_name:
            raise InputError(part.at("cluster.clusterQueues"), each.ask.queue, "every queue of an arrival")
    traps = part.texts("traps")
    for trap in traps:
        if trap not in TRAPS:
            raise InputError(part.at("traps"), trap, ", ".join(TRAPS))
    truth = dict(_story(each, known) for each in part.objects("truth"))
    if truth.keys() != known.keys():
        raise InputError(part.at("truth"), ErrorRemark(f"{len(truth)} workloads"), "each arrival, once")
    changes = tuple(_change(each, state) for each in part.objects("changes"))
    return HistoryConfiguration(name, change, state, config, timings, changes, traps, truth, _unrest(part))


def _settings(part: JsonFields) -> tuple[KueueConfig, ReplayTimings]:
    with fields(part.raw("settings"), part.at("settings")) as inner:
        fair_sharing, strategies = kind_of(inner)
        leaves_ms = inner.whole("terminationSeconds", 0, 0) * SECOND_MS
        batch_ms = inner.whole("requeueBatchSeconds", 1, 0) * SECOND_MS
    return KueueConfig(VERSION, fair_sharing, strategies, is_read=True), ReplayTimings(leaves_ms, batch_ms)


def _change(part: JsonFields, state: ClusterState) -> tuple[int, ClusterQueue]:
    at_ms = _second(part, "at")
    part.one_of("kind", ("ClusterQueue",))
    alone = JsonFields({"clusterQueues": [part.raw("object")]}, part.at("object"))
    (queue,) = CaseCluster(alone).cluster_queues.values()
    if queue.name not in state.cluster_queue_by_name:
        raise InputError(part.at("object.name"), queue.name, "a ClusterQueue of the cluster")
    return at_ms, queue


def _unrest(part: JsonFields) -> RecordedUnrest | None:
    if part.raw("noRest") is None:
        return None
    with fields(part.raw("noRest"), part.at("noRest")) as inner:
        return RecordedUnrest(_second(inner, "at"), inner.one_of("why", _WHY))


def _story(part: JsonFields, known: Mapping[str, object]) -> tuple[str, RecordedStory]:
    name = part.name("name")
    if name not in known:
        raise InputError(part.at("name"), name, "a workload of the history")
    admissions = tuple(_admission(each) for each in part.objects("admissions"))
    evictions = tuple(
        StoryEviction(_second(each, "at"), each.text("reason"), each.text_or_none("by") or "")
        for each in part.objects("evictions")
    )
    ended = None if part.raw("finished") is None else _second(part, "finished")
    if ended is not None and not admissions:
        raise InputError(part.at("finished"), part.raw("finished"), "null, of what was never admitted")
    return name, RecordedStory(admissions, evictions, ended)


def _admission(part: JsonFields) -> RecordedAdmission:
    return RecordedAdmission(
        _second(part, "at"), part.mapping("flavors", _flavors), part.mapping("counts", _count)
    )


def _flavors(found: object, path: str) -> dict[str, str]:
    return JsonFields({"flavors": found}, path).mapping("flavors", flavor_name)


def _count(found: object, path: str) -> int:
    return JsonFields({"count": found}, path).whole("count", None, 0)


def _second(part: JsonFields, key: str) -> int:
    return NOW_MS + part.whole(key, None, 0) * SECOND_MS


def recorded_admission(at_ms: int, given: object, ask: QuotaRequest) -> RecordedAdmission:
    """A start of the replay as a recording has it."""
    assert isinstance(given, tuple)
    sets: tuple[PodSetFlavors, ...] = given
    asked = {each.name: each.count for each in ask.pod_sets}
    return RecordedAdmission(
        at_ms,
        {each.name: dict(each.flavors) for each in sets},
        {each.name: each.count for each in sets if each.count < asked[each.name]},
    )
