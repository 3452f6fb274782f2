"""From the facts of a probe to a diagnosis. Pure: the same probe gives the same answer.

``facts`` describes what was found in one cluster; names from outside are made safe where they are displayed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from gpucost.advisor.kueue.rule_set import drift
from gpucost.cluster.objects.node_labels import PLACE_LABELS
from gpucost.cluster.objects.scheduler_config import KueueConfig
from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.kube_state import NODE_CREATED
from gpucost.contract.metrics import UnavailableCause
from gpucost.contract.probe import (
    KUBE_JOBS,
    KUEUE_QUEUES,
    KUEUE_QUOTAS,
    OPENCOST_PRICES,
    OWN_STATE,
    VOLCANO_QUEUES,
    ClusterProbe,
    SeriesPresence,
    ServerProbe,
    SharingSeries,
)
from gpucost.domain.gpu import ShareMethod
from gpucost.domain.text import counted
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Month, iso
from gpucost.reports.base.display import month_name, span_of_days
from gpucost.reports.doctor import settings
from gpucost.reports.doctor.features import ClusterCase, judge
from gpucost.reports.doctor.model import (
    GPU_LABELS,
    PRODUCTS,
    ClusterDiagnosis,
    DiagnosisFact,
    DiagnosisStep,
    DoctorFeature,
    DoctorRequirements,
    FeatureFinding,
    FeatureVerdict,
    ServerDiagnosis,
    annotations_in,
    labels_in,
)
from gpucost.reports.doctor.steps import (
    JOBS,
    beside_kube_state,
    first_whole,
    gap_words,
    replica_labels,
    steps,
)

RULES_CHECKED = "2026-11-23"
RULES_OF = (
    *("Kubernetes 1.37", "Kueue 0.19.2", "Volcano 1.15.1", "KAI Scheduler 2026-03", "HAMi 2026-08"),
    *("AMD's device-metrics-exporter 2026-08", "Intel's device plugins 2026-06"),
    "ComputeDomains 2026-05",
)
"""When the rules for objects of these were last compared with their source. To be moved with each look."""
INNER_CHECKED = "2026-11-23"
INNER_RULES_OF = ("slurmrestd v0.0.39 to v0.0.46, sacct", "Slinky 1.2", "SUNK 2026-05", "Ray 2")
"""The same for records of inner schedulers."""
_NEWER = (
    (
        "dynamic resources",
        (
            "resourceclaims.resource.k8s.io",
            "resourceslices.resource.k8s.io",
            "devicetaintrules.resource.k8s.io",
        ),
        "claims, shares, consumed capacity, PodGroups' claims and taints are read",
    ),
    (
        "NVLink domains",
        ("computedomains.resource.nvidia.com",),
        "their channels hold no GPU; free GPUs that they strand are waste of their own",
    ),
    (
        "Kueue's objects",
        ("workloads.kueue.x-k8s.io",),
        "elastic slices and variants count once; granular reasons are read",
    ),
    (
        "gangs of Kubernetes",
        (
            "podgroups.scheduling.k8s.io",
            "compositepodgroups.scheduling.k8s.io",
            "workloads.scheduling.k8s.io",
        ),
        "a tree of groups is one gang, with the least number of each level; disruption modes are read",
    ),
    (
        "pods",
        ("pods",),
        "sidecars and init containers in their order, requests of whole pods and resizing are read",
    ),
)
_MOST = 6
_KINDS = (("own", "gpucost's collector"), ("state", "kube-state-metrics"), ("gpus", "dcgm-exporter"))


def facts(case: ClusterCase, probe: ServerProbe) -> tuple[DiagnosisFact, ...]:
    """The facts of a cluster, in the order in which they are shown."""
    return (
        *_when(case, probe),
        *_pods(case, case.wanted),
        *_nodes(case),
        *_gpus(case),
        *_other_gpus(case),
        *_queues(case),
        *_sharing(case),
        *_advised(case),
        *_inner(case, probe),
        *_scrapes(case),
        *_jobs(case),
        *_doubles(case),
    )


def _when(case: ClusterCase, probe: ServerProbe) -> Iterator[DiagnosisFact]:
    for kind, name in _KINDS:
        seen = case.seen(kind)
        if kind == "own" and seen is None:
            continue
        yield DiagnosisFact(name, _seen(case, seen) if case.probe.seen is not None else "not known")
    kept = probe.retention or "not known: the server does not say (Thanos, Mimir)"
    yield DiagnosisFact("retention", kept)
    yield DiagnosisFact("gaps between scrapes", gap_words(case))


def _seen(case: ClusterCase, seen: SeriesPresence | None) -> str:
    if seen is None:
        return "nothing in the month"
    extent = "all of the month" if case.is_whole(seen) else case.bounds(seen)
    hours = -(-case.asked.length_ms // HOUR_MS)
    return f"{extent}, in {min(seen.instants, hours)} of {counted(hours, 'hour')}"


def _pods(case: ClusterCase, wanted: DoctorRequirements) -> Iterator[DiagnosisFact]:
    pods = case.probe.pods
    if pods is None or not pods.pods:
        yield DiagnosisFact("GPU requests", "not known" if pods is None else "none")
        return
    uid = "with uid" if pods.with_uid == pods.pods else f"{pods.with_uid} of them with uid"
    yield DiagnosisFact("GPU requests", f"{counted(pods.pods, 'pod')}, {uid}; {_listed(pods.resources)}")
    if claims := case.probe.series.get(ksm.RESOURCE_CLAIMS):
        yield DiagnosisFact("DRA claims", f"{claims} of pods; no series says which devices they got")
    labels = labels_in(wanted.pod_keys, pods.labels or ())
    beside = annotations_in(wanted.pod_keys, pods.annotations or ())
    of_namespaces = labels_in(wanted.owners.all, pods.namespace_labels or ())
    yield DiagnosisFact("labels of pods", "not known" if pods.labels is None else _listed((*labels, *beside)))
    yield DiagnosisFact(
        "labels of namespaces", "not known" if pods.namespace_labels is None else _listed(of_namespaces)
    )
    if pods.renamed:
        names = _listed(f"exported_{name}" for name in sorted(pods.renamed))
        yield DiagnosisFact("honor_labels", f"false for kube-state-metrics ({names}); gpucost reads both")
    else:
        yield DiagnosisFact("honor_labels", "true for kube-state-metrics, or no label was in the way")


def _nodes(case: ClusterCase) -> Iterator[DiagnosisFact]:
    nodes = case.probe.nodes
    if nodes is None:
        yield DiagnosisFact("GPU nodes", "not known")
        return
    yield DiagnosisFact("GPU nodes", f"{counted(nodes.nodes, 'node')}; {_listed(nodes.resources)}")
    wanted = tuple(dict.fromkeys((*GPU_LABELS, *PRODUCTS, *PLACE_LABELS)))
    labels = labels_in(wanted, nodes.labels or ())
    yield DiagnosisFact("labels of nodes", "not known" if nodes.labels is None else _listed(labels))


def _gpus(case: ClusterCase) -> Iterator[DiagnosisFact]:
    gpus = case.probe.gpus
    if gpus is None:
        if case.probe.gpus_unread:
            yield DiagnosisFact("dcgm-exporter rows", "not known")
        return
    slices = " and slices" if gpus.profiles else ""
    yield DiagnosisFact(
        "dcgm-exporter rows",
        f"{counted(gpus.rows, 'GPU')}{slices}, {gpus.held} held by pods; {_listed(gpus.models)}",
    )
    fields = [each.value for each in DcgmField if gpus.fields.get(each.value)]
    yield DiagnosisFact("dcgm-exporter fields", _listed(fields, len(DcgmField)))
    yield DiagnosisFact("dcgm-exporter dialect", "; ".join(gpus.versions) or "none that is known")
    if gpus.profiles:
        yield DiagnosisFact("MIG", _listed(gpus.profiles))
    if gpus.replicas:
        yield DiagnosisFact(
            "shared GPUs", f"{gpus.replicas} rows with vgpu; copies of a GPU are counted once"
        )
    if gpus.renamed:
        yield DiagnosisFact(
            "honor_labels", "false for dcgm-exporter (exported_pod): busy GPUs by exported_pod"
        )
    if gpus.own_pod:
        yield DiagnosisFact(
            "idle GPUs", f"{gpus.own_pod} carry the exporter's own pod; gpucost takes them as held by nobody"
        )
    for name in gpus.unclear_units:
        yield DiagnosisFact("unit", f"{name}: ratio or percentage, no value tells yet")


def _other_gpus(case: ClusterCase) -> Iterator[DiagnosisFact]:
    """GPUs of other makers, and what is read of whoever tells their use."""
    found = case.probe.other_gpus
    if found is None:
        return
    for each in found.series:
        parts = " and partitions" if each.parts else ""
        held = f", {each.held} held by pods" if each.names_pods else ""
        read = f"{counted(each.devices, 'GPU')}{parts}{held}; {_listed(each.fields, len(DcgmField))}"
        if each.parts:
            read += "; of a GPU in partitions the first is measured, the others are not"
        if not each.names_pods:
            read += "; names no pod: read of pods that have a whole node, unknown of others"
        yield DiagnosisFact(each.what, read)
    if found.units:
        units = _listed(f"{n:,} {resource}" for resource, n in sorted(found.units.items()))
        use = "above" if found.series else "unknown: no series of it that is read"
        yield DiagnosisFact("GPUs not of NVIDIA", f"{units}; counted and priced; use: {use}")


def _queues(case: ClusterCase) -> Iterator[DiagnosisFact]:
    probe = case.probe
    names = (
        ("Kueue", KUEUE_QUOTAS + KUEUE_QUEUES),
        ("Volcano", VOLCANO_QUEUES),
        ("OpenCost", OPENCOST_PRICES),
    )
    for what, wanted in names:
        found = [name for name in wanted if probe.has(name)]
        if found:
            yield DiagnosisFact(what, _listed(found))


def _sharing(case: ClusterCase) -> Iterator[DiagnosisFact]:
    """What a cluster has of what newer releases brought, and what is read of it."""
    found = case.probe.sharing
    if found is None:
        return
    for what, collections, read in _NEWER:
        there = [(name, found.objects[name]) for name in collections if found.objects.get(name)]
        if there:
            named = ", ".join(f"{n:,} {name.partition('.')[0]}" for name, n in there)
            yield DiagnosisFact(what, f"{named}; {read}")
    if found.closed:
        causes = ", ".join(
            f"{found.closed[each]:,} {each.replace('_', ' ')}"
            for each in UnavailableCause
            if each in found.closed
        )
        yield DiagnosisFact("nodes that take no pods", f"{causes}; their free GPUs are unavailable")
    if found.unhealthy:
        said = f"{counted(found.unhealthy, 'pod')}; billed as held, and a finding (unhealthy_allocated)"
        yield DiagnosisFact("pods with unhealthy GPUs", said)
    if found.parts:
        parts = ", ".join(f"{found.parts[each]:,} by {each}" for each in ShareMethod if each in found.parts)
        yield DiagnosisFact("GPUs in parts", f"{parts}; each divided among its pods at every moment")
    if found.dispatched or found.arrived:
        yield DiagnosisFact("MultiKueue", f"{_multi_kueue(found)}; pods are billed where they have nodes")
    if found.by_usage:
        are = "LocalQueue is" if found.by_usage == 1 else "LocalQueues are"
        said = f"{found.by_usage:,} {are} ordered by what they used lately; read from their status"
        yield DiagnosisFact("admission fair sharing", said)
    yield DiagnosisFact("rules last checked", f"{RULES_CHECKED}: {', '.join(RULES_OF)}")


def _advised(case: ClusterCase) -> Iterator[DiagnosisFact]:
    """Which Kueue runs, and what it decides otherwise than the rules of the advisor."""
    version = case.probe.schedulers.get("kueue", "")
    if version:
        config = KueueConfig(version, is_read=True)
        differs = "; ".join(drift(config)) or "the rules that the advisor follows"
        yield DiagnosisFact("Kueue's version", f"{version}: {differs}")


def _inner(case: ClusterCase, probe: ServerProbe) -> Iterator[DiagnosisFact]:
    """The inner schedulers of the settings, and what is read of their records."""
    mine = [each for each in probe.inner if each.cluster == case.probe.cluster]
    for each in mine:
        read = "no file" if each.as_of_ms is None else f"as of {iso(each.as_of_ms)}"
        refused = (
            f"; {counted(len(each.refused), 'record')} refused: {each.refused[0]}" if each.refused else ""
        )
        runs = f"{counted(each.runs, 'run')} with GPUs in {each.path}, {read}{refused}"
        yield DiagnosisFact(f"{each.kind} {each.name}", runs)
    if mine:
        yield DiagnosisFact("rules of inner schedulers", f"{INNER_CHECKED}: {', '.join(INNER_RULES_OF)}")


def _multi_kueue(found: SharingSeries) -> str:
    """What a cluster sends as a manager, and has as a worker; it may be both."""
    told = []
    if found.dispatched:
        stages = ", ".join(f"{count:,} {stage}" for stage, count in sorted(found.dispatched.items()))
        told.append(
            f"{counted(sum(found.dispatched.values()), 'workload')} sent to other clusters ({stages})"
        )
    if found.arrived:
        told.append(f"{counted(found.arrived, 'workload')} came from managers")
    return ", ".join(told)


def _scrapes(case: ClusterCase) -> Iterator[DiagnosisFact]:
    for each in case.probe.scrapes:
        often = f"every {span_of_days(each.interval_ms)}" if each.interval_ms else "interval not known"
        down = f", {each.down} down" if each.down else ""
        yield DiagnosisFact(f"job {each.job}", f"{counted(each.targets, 'target')}{down}, {often}")


def _jobs(case: ClusterCase) -> Iterator[DiagnosisFact]:
    for setting, what in JOBS.items():
        found = case.probe.jobs.get(setting, {})
        if len(found) > 1:
            most = sorted(found, key=lambda job: (-found[job], job))
            unit = "node" if setting == KUBE_JOBS else "target"
            listed = _listed(f"{job or 'no job'} ({counted(found[job], unit)})" for job in most)
            yield DiagnosisFact(
                f"jobs of {what}", f"{len(found)} give its series: {listed}; only one can be right"
            )
    for each in beside_kube_state(case.probe):
        kind = "OpenCost's own" if each.is_opencost else "not kube-state-metrics'"
        yield DiagnosisFact(f"kube_* of job {each.job}", f"{kind}, not counted: {_listed(each.names)}")


def _doubles(case: ClusterCase) -> Iterator[DiagnosisFact]:
    for each in case.probe.doubles:
        kind = "HA members" if replica_labels(each) else "two scrapes of it"
        labels = _listed(each.labels)
        yield DiagnosisFact(
            "duplicates",
            f"{each.exporter}: {counted(each.subjects, 'subject')} twice, {kind}; {labels} differ",
        )


def _listed(names: Iterable[str], most: int = _MOST) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more or "none"


_LOOKBACK_MS = 5 * MINUTE_MS
"""The lookback of Prometheus' instant queries."""
_USES = (DoctorFeature.TEAMS, DoctorFeature.JOBS, DoctorFeature.BUSY)


