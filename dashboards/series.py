"""PromQL that several dashboards use: one row per subject, whatever the number of collectors.

Replicas of the collector and instances of the service give the same series with another ``instance``: gauges
are collapsed by ``max by`` before anything is added up. Joins are on uids, since a pod's name may be used
again, and the side that gives labels has one row per uid (``one_per``): two for a moment are not an error.

The second half is about jobs: which pods and GPUs are a job's, and what waits, with the layer that holds it.
What waits is either a Kueue workload or a job that Kueue does not manage; both are selected by job, in one
shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

CLUSTER = 'cluster=~"$cluster"'
"""For series of the exporters: a target label, which may be missing."""
GPU_CLUSTER = 'gpu_cluster=~"$cluster"'
"""For the service's series."""
NODE = f'{CLUSTER}, node=~"$node"'
"""For the exporters' series of one node or several."""


def rate_sum(counter: str, matchers: str, by: str = "") -> str:
    """The sum of a counter's rates, by the labels ``by`` where given."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({counter}{{{matchers}}}[$__rate_interval]))"


def or_none(expr: str, label: str, alive: str) -> str:
    """``expr`` by ``label``; while it has no series, a line of 0 called none, as long as ``alive`` has one.

    Errors and answers have no series until the first. While the process that would export them is down, the
    panel is empty.
    """
    return f'{expr} or on () label_replace(0 * count({alive}), "{label}", "none", "", "")'


def ratio(part: str, whole: str) -> str:
    """``part`` of ``whole``; nothing where the whole is 0: the ratio is then undefined."""
    return f"{part} / ({whole} > 0)"


def share(part: str, whole: str, by: str = "") -> str:
    """Of the teams' GPU time of the last 24 hours, ``part`` of ``whole`` (held, observed, busy, …)."""
    return ratio(_last_day(part, by), _last_day(whole, by))


def _last_day(part: str, by: str) -> str:
    grouped = f"sum by ({by}) " if by else "sum"
    return f'{grouped}(gpucost_team_last_day_gpu_seconds{{{GPU_CLUSTER}, part="{part}"}})'


def latest(metric: str, by: Sequence[str], *matchers: str) -> str:
    """A gauge of the exporters by ``cluster`` and the labels ``by``."""
    return f"max by ({_names('cluster', by)}) ({of(metric, *matchers)})"


def of(metric: str, *matchers: str) -> str:
    """The series of an exporter's metric in the selected clusters."""
    return f"{metric}{{{', '.join((CLUSTER, *matchers))}}}"


def service_gauge(metric: str, by: Sequence[str], *matchers: str) -> str:
    """A gauge of the service by ``gpu_cluster`` and the labels ``by``."""
    return f"max by ({_names('gpu_cluster', by)}) ({metric}{{{', '.join((GPU_CLUSTER, *matchers))}}})"


def one_per(expr: str, *by: str) -> str:
    """One row of ``expr`` per value of ``cluster`` and ``by``, where two may be there for a moment."""
    return f"topk by ({_names('cluster', by)}) (1, {expr})"


def grown(metric: str, by: Sequence[str], span: str, *matchers: str) -> str:
    """How much a counter that begins with its first event grew over ``span``, by ``cluster`` and ``by``.

    ``increase`` leaves out a series' first sample, and so an error or an eviction that happens once. ``by``
    has all labels of the metric but the target's. A counter that was reset in between counts on from there
    where it is lower now than it was; else it is counted too low. One that existed before Prometheus first
    scraped it is too high for one ``span``.
    """
    names, series = _names("cluster", by), of(metric, *matchers)
    high, now = f"max by ({names}) (max_over_time({series}[{span}]))", f"max by ({names}) ({series})"
    before = f"clamp_min({high} - (max by ({names}) ({series} offset {span}) or 0 * {high}), 0)"
    return f"({before} + on ({names}) ({now} < {high} or 0 * {high}))"


WASTE_BY = "gpu_cluster, bucket, owner_team"


def waste(span: str, *matchers: str) -> str:
    """By how many GPU seconds the totals of the waste ledger grew over ``span``, by ``WASTE_BY``.

    The total is the ledger's and is not reset with the service, so: first one series per subject, whatever
    the number of instances; then its difference, since a total that is less than before means that a window
    was assessed again, and ``increase`` would take that for a reset and add the whole total. ``span``:
    ``$__rate_interval`` or ``$__range``.
    """
    total = f"max by ({WASTE_BY}) ({_WASTE}{{{', '.join((GPU_CLUSTER, *matchers))}}})"
    return f"clamp_min(delta({total}[{_in_steps(span)}]), 0)"


def waste_per_second(span: str, *matchers: str) -> str:
    """GPUs, on average over ``span``."""
    return f"{waste(span, *matchers)} / scalar(delta(vector(time())[{_in_steps(span)}]))"


