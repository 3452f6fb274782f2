"""Where ``gpucost advisor record`` has decisions from: two dumps, or the writes of a cluster as they come."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import NamedTuple

from gpucost.advisor.verify.aliases import Aliases, Names
from gpucost.advisor.verify.follow import Follower, Write, checked
from gpucost.advisor.verify.record import document, record
from gpucost.advisor.verify.write import Document
from gpucost.cli.advisor_screen import record_summary
from gpucost.cli.exits import complain
from gpucost.cli.state import loaded_from
from gpucost.cli.state_source import Place, connected, scheduler_configurations
from gpucost.cluster.kueue import Workload
from gpucost.cluster.ownership import OwnerKeys
from gpucost.cluster.scheduling import KueueConfig
from gpucost.cluster.state import ClusterState
from gpucost.domain.errors import InputError, Remark, SourceError
from gpucost.kube.collections import collections
from gpucost.kube.connect.transport import Transport
from gpucost.kube.scheduler_configs import Gathered
from gpucost.kube.store import Change, ChangeKind
from gpucost.kube.watch import ClusterWatch

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


def from_dumps(before: str, after: str, fair_sharing: bool | None, *, anonymous: bool) -> Document:
    """Raises InputError where what lies between two dumps is not one cycle, saying why."""
    nowhere = Place(None, "", "")
    first, second = (loaded_from(each, OwnerKeys(), nowhere, "") for each in (before, after))
    found = record(
        first.state, second.state, _config(first.state, fair_sharing), _names(anonymous), "rec-001"
    )
    if found.case is None:
        allowed = "two dumps with the decisions of one scheduling cycle between them"
        raise InputError("--after", Remark("; ".join(found.why)), allowed)
    for each in found.why:
        complain(f"left out: {each}")
    return document([found.case])


class Watch(NamedTuple):
    """For how many seconds a cluster is watched, and after how many cases that ends."""

    seconds: int
    most: int


def watched(where: Place, watch: Watch, fair_sharing: bool | None, *, anonymous: bool) -> Document:
    """Every decision that a case has words for, from the writes as they come. Says on stderr what was left
    out, and how many of the cases agree with the rules. Raises SourceError where there is none."""
    changes: SimpleQueue[Change[Workload]] = SimpleQueue()
    with connected(where) as transport:
        config = _config_of(_kueue_config(transport), fair_sharing)
        cluster = ClusterWatch(
            transport, [each for each in collections() if each.name in _NEEDED], {_WORKLOADS: changes.put}
        )
        cluster.start()
        try:
            _await(cluster)
            follower = Follower(config, _names(anonymous))
            _follow(cluster, changes, follower, watch)
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
    return document(kept.cases)


def _await(cluster: ClusterWatch) -> None:
    """Until all has been read once."""
    is_read = cluster.wait(_FIRST_S)
    for name, status in cluster.statuses().items():
        if status.problem == FORBIDDEN:
            raise SourceError(f"permission missing: list and watch on {name} in every namespace")
        if status.problem or not (is_read or status.synced):
            raise SourceError(f"{name} could not be read: {status.problem or 'no answer'}")
    if cluster.statuses()[_WORKLOADS].absent:
        raise SourceError("Kueue is not installed there: it serves no workloads.kueue.x-k8s.io")


def _follow(
    cluster: ClusterWatch, changes: SimpleQueue[Change[Workload]], follower: Follower, watch: Watch
) -> None:
    """Hands on what comes until the time is over, or there are cases enough."""
    end_s = time.monotonic() + watch.seconds
    seen: list[object] = []
    is_over = False
    while not is_over and len(follower.kept.cases) < watch.most:
        is_over = time.monotonic() >= end_s  # what came before that is still taken
        found = _read(changes)
        state = cluster.snapshot()
        specs = [state.cluster_queues, state.cohorts, state.local_queues, state.flavors]
        now_ms = time.time_ns() // _MS_NS
        if len(seen) != len(specs) or any(a is not b for a, b in zip(seen, specs, strict=True)):
            follower.look(state, now_ms)
            seen = list(specs)
        times = Counter(each.seen_ns for each in found)
        for each in found:
            # All of one list has one time: in which order it was written, a list does not say.
            is_gone = each.kind in (ChangeKind.DELETED, ChangeKind.VANISHED)
            now = None if is_gone else each.object
            write = Write(each.seen_ns // _MS_NS, each.object.meta.uid, None, now)
            follower.take(write, state, is_alone=times[each.seen_ns] == 1)
        if not found:
            follower.pass_by(now_ms)
    follower.pass_by()


def _read(changes: SimpleQueue[Change[Workload]]) -> list[Change[Workload]]:
    """All that came; where nothing has, what comes within a moment."""
    found = []
    with suppress(Empty):
        found.append(changes.get(timeout=_TURN_S))
        while True:
            found.append(changes.get_nowait())
    return found


def _kueue_config(transport: Transport) -> KueueConfig:
    gathered = Gathered()
    for item in scheduler_configurations(transport):
        gathered.add(item)
    return gathered.configs().kueue


def _config(state: ClusterState, fair_sharing: bool | None) -> KueueConfig:
    return _config_of(state.schedulers.kueue, fair_sharing)


def _config_of(config: KueueConfig, fair_sharing: bool | None) -> KueueConfig:
    """As the cluster has it, with what the option says."""
    if fair_sharing is not None:
        return replace(config, fair_sharing=fair_sharing)
    if not config.is_read:
        raise InputError("--fair-sharing", Remark("missing"), _KNOWN)
    return config


def _names(anonymous: bool) -> Names:
    return Aliases() if anonymous else Names()