def diagnose(
    probe: ServerProbe, wanted: DoctorRequirements | None = None, program: Sequence[str] = ("gpucost",)
) -> ServerDiagnosis:
    """The diagnosis of ``probe``. ``program`` is the command with which gpucost was called, for the suggested
    next command."""
    known = [_cluster(probe, each, wanted or DoctorRequirements()) for each in probe.clusters]
    if not known:
        return _nothing(probe)
    can_tell = any(each.can_tell for each in known)
    most = max(
        known,
        key=lambda each: (each.can_tell, each.features[DoctorFeature.COST].verdict is FeatureVerdict.PART),
    )
    told = _told(probe, most)
    others = [each.cluster for each in known if each.can_tell is not most.can_tell]
    if others:
        told += f" (of {most.cluster}; not of {', '.join(others[:4])})"
    elif len(known) > 1 and not can_tell:
        told += f" (of {most.cluster})"
    whole = probe.month if most.can_tell else _later(probe, most)
    month = whole or _running(probe, most)
    command = _command(program, probe.url, month) if month else ""
    if not can_tell and most.first_whole:
        mended = "what was before" if _goes_on(probe) else "that month"
        told += f". Nothing mends {mended}; the first whole month is {_named(probe, most.first_whole)}"
    helps = [at for at, step in enumerate(most.steps, 1) if DoctorFeature.COST in step.gains]
    return ServerDiagnosis(
        url=probe.url,
        month=probe.month,
        can_tell=can_tell,
        sentence=f"{told}.",
        command=command,
        first=helps[0] if helps and not whole else 0,
        clusters=tuple(known),
        steps=most.steps,
        unread=probe.unread,
    )


