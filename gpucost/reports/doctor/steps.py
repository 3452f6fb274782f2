"""What to turn on in one cluster, the largest gain first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpucost.contract import kube_state as ksm
from gpucost.contract.dcgm import DcgmField
from gpucost.contract.opencost import CONTAINER_RUNNING
from gpucost.contract.probe import (
    GPU_JOBS,
    KUBE_JOBS,
    KUEUE_QUEUES,
    KUEUE_QUOTAS,
    OPENCOST_PRICES,
    OWN_JOBS,
    VOLCANO_QUEUES,
    VOLCANO_QUOTAS,
    ClusterProbe,
    DuplicateSeries,
    ServerProbe,
    UnbelievedJob,
)
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Month, iso
from gpucost.reports.base.display import span_of_days
from gpucost.reports.doctor import settings
from gpucost.reports.doctor.features import STARTS, ClusterCase, is_shared
from gpucost.reports.doctor.model import (
    COUNT,
    PRODUCTS,
    QUEUES,
    REPLICAS,
    DiagnosisStep,
    DoctorFeature,
    FeatureFinding,
    FeatureVerdict,
    allowlists,
    annotation_lists,
    annotations_in,
    labels_in,
    slice_labels,
)

JOBS = {KUBE_JOBS: "kube-state-metrics", OWN_JOBS: "gpucost"}
"""Settings that name scrape jobs, and whose jobs these are."""
_NOT_REPLICAS = frozenset({"job", "instance", "pod", "service", "endpoint", "namespace", "container", "node"})
"""Labels that differ between targets; any other label that differs was added by a Prometheus or a proxy."""
_LABELLED = (DoctorFeature.TEAMS, DoctorFeature.QUEUES, DoctorFeature.SHARING, DoctorFeature.UNADVERTISED)
_OWN = (DoctorFeature.LIVE, DoctorFeature.QUOTAS, *settings.USES)
_SETTINGS = (
    (
        KUBE_JOBS,
        "kube-state-metrics",
        (DoctorFeature.COST, DoctorFeature.TEAMS, DoctorFeature.JOBS, DoctorFeature.SHARING),
    ),
    (OWN_JOBS, "gpucost", _OWN),
    (GPU_JOBS, "dcgm-exporter", settings.USES),
)
"""Settings that name scrape jobs, the exporter of these jobs, and the features that depend on it."""
_AGE = re.compile(r"(\d+)(ms|[smhdwy])")
_UNITS = {
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
    "y": 365 * DAY_MS,
}
_MOST_STRANGERS = 5
_FIELDS = (
    (DoctorFeature.BUSY, (DcgmField.GRAPHICS, DcgmField.BUSY)),
    (DoctorFeature.SM, (DcgmField.SM,)),
    (DoctorFeature.TENSOR, (DcgmField.TENSOR,)),
    (DoctorFeature.MEMORY, (DcgmField.MEMORY_USED, DcgmField.MEMORY_FREE)),
    (DoctorFeature.ENERGY, (DcgmField.ENERGY,)),
    (DoctorFeature.BROKEN, (DcgmField.XID,)),
)


def steps(
    case: ClusterCase, found: Mapping[DoctorFeature, FeatureFinding], probe: ServerProbe
) -> tuple[DiagnosisStep, ...]:
    """The steps in order: what costs need, what they are divided by, use, queues, and tidying up."""
    if case.is_own:
        own = (
            _others(case),
            _believed(case),
            _strangers(case),
            _copies(case),
            _kept(case, probe),
            _health(case, found),
        )
        return tuple(step for part in own for step in part)
    if case.state is None and not case.is_there_now:
        return (*_others(case), *_missing(case))
    return (
        *_stopped(case, probe),
        *_others(case),
        *_believed(case),
        *_strangers(case),
        *_copies(case),
        *_kept(case, probe),
        *_beside(case),
        *_series(case),
        *_labels(case, found),
        *_gpus(case, found),
        *_queues(case),
        *_health(case, found),
        *_extras(case, found),
    )


def first_whole(case: ClusterCase) -> Month | None:
    """The first month that will be there as a whole, where the requested one is not."""
    seen = case.state
    if seen is None:
        return Month.of(case.at_ms).next() if case.is_there_now else None
    if seen.first_ms <= case.asked.start_ms + case.slack_ms:
        return None
    return Month.of(seen.first_ms).next()


def retention_ms(text: str | None) -> int | None:
    """``15d``, ``1w2d`` or ``15d or 10GB`` in milliseconds; None where the server reports none, or no limit
    of time."""
    word = (text or "").split(" ")[0]
    parts = _AGE.findall(word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        return None
    return sum(int(number) * _UNITS[unit] for number, unit in parts) or None


def is_too_short(case: ClusterCase, probe: ServerProbe) -> bool:
    """Whether the missing part of the month was, or may have been, dropped for its age."""
    if first_whole(case) is None:
        return False
    kept = retention_ms(probe.retention)
    return kept is None or kept < probe.now_ms - case.asked.start_ms


def _kept(case: ClusterCase, probe: ServerProbe) -> Iterator[DiagnosisStep]:
    whole = first_whole(case)
    if whole is not None and is_too_short(case, probe):
        oldest = "Nothing is of that month" if case.state is None else f"It begins {iso(case.state.first_ms)}"
        says = f"it is set to {probe.retention} now" if probe.retention else "the server does not say its own"
        yield settings.retention(
            f"{oldest}; {says}. What is gone does not come back: "
            f"the first whole month is {whole}. With Thanos or Mimir it is the retention of the object store."
        )


def _stopped(case: ClusterCase, probe: ServerProbe) -> Iterator[DiagnosisStep]:
    seen = case.state
    if seen is None or case.is_own:
        return
    is_now = case.asked.end_ms >= probe.now_ms
    if probe.at_ms < probe.now_ms or (is_now and seen.last_ms < case.asked.end_ms - case.slack_ms):
        yield settings.again(iso(seen.last_ms))


def _copies(case: ClusterCase) -> Iterator[DiagnosisStep]:
    for double in case.probe.doubles:
        labels = replica_labels(double)
        if labels:
            yield settings.replicas((*case.wanted.replica_labels, *labels))
            return


def replica_labels(double: DuplicateSeries) -> tuple[str, ...]:
    """The labels that can only be those of HA replicas of Prometheus; none where two scrape jobs are the
    reason."""
    if "job" in double.labels:
        return ()
    return tuple(label for label in double.labels if label not in _NOT_REPLICAS)


def _series(case: ClusterCase) -> Iterator[DiagnosisStep]:
    pods, nodes = case.probe.pods, case.probe.nodes
    if pods is not None and pods.with_uid < pods.pods:
        yield settings.pod_uids()
    unbelieved = case.probe.unbelieved
    lacking, gains = set[str](), set[DoctorFeature]()
    if pods is not None and nodes is not None:
        if not pods.pods and nodes.nodes and not any(ksm.REQUESTS in each.names for each in unbelieved):
            lacking.add(ksm.REQUESTS)
        if pods.pods and not nodes.nodes:
            lacking |= {ksm.NODE_ALLOCATABLE, ksm.NODE_CAPACITY}
    if pods is not None and pods.pods and pods.names is not None:
        starts = set() if pods.names.intersection(STARTS) else {ksm.SCHEDULED, ksm.STARTED}
        lacking |= ({ksm.PHASE} | starts) - pods.names
        kinds = {"Job": ksm.JOB_OWNER, "ReplicaSet": ksm.REPLICASET_OWNER}
        owners = {ksm.POD_OWNER, *(kinds[kind] for kind in pods.owners if kind in kinds)}
        owners -= pods.names | pods.unread
        if case.probe.has(*OPENCOST_PRICES) and CONTAINER_RUNNING not in pods.names:
            gains.add(DoctorFeature.COMPARE)
        if lacking:
            gains.add(DoctorFeature.COST)
        if owners:
            gains.add(DoctorFeature.JOBS)
        lacking |= owners | ({CONTAINER_RUNNING} if DoctorFeature.COMPARE in gains else set())
    elif lacking:
        gains.add(DoctorFeature.COST)
    if lacking:
        ordered = tuple(each for each in DoctorFeature if each in gains)
        yield settings.kube_series(lacking, ordered)


def _labels(case: ClusterCase, found: Mapping[DoctorFeature, FeatureFinding]) -> Iterator[DiagnosisStep]:
    nodes, pods, wanted = case.probe.nodes, case.probe.pods, case.wanted
    missing = _missing_labels(case)
    gains = tuple(
        each
        for each in (DoctorFeature.COST, *_LABELLED)
        if each in missing and found[each].verdict in (FeatureVerdict.NO, FeatureVerdict.PART)
    )
    knows_queues = bool(case.probe.has(*KUEUE_QUEUES, *KUEUE_QUOTAS, *VOLCANO_QUEUES, *VOLCANO_QUOTAS))
    if gains == (DoctorFeature.QUEUES,) and not knows_queues:
        gains = ()
    if gains:
        profiles = () if case.probe.gpus is None else case.probe.gpus.profiles
        yield settings.label_lists(allowlists(wanted, pods, nodes, profiles), gains)
    if case.probe.has(*VOLCANO_QUEUES, *VOLCANO_QUOTAS) and DoctorFeature.QUEUES in gains:
        yield settings.annotation_list(annotation_lists(wanted, pods))


def _missing_labels(case: ClusterCase) -> set[DoctorFeature]:
    """The features that lack a label because it is not exported; none where labels could not be read."""
    nodes, pods = case.probe.nodes, case.probe.pods
    missing = set()
    if nodes is not None and nodes.labels is not None:
        wanted = (
            (DoctorFeature.COST, PRODUCTS),
            (DoctorFeature.SHARING, (REPLICAS,)),
            (DoctorFeature.UNADVERTISED, (COUNT,)),
            *(
                (DoctorFeature.UNADVERTISED, (each,))
                for each in slice_labels(nodes)
                if each.endswith(".count")
            ),
        )
        missing |= {feature for feature, keys in wanted if not labels_in(keys, nodes.labels)}
    if pods is None or pods.labels is None or pods.namespace_labels is None or pods.annotations is None:
        return missing
    owners = case.wanted.owners
    for keys in (owners.team, owners.project, owners.user):
        there = labels_in(keys, pods.labels | pods.namespace_labels)
        if not there and not annotations_in(keys, pods.annotations):
            missing.add(DoctorFeature.TEAMS)
    if not labels_in(QUEUES, pods.labels) and not annotations_in(QUEUES, pods.annotations):
        missing.add(DoctorFeature.QUEUES)
    return missing


def _gpus(case: ClusterCase, found: Mapping[DoctorFeature, FeatureFinding]) -> Iterator[DiagnosisStep]:
    gpus = case.probe.gpus
    if gpus is None:
        if not case.probe.gpus_unread and GPU_JOBS not in case.probe.others:
            yield settings.dcgm()
        return
    if not gpus.held and case.probe.pods is not None and case.probe.pods.pods:
        yield settings.dcgm_pods()
    if is_shared(case.probe) and not gpus.replicas:
        yield settings.shared_gpus()
    # A field that some GPUs have is exported already: the other GPUs cannot provide it.
    missing = [
        (feature, each)
        for feature, fields in _FIELDS
        for each in fields
        if found[feature].verdict is not FeatureVerdict.YES and not gpus.fields.get(each.value)
    ]
    # Series of XID errors exist only once one has occurred.
    if any(each is not DcgmField.XID for _, each in missing):
        fields = tuple(dict.fromkeys(each for _, each in missing))
        yield settings.dcgm_fields(fields, tuple(dict.fromkeys(feature for feature, _ in missing)))


def _queues(case: ClusterCase) -> Iterator[DiagnosisStep]:
    if case.probe.has(*KUEUE_QUEUES) and not case.probe.has(*KUEUE_QUOTAS):
        yield settings.kueue()


def _believed(case: ClusterCase) -> Iterator[DiagnosisStep]:
    for setting, what in JOBS.items():
        refused = {each.job for each in case.probe.strangers if each.job not in each.believed}
        jobs = case.probe.jobs.get(setting, {})
        found = {job: size for job, size in jobs.items() if job not in refused}
        if len(found) > 1:
            yield settings.believed_jobs(setting, min(found, key=lambda job: (-found[job], job)), what)


def _strangers(case: ClusterCase) -> Iterator[DiagnosisStep]:
    """Jobs that are not trusted at all; under kube-state-metrics' names only those that export nodes, as the
    others are reported by ``_beside``."""
    nodes = case.probe.jobs.get(KUBE_JOBS, {})
    told = [each for each in case.probe.strangers if each.setting != KUBE_JOBS or each.job in nodes]
    for each in told[:_MOST_STRANGERS]:
        yield settings.stranger(each)


def beside_kube_state(probe: ClusterProbe) -> tuple[UnbelievedJob, ...]:
    """Jobs that export series of kube-state-metrics' names, but not the creation times of nodes: they are not
    kube-state-metrics."""
    choices = probe.jobs.get(KUBE_JOBS, {})
    return tuple(each for each in probe.unbelieved if each.job not in choices)


def _beside(case: ClusterCase) -> Iterator[DiagnosisStep]:
    """Other sources of series under its names: OpenCost, or a part of kube-state-metrics in a job of
    its own."""
    jobs = tuple(sorted(case.probe.jobs.get(KUBE_JOBS, {})))
    for each in beside_kube_state(case.probe):
        is_hidden = ksm.REQUESTS in each.names and not each.is_opencost
        if is_hidden:
            yield settings.hidden_job(each.job, jobs, each.names)
        else:
            yield settings.foreign_series(each.job, jobs, is_opencost=each.is_opencost)


def _missing(case: ClusterCase) -> Iterator[DiagnosisStep]:
    """What has to be scraped, where no series says who holds what, and no setting hides it."""
    hidden = case.probe.others.keys()
    if not hidden & {KUBE_JOBS, OWN_JOBS}:
        yield settings.kube_state()
    if case.probe.gpus is None and GPU_JOBS not in hidden:
        yield settings.dcgm()


def _others(case: ClusterCase) -> Iterator[DiagnosisStep]:
    """Settings that name jobs without series, while other jobs have them."""
    for setting, what, gains in _SETTINGS:
        if jobs := case.probe.others.get(setting):
            yield settings.other_job(setting, jobs, what, gains)


def _health(case: ClusterCase, found: Mapping[DoctorFeature, FeatureFinding]) -> Iterator[DiagnosisStep]:
    """Targets, scrape intervals and two jobs for one exporter."""
    lacks = () if found[DoctorFeature.COST].verdict is FeatureVerdict.YES else (DoctorFeature.COST,)
    for each in case.probe.scrapes:
        if each.interval_ms is not None and each.interval_ms > case.wanted.max_gap_ms // 2:
            yield settings.scrape_interval(each.job, lacks)
        if each.down:
            yield settings.targets(each.job)
    for double in case.probe.doubles:
        if not replica_labels(double):
            yield settings.one_job(double.exporter, double.labels)


def _extras(case: ClusterCase, found: Mapping[DoctorFeature, FeatureFinding]) -> Iterator[DiagnosisStep]:
    own = tuple(each for each in _OWN if found[each].verdict is not FeatureVerdict.YES)
    if OWN_JOBS not in case.probe.others:
        yield settings.own_collector(own)
    if found[DoctorFeature.PRICES].verdict is not FeatureVerdict.YES:
        yield settings.opencost()
    if case.probe.pods is not None and case.probe.pods.renamed:
        yield settings.honor_labels()


def gap_words(case: ClusterCase) -> str:
    """How regularly the month was scraped, in words."""
    gaps = case.probe.gaps
    if gaps is None:
        return "not known"
    if not gaps.missing_ms:
        # A gap of two cells leaves one empty; a shorter one may lie across two that have a scrape each.
        least, most = span_of_days(gaps.cell_ms), span_of_days(2 * gaps.cell_ms)
        return f"none longer than {most}; above {least} they count"
    longest = span_of_days(gaps.longest_ms)
    return (
        f"{span_of_days(gaps.missing_ms)} of {span_of_days(gaps.asked_ms)} without a scrape; the longest, of "
        f"{longest}, begins {iso(gaps.longest_from_ms)}: known start and end times carry pods across"
    )
