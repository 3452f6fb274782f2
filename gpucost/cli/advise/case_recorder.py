"""Sources of ``gpucost advisor record``: two dumps, or the writes of a cluster as they come."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

from gpucost.advisor.verify.case_recording import document, public_version, record
from gpucost.advisor.verify.case_schema import RecordingOrigin
from gpucost.advisor.verify.case_writer import CaseAliases, CaseDocument, CaseNames
from gpucost.advisor.verify.decision_follower import DecisionFollower, WorkloadWrite, checked
from gpucost.cli.advise.advisor_screen import record_summary
from gpucost.cli.state.source import ClusterLocation, connected, scheduler_configurations
from gpucost.cli.state.state_command import loaded_from
from gpucost.cli.terminal.exit_codes import as_ctrl_c, complain
from gpucost.cluster.objects.kueue import Workload
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.cluster.objects.state import ClusterState
from gpucost.domain.errors import ErrorRemark, InputError, SourceError
from gpucost.kube.connect.transport import KubeTransport
from gpucost.kube.parse.collections import collections
from gpucost.kube.watch.cluster_watch import ClusterWatch
from gpucost.kube.watch.object_store import ObjectChange, ObjectChangeKind
from gpucost.kube.watch.scheduler_reader import SchedulerConfigBuilder

_WORKLOADS = "workloads.kueue.x-k8s.io"
_NEEDED = frozenset(
    {
        "namespaces",
        *(f"{each}.kueue.x-k8s.io" for each in ("clusterqueues", "localqueues", "cohorts")),
        *(f"{each}.kueue.x-k8s.io" for each in ("resourceflavors", "topologies", "workloads")),
    }
)
FORBIDDEN = "http_403"
_FIRST_S = 60.0
_TURN_S = 0.2
_MS_NS = 1_000_000
_KNOWN = "--fair-sharing or --no-fair-sharing, since Kueue's configuration could not be read"


def from_dumps(before: str, after: str, fair_sharing: bool | None, *, anonymous: bool) -> CaseDocument:
    """Raises InputError with the reason where two dumps are more than one scheduling cycle apart."""
    nowhere = ClusterLocation(None, "", "")
    first, second = (loaded_from(each, OwnerKeys(), nowhere, "") for each in (before, after))
    config = _config(first.state, fair_sharing)
    found = record(first.state, second.state, config, _names(anonymous), "rec-001")
    if found.case is None:
        allowed = "two dumps with the decisions of one scheduling cycle between them"
        raise InputError("--after", ErrorRemark("; ".join(found.why)), allowed)
    for each in found.why:
        complain(f"left out: {each}")
    return document([found.case], _origin(config, first.state.at_ms, second.state.at_ms, anonymous))


class RecordingLimits(NamedTuple):
    """For how many seconds a cluster is watched, and the number of cases after which that ends."""

    seconds: int
    most: int


def watched(
    where: ClusterLocation, watch: RecordingLimits, fair_sharing: bool | None, *, anonymous: bool
) -> CaseDocument:
    """Every decision that a case can express, from the writes as they come, until the time is over or
    somebody ends it. Reports on stderr what was left out, and how many of the cases agree with the rules.
    Raises SourceError where there is none."""
    began_ms = _now_ms()
    changes: SimpleQueue[ObjectChange[Workload]] = SimpleQueue()
    with connected(where) as transport:
        config = _config_of(_kueue_config(transport), fair_sharing)
        cluster = ClusterWatch(
            transport, [each for each in collections() if each.name in _NEEDED], {_WORKLOADS: changes.put}
        )
        cluster.start()
        try:
            _await(cluster)
            follower = DecisionFollower(config, _names(anonymous))
            _until_ended(cluster, changes, follower, watch)
        finally:
            cluster.close()
    kept = follower.kept
    if not kept.cases:
        lost = f"{kept.decisions} that could not be told apart"
        why = "; ".join(f"{count:,}: {reason}" for reason, count in kept.left_out.most_common())
        said = f"{lost}: {why}" if why else lost
        raise SourceError(f"no decision of one cycle in {watch.seconds} s ({said})")
    for line in record_summary(kept, checked(kept.cases)):
        complain(line)
    return document(kept.cases, _origin(config, began_ms, _now_ms(), anonymous))


def _origin(config: KueueConfig, from_ms: int, to_ms: int, anonymous: bool) -> RecordingOrigin:
    if anonymous:
        config = replace(config, version=public_version(config.version))
    return RecordingOrigin(config, from_ms, to_ms)


def _until_ended(
    cluster: ClusterWatch,
    changes: SimpleQueue[ObjectChange[Workload]],
    follower: DecisionFollower,
    watch: RecordingLimits,
) -> None:
    """Follows until the time is over; Ctrl-C, SIGTERM and the end of the terminal end it early."""
    try:
        with as_ctrl_c():
            _follow(cluster, changes, follower, watch)
    except KeyboardInterrupt:
        complain("ended early: what was recorded until then is written")
        follower.pass_by()


def _now_ms() -> int:
    return time.time_ns() // _MS_NS


def _await(cluster: ClusterWatch) -> None:
    """Waits until everything has been read once."""
    is_read = cluster.wait(_FIRST_S)
    for name, status in cluster.statuses().items():
        if status.problem == FORBIDDEN:
            raise SourceError(f"permission missing: list and watch on {name} in every namespace")
        if status.problem or not (is_read or status.synced):
            raise SourceError(f"{name} could not be read: {status.problem or 'no answer'}")
    if cluster.statuses()[_WORKLOADS].absent:
        raise SourceError("Kueue is not installed there: it serves no workloads.kueue.x-k8s.io")


def _follow(
    cluster: ClusterWatch,
    changes: SimpleQueue[ObjectChange[Workload]],
    follower: DecisionFollower,
    watch: RecordingLimits,
) -> None:
    """Passes changes to the follower until the time is over, or there are enough cases."""
    end_s = time.monotonic() + watch.seconds
    seen: list[object] = []
    is_over = False
    while not is_over and len(follower.kept.cases) < watch.most:
        is_over = time.monotonic() >= end_s  # changes that came before are still read
        found = _read(changes)
        state = cluster.snapshot()
        specs = [state.cluster_queues, state.cohorts, state.local_queues, state.flavors]
        now_ms = _now_ms()
        if len(seen) != len(specs) or any(a is not b for a, b in zip(seen, specs, strict=True)):
            follower.look(state, now_ms)
            seen = list(specs)
        times = Counter(each.seen_ns for each in found)
        for each in found:
            # All objects of one list have one time: a list has no order of writes.
            is_gone = each.kind in (ObjectChangeKind.DELETED, ObjectChangeKind.VANISHED)
            now = None if is_gone else each.object
            write = WorkloadWrite(each.seen_ns // _MS_NS, each.object.meta.uid, None, now)
            follower.take(write, state, is_alone=times[each.seen_ns] == 1)
        if not found:
            follower.pass_by(now_ms)
    follower.pass_by()


def _read(changes: SimpleQueue[ObjectChange[Workload]]) -> list[ObjectChange[Workload]]:
    """All changes that came; where there are none, those that come within a moment."""
    found = []
    with suppress(Empty):
        found.append(changes.get(timeout=_TURN_S))
        while True:
            found.append(changes.get_nowait())
    return found


def _kueue_config(transport: KubeTransport) -> KueueConfig:
    gathered = SchedulerConfigBuilder()
    for item in scheduler_configurations(transport, with_deployments=True):
        gathered.add(item)
    return gathered.configs().kueue


def _config(state: ClusterState, fair_sharing: bool | None) -> KueueConfig:
    return _config_of(state.schedulers.kueue, fair_sharing)


def _config_of(config: KueueConfig, fair_sharing: bool | None) -> KueueConfig:
    """As in the cluster, changed by the option."""
    if fair_sharing is not None:
        return replace(config, fair_sharing=fair_sharing)
    if not config.is_read:
        raise InputError("--fair-sharing", ErrorRemark("missing"), _KNOWN)
    return config


def _names(anonymous: bool) -> CaseNames:
    return CaseAliases() if anonymous else CaseNames()