def _cluster(probe: ServerProbe, cluster: ClusterProbe, wanted: DoctorRequirements) -> ClusterDiagnosis:
    at_ms = probe.at_ms if cluster.at_ms is None else cluster.at_ms
    case = ClusterCase(cluster, probe.asked, wanted, at_ms)
    found = judge(case)
    seen, cost = case.state, found[DoctorFeature.COST]
    is_there = (
        seen is not None and case.is_whole(seen) and cost.verdict in (FeatureVerdict.YES, FeatureVerdict.PART)
    )
    # Of series that are no longer there, no future month will be whole.
    whole = first_whole(case) if at_ms == probe.now_ms else None
    return ClusterDiagnosis(
        cluster=cluster.cluster,
        can_tell=is_there,
        features=found,
        steps=_ordered(steps(case, found, probe)),
        facts=facts(case, probe),
        first_whole=None if whole is None else str(whole),
    )


def _ordered(found: Sequence[DiagnosisStep]) -> tuple[DiagnosisStep, ...]:
    """In the given order, those without a gain last."""
    return tuple(sorted(found, key=lambda step: not step.gains))


def _told(probe: ServerProbe, cluster: ClusterDiagnosis) -> str:
    name = month_name(Month.parse(probe.month))
    cost = cluster.features[DoctorFeature.COST]
    so_far = " so far" if _goes_on(probe) else ""
    if cluster.can_tell:
        return f"The cost of {name} can be told{so_far}{_but(cluster, cost)}"
    if cost.verdict is FeatureVerdict.PART:
        return f"The cost of {name} can be told in part only{_length(probe, cluster)}: {cost.why}"
    return f"The cost of {name} cannot be told: {cost.why}"