def in_words(expr: str, words: Mapping[str, str]) -> str:
    """``expr`` by ``bucket`` with the labels that reports use: metrics keep their values."""
    for value, word in words.items():
        expr = f'label_replace({expr}, "bucket", "{word}", "bucket", "{value}")'
    return expr


CAPACITY_WORDS = {"unknown": "not observed"}
WASTE_WORDS = {"productive": "in use", "unavailable": "unusable"}
"""Where a part of capacity and a bucket of the waste ledger have the same value, or a value claims too
much."""


def _in_steps(span: str) -> str:
    """The span of a subquery: fine enough for a window of an hour, and few enough steps for a month."""
    return f"{span}:{'5m' if span == '$__range' else '1m'}"


def or_zero(expr: str, alive: str) -> str:
    """``expr``, an aggregate without labels, and 0 where it has no value while ``alive`` has series: no
    series means 0 only while the process that would export them runs."""
    return f"{expr} or 0 * count({alive})"


COLLECTOR_ALIVE = f"{of('gpucost_state_up')} == 1"
SERVICE_ALIVE = "gpucost_ledger_up == 1"


_WASTE = "gpucost_waste_gpu_seconds_total"


def _names(first: str, more: Sequence[str]) -> str:
    return ", ".join((first, *more))


JOB = ('namespace=~"$namespace"', 'job_name=~"$job"')
WAITING_LABELS = ("namespace", "job_kind", "job_name", "job_uid", "queue", "layer", "reason")
"""With ``cluster``: the key of a row in a table of waiting jobs."""
GANG = ("namespace", "gang", "gang_uid", "gang_kind")
GPU = ("node", "gpu_uuid", "gpu_instance")
_POD = "cluster, namespace, pod, pod_uid"
_IN_NAMESPACE = 'namespace=~"$namespace"'
_WORKLOAD = ("namespace", "workload", "workload_uid")
_OF_WORKLOAD = ("job_kind", "job_name", "job_uid", "queue", "cluster_queue")


def of_job_pods(expr: str, *, span: str = "") -> str:
    """The rows of ``expr`` (with the labels of a pod) that are of pods of the selected job; of all that it
    had in ``span``, if given."""
    info = of("gpucost_pod_owner_info", *JOB)
    return f"{expr} and on ({_POD}) {f'last_over_time({info}[{span}])' if span else info}"


def by_gpu(counter: str, *, span: str = "$__rate_interval", whole: bool = False) -> str:
    """The rate of a pod counter (``busy_seconds``) of the selected job, by GPU or MIG slice; by whole GPU
    where ``whole``."""
    series = of(f"gpucost_pod_gpu_{counter}_total", 'holder="pod"', _IN_NAMESPACE)
    labels = ", ".join(("cluster", *(GPU[:2] if whole else GPU)))
    past = span if span != "$__rate_interval" else ""
    return f"sum by ({labels}) ({of_job_pods(f'rate({series}[{span}])', span=past)})"


def ratio_by_gpu(counter: str, observed: str, *, span: str = "$__rate_interval") -> str:
    """The part of the time for which a signal was observed; no row where it was not."""
    return f"{by_gpu(counter, span=span)} / ({by_gpu(observed, span=span)} > 0)"


def on_job_gpus(expr: str, *labels: str, span: str = "") -> str:
    """The rows of ``expr`` that are of GPUs which the selected job holds (held in ``span``), matched on
    ``cluster`` and ``labels``."""
    share = of("gpucost_pod_gpu_share", _IN_NAMESPACE)
    held = of_job_pods(f"last_over_time({share}[{span}])" if span else share, span=span)
    return f"{expr} and on ({', '.join(('cluster', *labels))}) ({held})"


def held_units(by: str) -> str:
    """GPU units that pods of the selected job hold; a pod that has ended holds none."""
    labels = ("namespace", "pod", "pod_uid", "resource")
    held = latest("gpucost_pod_gpu_request", labels, _IN_NAMESPACE)
    ended = latest("gpucost_pod_gpu_end_timestamp_seconds", labels, _IN_NAMESPACE)
    return f"sum by ({by}) ({of_job_pods(f'({held} unless {ended})')})"


def longest_partial(step: str = "1m") -> str:
    """For how long each gang was partial, in seconds: the maximum in the range shown."""
    since = latest("gpucost_gang_partial_since_timestamp_seconds", GANG)
    return f"max_over_time((time() - {since})[$__range:{step}])"


def last_of_gangs(metric: str, *labels: str) -> str:
    """The last value in the range shown, by gang, of gangs that were partial in it."""
    since = of("gpucost_gang_partial_since_timestamp_seconds")
    value = f"max by ({_work_names(('cluster', *GANG, *labels))}) (last_over_time({of(metric)}[$__range]))"
    return f"{value} and on (cluster, gang_uid) last_over_time({since}[$__range])"


