"""PromQL about jobs: which pods and GPUs are a job's, and what waits, with the layer that holds it.

What waits is either a Kueue workload or a job that Kueue does not manage; both are told by job, in one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.series import latest, of, one_per

JOB = ('namespace=~"$namespace"', 'job_name=~"$job"')
WAITING_LABELS = ("namespace", "job_kind", "job_name", "job_uid", "queue", "layer", "reason")
"""With ``cluster``: what one row of a table of waiting jobs is."""
GANG = ("namespace", "gang", "gang_uid", "gang_kind")
GPU = ("node", "gpu_uuid", "gpu_instance")
_POD = "cluster, namespace, pod, pod_uid"
_IN_NAMESPACE = 'namespace=~"$namespace"'
_WORKLOAD = ("namespace", "workload", "workload_uid")
_OF_WORKLOAD = ("job_kind", "job_name", "job_uid", "queue", "cluster_queue")


def of_job_pods(expr: str, *, span: str = "") -> str:
    """The rows of ``expr`` (with the labels of a pod) that are of pods of the job chosen; of all that it had
    in ``span``, if given."""
    info = of("gpucost_pod_owner_info", *JOB)
    return f"{expr} and on ({_POD}) {f'last_over_time({info}[{span}])' if span else info}"


def by_gpu(counter: str, *, span: str = "$__rate_interval", whole: bool = False) -> str:
    """The rate of a pod counter (``busy_seconds``) of the job chosen, by GPU; by board where ``whole``."""
    series = of(f"gpucost_pod_gpu_{counter}_total", 'holder="pod"', _IN_NAMESPACE)
    labels = ", ".join(("cluster", *(GPU[:2] if whole else GPU)))
    past = span if span != "$__rate_interval" else ""
    return f"sum by ({labels}) ({of_job_pods(f'rate({series}[{span}])', span=past)})"


def ratio_by_gpu(counter: str, observed: str, *, span: str = "$__rate_interval") -> str:
    """The part of the time for which a signal was seen; no row where it was not."""
    return f"{by_gpu(counter, span=span)} / ({by_gpu(observed, span=span)} > 0)"


def on_job_gpus(expr: str, *labels: str, span: str = "") -> str:
    """The rows of ``expr`` that are of GPUs which the job chosen holds (held in ``span``), matched on
    ``cluster`` and ``labels``."""
    share = of("gpucost_pod_gpu_share", _IN_NAMESPACE)
    held = of_job_pods(f"last_over_time({share}[{span}])" if span else share, span=span)
    return f"{expr} and on ({', '.join(('cluster', *labels))}) ({held})"


def held_units(by: str) -> str:
    """GPU units that pods of the job chosen hold; a pod that has ended holds none."""
    labels = ("namespace", "pod", "pod_uid", "resource")
    held = latest("gpucost_pod_gpu_request", labels, _IN_NAMESPACE)
    ended = latest("gpucost_pod_gpu_end_timestamp_seconds", labels, _IN_NAMESPACE)
    return f"sum by ({by}) ({of_job_pods(f'({held} unless {ended})')})"


def longest_partial(step: str = "1m") -> str:
    """For how long each gang was partial, in seconds: the longest that it came to in the range shown."""
    since = latest("gpucost_gang_partial_since_timestamp_seconds", GANG)
    return f"max_over_time((time() - {since})[$__range:{step}])"


def last_of_gangs(metric: str, *labels: str) -> str:
    """The last value in the range shown, by gang, of gangs that were partial in it."""
    since = of("gpucost_gang_partial_since_timestamp_seconds")
    value = f"max by ({_names(('cluster', *GANG, *labels))}) (last_over_time({of(metric)}[$__range]))"
    return f"{value} and on (cluster, gang_uid) last_over_time({since}[$__range])"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits. ``workload_info`` and ``job_info`` are the info series of those that are meant: of
    workloads by ``_WORKLOAD`` and ``_OF_WORKLOAD``, of jobs without one by ``job_uid``, ``namespace`` and
    ``queue``."""

    workload_info: str
    job_info: str

    def count(self, by: Sequence[str], layer: str = "") -> str:
        """Workloads, and jobs without one; those that ``layer`` holds, if given."""
        return f"sum by ({_names(by)}) ({self._workloads(layer)} or {self._jobs(layer)})"

    def seconds(self, by: Sequence[str]) -> str:
        """The longest wait. Of jobs without a workload, nothing says since when."""
        since = latest("gpucost_workload_queued_timestamp_seconds", ("workload_uid",))
        workloads = _each(self._workloads())
        waits = f"{workloads} * on (cluster, workload_uid) group_left () (time() - {since})"
        return f"max by ({_names(by)}) ({waits})"

    def units(self, by: Sequence[str]) -> str:
        """GPU units that the pods which wait ask for."""
        workloads, jobs = _each(self._workloads()), _each(self._jobs())
        of_workloads = f"{workloads} * on (cluster, workload_uid) group_left () {_units('workload')}"
        of_jobs = f"{jobs} * on (cluster, job_uid) group_left () {_units('job')}"
        return f"sum by ({_names(by)}) ({of_workloads} or {of_jobs})"

    def place(self, by: Sequence[str]) -> str:
        """The foremost place in its ClusterQueue, from 1; only of workloads that are tried."""
        places = latest("gpucost_workload_queue_position", ("workload_uid",))
        return (
            f"min by ({_names(by)}) ({self._workloads()} * on (cluster, workload_uid) group_left () {places})"
        )

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


def waiting(*matchers: str, workloads_only: Sequence[str] = ()) -> Waiting:
    """What waits of the info series that match; ``workloads_only``: matchers that only workloads can have."""
    return Waiting(_workload_info(*matchers, *workloads_only), _job_info(*matchers))


def waiting_of_team() -> Waiting:
    """What waits of the team chosen: what its label names; and, without such a label, what is in a namespace
    in which the team has costs this month."""
    named, bare = 'owner_team=~"$team"', 'owner_team=""'
    costs = 'gpucost_job_cost_usd{gpu_cluster=~"$cluster", owner_team=~"$team", namespace!=""}'
    there = f"and on (namespace) {costs}"
    return Waiting(
        f"({_workload_info(named)} or {_workload_info(bare)} {there})",
        f"({_job_info(named)} or {_job_info(bare)} {there})",
    )


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


def _names(by: Sequence[str]) -> str:
    return ", ".join(by)