def _but(cluster: ClusterDiagnosis, cost: FeatureFinding) -> str:
    """The limitations of a cost that can be computed: its own defects, else the features by which it cannot
    be divided."""
    if cost.verdict is not FeatureVerdict.YES:
        return f", with this to know: {cost.why}"
    lacking = [each.value for each in _USES if cluster.features[each].verdict is not FeatureVerdict.YES]
    return f"; missing, or in part only: {', '.join(lacking)}" if lacking else ""


def _goes_on(probe: ServerProbe) -> bool:
    return probe.now_ms < Month.parse(probe.month).window.end_ms


def _length(probe: ServerProbe, cluster: ClusterDiagnosis) -> str:
    """How much of a running month there is: on a new stack it is little, which is not a defect."""
    lasted_ms = _lasted_ms(probe, cluster)
    return f", {_about(lasted_ms)} of it" if lasted_ms and _goes_on(probe) else ""


def _about(length_ms: int) -> str:
    """Rounded down: seconds, minutes up to two hours, then hours and days."""
    if length_ms < MINUTE_MS:
        return f"{length_ms // SECOND_MS} s"
    if length_ms < 2 * HOUR_MS:
        return f"{length_ms // MINUTE_MS} min"
    return span_of_days(length_ms - length_ms % HOUR_MS)