@dataclass(frozen=True, slots=True)
class WaitingSeries:
    """What waits. ``workload_info`` and ``job_info`` are the info series to include: of workloads by
    ``_WORKLOAD`` and ``_OF_WORKLOAD``, of jobs without one by ``job_uid``, ``namespace`` and ``queue``."""

    workload_info: str
    job_info: str

    def count(self, by: Sequence[str], layer: str = "") -> str:
        """Workloads, and jobs without one; those that ``layer`` holds, if given."""
        return f"sum by ({_work_names(by)}) ({self._workloads(layer)} or {self._jobs(layer)})"

    def seconds(self, by: Sequence[str]) -> str:
        """The longest wait. For jobs without a workload it is not known since when they wait."""
        since = latest("gpucost_workload_queued_timestamp_seconds", ("workload_uid",))
        workloads = _each(self._workloads())
        waits = f"{workloads} * on (cluster, workload_uid) group_left () (time() - {since})"
        return f"max by ({_work_names(by)}) ({waits})"

    def units(self, by: Sequence[str]) -> str:
        """GPU units that the waiting pods request."""
        workloads, jobs = _each(self._workloads()), _each(self._jobs())
        of_workloads = f"{workloads} * on (cluster, workload_uid) group_left () {_units('workload')}"
        of_jobs = f"{jobs} * on (cluster, job_uid) group_left () {_units('job')}"
        return f"sum by ({_work_names(by)}) ({of_workloads} or {of_jobs})"

    def place(self, by: Sequence[str]) -> str:
        """The foremost place in its ClusterQueue, from 1; only of workloads that Kueue tries to admit."""
        places = latest("gpucost_workload_queue_position", ("workload_uid",))
        joined = f"{self._workloads()} * on (cluster, workload_uid) group_left () {places}"
        return f"min by ({_work_names(by)}) ({joined})"

    def _workloads(self, layer: str = "") -> str:
        labels = (*_WORKLOAD, "layer", "reason")
        layers = one_per(latest("gpucost_workload_waiting", labels, *_only(layer)), "workload_uid")
        info = one_per(self.workload_info, "workload_uid")
        return f"{layers} * on (cluster, workload_uid) group_left ({', '.join(_OF_WORKLOAD)}) {info}"

    def _jobs(self, layer: str = "") -> str:
        labels = ("job_kind", "job_name", "job_uid", "layer", "reason")
        layers = one_per(latest("gpucost_job_waiting", labels, *_only(layer)), "job_uid")
        info = one_per(self.job_info, "job_uid")
        return f"{layers} * on (cluster, job_uid) group_left (namespace, queue) {info}"


def _each(waiting: str) -> str:
    """1 for each that waits: the collector's ``__others__`` of a namespace are many in one, with sums."""
    return f"({waiting} > bool 0)"


def waiting(*matchers: str, workloads_only: Sequence[str] = ()) -> WaitingSeries:
    """What waits, by the info series that match; ``workloads_only``: matchers that only workloads can
    have."""
    return WaitingSeries(_workload_info(*matchers, *workloads_only), _job_info(*matchers))


def waiting_of_team() -> WaitingSeries:
    """What waits of the selected team: what its label names; and, without such a label, what is in a
    namespace in which the team has costs this month."""
    named, bare = 'owner_team=~"$team"', 'owner_team=""'
    costs = 'gpucost_job_cost_usd{gpu_cluster=~"$cluster", owner_team=~"$team", namespace!=""}'
    there = f'on (cluster, namespace) label_join({costs}, "cluster", "", "gpu_cluster")'

    without = 'cluster=""'

    def of_team(info: Callable[..., str]) -> str:
        # Where there is one cluster, exporters may have no label of it.
        alone = f"{info(bare, without)} and on (namespace) {costs}"
        return f"({info(named)} or {info(bare)} and {there} or {alone})"

    return WaitingSeries(of_team(_workload_info), of_team(_job_info))


def _workload_info(*matchers: str) -> str:
    return latest("gpucost_workload_info", (*_WORKLOAD, *_OF_WORKLOAD), *matchers)


def _job_info(*matchers: str) -> str:
    return latest("gpucost_job_waiting_info", ("job_name", "job_uid", "namespace", "queue"), *matchers)


def _units(what: str) -> str:
    """By ``workload_uid`` or ``job_uid``: waiting pods of each pod set times the units of one of them."""
    uid = f"{what}_uid"
    units = latest(f"gpucost_{what}_pod_set_units", (uid, "pod_set", "resource"))
    pods = latest(f"gpucost_{what}_pod_set_pods", (uid, "pod_set"))
    return f"sum by (cluster, {uid}) ({units} * on (cluster, {uid}, pod_set) group_left () {pods})"


def _only(layer: str) -> tuple[str, ...]:
    return (f'layer="{layer}"',) if layer else ()


def _work_names(by: Sequence[str]) -> str:
    return ", ".join(by)
