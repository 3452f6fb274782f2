"""What pods with a node request of GPUs, as the scheduler counts it, and how many scrapes showed them.

A pod holds what its containers request together with its restartable init containers (sidecars), or, if that
is more, what one of the other init containers needs beside the sidecars before it (KEP-753, "Resources
calculation for scheduling and pod admission"). The order of init containers is not told: all sidecars are
taken to come first. kube-state-metrics says which are restartable from release 2.11 on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gpucost.contract import kube_state as ksm
from gpucost.domain.errors import NotCovered
from gpucost.domain.problems import Problem, ProblemCode
from gpucost.telemetry.answers import whole_count
from gpucost.telemetry.evidence import Evidence
from gpucost.telemetry.existing.reader import TARGET_LABELS, ExistingReader
from gpucost.telemetry.existing.shards import ScrapeGroups, TargetKey
from gpucost.telemetry.promql import by, equals, over_time
from gpucost.telemetry.reader import column, numbers
from gpucost.telemetry.samples import unit_count

_CONTAINER = ("uid", "namespace", "pod", "container", "node", "resource")

Subject = tuple[str, str]
"""Uid and resource."""


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    pod: str
    node: str


class PodRequests:
    """What pods with a node request, by uid and resource; how many scrapes, of which targets where there are
    shards, showed them; who is there now."""

    def __init__(self, reader: ExistingReader, groups: ScrapeGroups) -> None:
        evidence = groups.evidence
        self.names: dict[str, PodName] = {}
        self.units: dict[Subject, int] = {}
        self.samples: dict[str, int] = {}
        self.targets: dict[str, set[TargetKey]] = defaultdict(set)
        self.problems: list[Problem] = []
        together: dict[Subject, float] = defaultdict(float)
        for key, value in _values(reader, ksm.REQUESTS, "last_over_time", "max", evidence):
            uid, namespace, pod, _, node, resource = key
            together[uid, resource] += value
            self.names[uid] = PodName(namespace, pod, node)
        if not together:
            _refuse_blindness(reader, evidence)
        self._add_init(reader, evidence, together)
        self._count(reader, groups)
        for subject, value in together.items():
            self._keep(reader, subject, value)
        # Of the last two scrapes: one of them may be of another member of an HA pair.
        before = min(int(each.evidence.scrapes[-2:][0]) for each in groups.groups)
        found = _values(reader, ksm.REQUESTS, "last_over_time", "max", evidence, evidence.end_ms - before + 1)
        self.here = frozenset(key[0] for key, _ in found)

    def _add_init(self, reader: ExistingReader, evidence: Evidence, together: dict[Subject, float]) -> None:
        # No node stands in all of these series: that of the pod's containers counts.
        found = [
            (key, value)
            for key, value in _values(reader, ksm.INIT_REQUESTS, "last_over_time", "max", evidence)
            if key[0] in self.names and value
        ]
        lasting = _sidecars(reader, evidence) if found else frozenset[tuple[str, str]]()
        sidecars: dict[Subject, float] = defaultdict(float)
        most: dict[Subject, float] = defaultdict(float)
        for key, value in found:
            subject, container = (key[0], key[-1]), (key[0], key[3])
            if container in lasting:
                sidecars[subject] += value
            else:
                most[subject] = max(most[subject], value)
        for subject in {*sidecars, *most}:
            together[subject] = sidecars[subject] + max(together[subject], most[subject])

    def _count(self, reader: ExistingReader, groups: ScrapeGroups) -> None:
        """The samples of a container, of all targets; a pod is there as long as any of its containers."""
        further = TARGET_LABELS if groups.is_sharded else ()
        samples: dict[tuple[str, ...], int] = defaultdict(int)
        for key, value in _values(
            reader, ksm.REQUESTS, "count_over_time", "sum", groups.evidence, further=further
        ):
            own, target = key[: len(_CONTAINER)], key[len(_CONTAINER) :]
            samples[own] += whole_count(value)
            if target:
                self.targets[key[0]].add(target)
        for key, count in samples.items():
            self.samples[key[0]] = max(self.samples.get(key[0], 0), count)

    def _keep(self, reader: ExistingReader, subject: Subject, value: float) -> None:
        units = unit_count(value)
        if units is None:
            why = f"pod: {value!r} units of {subject[1]}"
            self.problems.append(Problem(ProblemCode.INTERVAL_REFUSED, reader.cluster, subject[0], why))
        elif units:
            self.units[subject] = units


def _values(
    reader: ExistingReader,
    name: str,
    function: str,
    operator: str,
    evidence: Evidence,
    range_ms: int = 0,
    further: tuple[str, ...] = (),
) -> Iterator[tuple[tuple[str, ...], float]]:
    """By _CONTAINER, with resources under their own names, and by ``further`` labels; those of pods without a
    node are left out."""
    read = over_time(function, reader.select(name, reader.is_gpu), range_ms or evidence.range_ms)
    labels = (*_CONTAINER, *further)
    result = reader.vector(by(operator, labels, reader.as_exported(read, _CONTAINER)), evidence.end_ms)
    columns = zip(*(column(result, label) for label in labels), strict=True)
    for found, value in zip(columns, numbers(result), strict=True):
        resource = reader.resource(found[5])
        if resource is None or not (found[4] or name == ksm.INIT_REQUESTS):
            continue
        if not found[0]:
            raise NotCovered(
                f"cluster {reader.cluster}: {name} has no label uid: kube-state-metrics is older than 2.0, "
                "or a relabelling drops it"
            )
        yield (*found[:5], resource, *found[6:]), value


def _sidecars(reader: ExistingReader, evidence: Evidence) -> frozenset[tuple[str, str]]:
    """Uid and name of each restartable init container."""
    infos = reader.select(ksm.INIT_INFO, equals("restart_policy", "Always"))
    read = reader.as_exported(over_time("last_over_time", infos, evidence.range_ms), _CONTAINER)
    result = reader.vector(by("group", ("uid", "container"), read), evidence.end_ms)
    return frozenset(zip(column(result, "uid"), column(result, "container"), strict=True))


def _refuse_blindness(reader: ExistingReader, evidence: Evidence) -> None:
    """Raise NotCovered where no request of any pod is told, of whatever resource: no cluster is so idle."""
    any_of_them = over_time("last_over_time", reader.select(ksm.REQUESTS), evidence.range_ms)
    if not reader.vector(by("count", (), any_of_them), evidence.end_ms):
        raise NotCovered(
            f"cluster {reader.cluster}: there is no {ksm.REQUESTS} at all: kube-state-metrics does not export"
            " it, or it is dropped; gpucost doctor says what to set"
        )