def _lasted_ms(probe: ServerProbe, cluster: ClusterDiagnosis) -> int:
    """From the first to the last sample of the month; 0 where there is one scrape only."""
    found = _state(probe, cluster)
    lasted_ms = 0 if found is None else found.last_ms - found.first_ms
    return lasted_ms if lasted_ms > SECOND_MS else 0


def _state(probe: ServerProbe, cluster: ClusterDiagnosis) -> SeriesPresence | None:
    """When the month had series that say who held what."""
    kinds = _probed(probe, cluster).seen or {}
    return kinds.get("own") or kinds.get("state")


def _probed(probe: ServerProbe, cluster: ClusterDiagnosis) -> ClusterProbe:
    return next(each for each in probe.clusters if each.cluster == cluster.cluster)


def _is_there_now(probe: ServerProbe, cluster: ClusterDiagnosis) -> bool:
    return probe.at_ms == probe.now_ms and _probed(probe, cluster).has(OWN_STATE, NODE_CREATED)


def _running(probe: ServerProbe, cluster: ClusterDiagnosis) -> str:
    """The running month, where a report has at least some minutes of it, and nothing of the requested month
    if that is another."""
    if not _is_there_now(probe, cluster):
        return ""
    running = Month.of(probe.now_ms)
    if _goes_on(probe):
        is_part = cluster.features[DoctorFeature.COST].verdict is FeatureVerdict.PART
        return str(running) if is_part and _lasted_ms(probe, cluster) else ""
    pods = _probed(probe, cluster).pods
    is_told = pods is None or pods.with_uid == pods.pods
    is_later = _state(probe, cluster) is None and _has_begun(probe, running)
    return str(running) if is_told and is_later else ""


def _later(probe: ServerProbe, cluster: ClusterDiagnosis) -> str:
    """The month that can be requested instead, where its whole past is there."""
    if cluster.first_whole is None:
        return ""
    month = Month.parse(cluster.first_whole)
    is_fresh = _is_there_now(probe, cluster)
    keeps = not any(step.title == settings.retention("").title for step in cluster.steps)
    return cluster.first_whole if is_fresh and keeps and _has_begun(probe, month) else ""


def _named(probe: ServerProbe, whole: str) -> str:
    """The month whose cost can be computed, and from when on it is over."""
    month = Month.parse(whole)
    over_ms = month.window.end_ms
    return whole if over_ms <= probe.now_ms else f"{whole}, over on {iso(over_ms)[:10]}"


def _has_begun(probe: ServerProbe, month: Month) -> bool:
    """Whether the month began so long ago that series of now were there in it."""
    return month.window.start_ms + _LOOKBACK_MS <= probe.now_ms


def _command(program: Sequence[str], url: str, month: str) -> str:
    return shlex.join((*program, "report", month, "--prometheus", url))


def _nothing(probe: ServerProbe) -> ServerDiagnosis:
    name = month_name(Month.parse(probe.month))
    scrapes = (
        f"it scrapes {counted(probe.targets, 'target')}, none of them kube-state-metrics or dcgm-exporter"
        if probe.targets
        else f"nothing that gpucost reads was there at {iso(probe.at_ms)}, nor in the month"
    )
    to_do = (settings.kube_state(), settings.dcgm())
    return ServerDiagnosis(
        url=probe.url,
        month=probe.month,
        can_tell=False,
        sentence=f"The cost of {name} cannot be told: {scrapes}.",
        first=1,
        steps=to_do,
        unread=probe.unread,
    )
