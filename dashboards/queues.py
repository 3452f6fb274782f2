"""*Queues*: who has which quota, who borrows and lends, what waits and why, and what is preempted."""

from __future__ import annotations

from grafanalib.core import Dashboard, Panel, Template

from dashboards import panels
from dashboards.panels import (
    BLUE,
    COUNT,
    GPUS,
    GREEN,
    GREY,
    RATIO,
    RED,
    SECONDS,
    STATE,
    YELLOW,
    PanelColumn,
    PanelRow,
    bar_gauge,
    board,
    query,
    stat,
    table,
    timeseries,
)
from dashboards.series import (
    CLUSTER,
    COLLECTOR_ALIVE,
    GANG,
    WAITING_LABELS,
    grown,
    last_of_gangs,
    latest,
    longest_partial,
    of,
    one_per,
    or_zero,
    ratio,
    waiting,
)

QUEUE = 'cluster_queue=~"$queue"'
RESOURCE = 'resource=~"$resource"'
QUOTA = ("cluster_queue", "flavor", "resource")
COHORT = ("cohort", "flavor", "resource")
LOCAL = ("namespace", "queue")
VOLCANO = ("volcano_queue", "resource")
EVICTED = ("namespace", "workload", "workload_uid", "reason")
_GPU_ONLY = (
    '__name__=~"gpucost_node_gpu_capacity|gpucost_node_gpu_expected|gpucost_pod_gpu_request|'
    'gpucost_workload_units|gpucost_cluster_queue_pending_units"'
)
"""Series whose resources are GPUs only: of nodes that are there, of pods, and of what waits for nodes that
are not."""
WAIT_STEPS = ((None, GREY), (3600, YELLOW), (6 * 3600, RED))
WORK = waiting(workloads_only=[QUEUE])


def dashboard() -> Dashboard:
    return board(
        panels.QUEUES,
        "Queues",
        "Quota of Kueue's and Volcano's queues: what each has, uses, borrows and could lend; what waits, "
        "for how long and why; who is told to stop; which gangs hold GPUs and cannot get on.",
        [_now(), _quota(), _cohorts(), _waits(), _admission(), _local(), _gangs(), _volcano()],
        [panels.datasource_variable(), panels.cluster_variable(), _queue(), _resource()],
    )


def _queue() -> Template:
    return panels.from_labels(
        "queue", "ClusterQueue", f"label_values(gpucost_cluster_queue_info{{{CLUSTER}}}, cluster_queue)"
    )


def _resource() -> Template:
    """GPU resources only: quota has cores and bytes as well, and "all" must not add those up. Quota of a
    resource that no node has, nobody holds and nothing waits for is not in it."""
    found = panels.from_labels("resource", "Resource", f"label_values({{{_GPU_ONLY}, {CLUSTER}}}, resource)")
    found.allValue = None
    return found


def _now() -> PanelRow:
    oldest = latest("gpucost_cluster_queue_oldest_pending_timestamp_seconds", ["cluster_queue"], QUEUE)
    pending = latest("gpucost_cluster_queue_pending_workloads", ["cluster_queue", "reason"], QUEUE)
    return PanelRow(
        "Now",
        [
            stat(
                "Quota reserved",
                "Reserved part of the nominal quota of the queues chosen. 100 %: all is given out, and new "
                "work waits or borrows; above: they borrow. Reserved is not used: see *GPUs held* on Fleet.",
                RATIO,
                query(ratio(f"sum({_quota_of('reserved')})", f"sum({_quota_of('nominal_quota')})")),
                decimals=0,
                steps=((None, GREEN), (0.9, YELLOW), (1.01, BLUE)),
            ),
            stat(
                "Borrowed",
                "GPU units that queues have above their nominal quota, from others of their cohort. What is "
                "borrowed can be taken back by preemption at any time.",
                GPUS,
                query(or_zero(f"sum({_quota_of('borrowed')})", COLLECTOR_ALIVE)),
                decimals=0,
            ),
            stat(
                "GPUs waiting",
                "GPU units that waiting work asks for, of the queues chosen and of jobs that Kueue does not "
                "manage. 0 is none; no data: no collector tells.",
                GPUS,
                query(or_zero(f"sum({WORK.units(['cluster'])})", COLLECTOR_ALIVE)),
                decimals=0,
            ),
            stat(
                "Workloads pending",
                "Workloads that wait for quota in the queues chosen. One that has quota and finds no nodes "
                "is not in it: see the layers below.",
                COUNT,
                query(or_zero(f"sum({pending})", COLLECTOR_ALIVE)),
                decimals=0,
            ),
            stat(
                "Longest wait",
                "How long the workload that waits longest for quota has waited. 0 is none. Long and alone: "
                "it may ask for more than it could ever have; look for its reason below.",
                SECONDS,
                query(or_zero(f"max(time() - {oldest})", COLLECTOR_ALIVE)),
                steps=((None, GREEN), (3600, YELLOW), (6 * 3600, RED)),
            ),
            stat(
                "Held by partial gangs",
                "GPU units held by gangs that lack members and so cannot get on, in all queues. More than 0 "
                "for more than some minutes is waste: see *Gangs* below.",
                GPUS,
                query(or_zero(f"sum({_held_by_partial()})", COLLECTOR_ALIVE)),
                decimals=0,
                steps=((None, GREEN), (1, YELLOW), (8, RED)),
            ),
        ],
    )


def _quota() -> PanelRow:
    by_queue = "sum by (cluster_queue, resource) ({})"
    return PanelRow(
        "ClusterQueues: quota, borrowing, lending",
        [
            table(
                "Quota",
                "A row per queue, flavor and resource: its own quota, what is reserved of it and really "
                "used, what it borrows, what others may still borrow of it, and its limits (empty: none). "
                "Reserved without used for long: workloads have quota and do not start. MIG slices and "
                "shares are units of their own.",
                GPUS,
                [
                    query(_quota_of(name))
                    for name in (
                        *("nominal_quota", "reserved", "used", "borrowed", "lendable"),
                        *("borrowing_limit", "lending_limit"),
                    )
                ],
                [
                    PanelColumn("cluster_queue", "Queue"),
                    PanelColumn("flavor", "Flavor"),
                    PanelColumn("resource", "Resource"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn("A", "Nominal"),
                    PanelColumn("B", "Reserved"),
                    PanelColumn("C", "Used"),
                    PanelColumn("D", "Borrowed", steps=((None, GREY), (1, BLUE))),
                    PanelColumn("E", "Lendable now"),
                    PanelColumn("F", "Borrows at most"),
                    PanelColumn("G", "Lends at most"),
                ],
                sort_by="Nominal",
            ),
            timeseries(
                "Reserved part of the quota",
                "Reserved units against the nominal quota, by queue. At 100 % a queue is full; above, it "
                "borrows. Far below for weeks: the quota could be another's. A queue without quota of its "
                "own has no line.",
                RATIO,
                query(
                    ratio(
                        by_queue.format(_quota_of("reserved")), by_queue.format(_quota_of("nominal_quota"))
                    ),
                    "{{cluster_queue}} {{resource}}",
                ),
                steps=((None, GREEN), (1, BLUE)),
            ),
            timeseries(
                "Borrowed and lendable",
                "What queues borrow, and what they could still lend. Much lendable while others wait: "
                "limits, flavors or sizes keep it from being used. A queue without a cohort lends to nobody "
                "and has no line.",
                GPUS,
                query(by_queue.format(_quota_of("borrowed")), "{{cluster_queue}} borrows {{resource}}"),
                query(by_queue.format(_quota_of("lendable")), "{{cluster_queue}} could lend {{resource}}"),
            ),
            _how_queues_stand(),
        ],
    )


def _how_queues_stand() -> Panel:
    active = one_per(
        latest("gpucost_cluster_queue_active", ["cluster_queue", "reason"], QUEUE), "cluster_queue"
    )
    info = latest("gpucost_cluster_queue_info", ["cluster_queue", "cohort", "strategy"], QUEUE)
    pending = latest("gpucost_cluster_queue_pending_workloads", ["cluster_queue", "reason"], QUEUE)
    oldest = latest("gpucost_cluster_queue_oldest_pending_timestamp_seconds", ["cluster_queue"], QUEUE)
    of_queue = f"* on (cluster, cluster_queue) group_right () {info}"
    return table(
        "How queues stand",
        "Whether each queue admits work (if not, why: mostly a flavor or check that is missing, or it was "
        "stopped), its cohort and strategy, and how many workloads have quota, run, and wait. With "
        "StrictFIFO one large workload at the head holds all behind it.",
        COUNT,
        [
            query(f"{info} * on (cluster, cluster_queue) group_left (reason) {active}"),
            query(
                f"{latest('gpucost_cluster_queue_reserving_workloads', ['cluster_queue'], QUEUE)} {of_queue}"
            ),
            query(
                f"{latest('gpucost_cluster_queue_admitted_workloads', ['cluster_queue'], QUEUE)} {of_queue}"
            ),
            query(f"sum by (cluster, cluster_queue) ({pending}) {of_queue}"),
            query(f"(time() - {oldest}) {of_queue}"),
        ],
        [
            PanelColumn("cluster_queue", "Queue"),
            PanelColumn("cohort", "Cohort"),
            PanelColumn("strategy", "Strategy"),
            PanelColumn("cluster", "Cluster"),
            PanelColumn("A", "Admits", unit=STATE),
            PanelColumn("reason", "Why not"),
            PanelColumn("B", "With quota"),
            PanelColumn("C", "Admitted"),
            PanelColumn("D", "Pending"),
            PanelColumn("E", "Longest wait", unit=SECONDS, steps=WAIT_STEPS),
        ],
        sort_by="Pending",
    )


def _cohorts() -> PanelRow:
    names = ("subtree_quota", "reserved", "used", "borrowed", "lendable")
    pending = latest("gpucost_cohort_pending_units", ("cohort", "resource", "reason"), RESOURCE)
    return PanelRow(
        "Cohorts",
        [
            table(
                "Cohorts",
                "What each cohort can hand out, with all queues and cohorts below it, what of it is "
                "reserved and used, what it borrows from its parent, and what any of its queues could still "
                "borrow. Lendable 0: everything is given out, and only preemption or an end helps.",
                GPUS,
                [query(latest(f"gpucost_cohort_{name}", COHORT, RESOURCE)) for name in names],
                [
                    PanelColumn("cohort", "Cohort"),
                    PanelColumn("flavor", "Flavor"),
                    PanelColumn("resource", "Resource"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn("A", "Quota of the tree"),
                    PanelColumn("B", "Reserved"),
                    PanelColumn("C", "Used"),
                    PanelColumn("D", "Borrowed"),
                    PanelColumn("E", "Lendable now"),
                ],
                sort_by="Quota of the tree",
                width=16,
            ),
            timeseries(
                "GPUs that cohorts' work waits for",
                "GPU units that workloads below each cohort wait for, in Kueue's words for the reason: "
                "Pending is tried again, Inadmissible only when something in the cohort changes. A cohort's "
                "number has those below it, so cohorts of one tree do not add up.",
                GPUS,
                query(f"sum by (cohort, reason) ({pending})", "{{cohort}} {{reason}}"),
                width=8,
                height=9,
            ),
        ],
    )


def _waits() -> PanelRow:
    pending = latest("gpucost_cluster_queue_pending_workloads", ["cluster_queue", "reason"], QUEUE)
    oldest = latest("gpucost_cluster_queue_oldest_pending_timestamp_seconds", ["cluster_queue"], QUEUE)
    return PanelRow(
        "What waits, and why",
        [
            timeseries(
                "Waiting GPUs, by the layer that holds them",
                "GPU units that waiting work asks for, by the first layer that holds it. `quota`: its queue "
                "gives it none. `placement`: it may run, but no nodes have room in the right shape. "
                "`device`: nodes do not give the GPUs they have. Each calls for somebody else: who owns the "
                "quota, who runs the cluster, who looks after the machines.",
                GPUS,
                query(f"sum by (layer) ({WORK.units(['cluster', 'layer'])})", "{{layer}}"),
                stacked=True,
                colours={"quota": BLUE, "placement": YELLOW, "device": RED},
            ),
            timeseries(
                "Pending workloads, by Kueue's reason",
                "Workloads that wait for quota, in Kueue's own words: Pending is tried in its turn, "
                "Inadmissible waits for something in its cohort to change; others stand in "
                "docs/queue-collector.md.",
                COUNT,
                query(f"sum by (reason) ({pending})", "{{reason}}"),
                stacked=True,
            ),
            timeseries(
                "Longest wait by queue",
                "How long the workload that waits longest in each queue has waited. A line that rises "
                "evenly for hours is one workload that nothing helps; saw teeth are a queue that moves. No "
                "line: nothing waits.",
                SECONDS,
                query(f"time() - {oldest}", "{{cluster_queue}}"),
            ),
            bar_gauge(
                "Waiting GPUs by reason",
                "GPU units that wait now, by layer and the granular reason. `ExceedsMaxQuota` and "
                "`NoMatchingFlavor` never start by themselves: the request has to change.",
                GPUS,
                query(
                    f"sort_desc(sum by (layer, reason) ({WORK.units(['cluster', 'layer', 'reason'])}))",
                    "{{layer}}: {{reason}}",
                ),
                width=12,
            ),
            _longest_waits(),
        ],
    )


def _longest_waits() -> Panel:
    by = ("cluster", *WAITING_LABELS)
    return table(
        "What waits now",
        "A row per job that waits: the layer that holds it, the reason, its place in the queue (empty: it "
        "is held back and not tried), for how long (since it was queued or last evicted; empty for jobs "
        "without Kueue) and how many GPUs it asks for. A click on the job opens its board.",
        SECONDS,
        [query(WORK.count(by)), query(WORK.seconds(by)), query(WORK.units(by)), query(WORK.place(by))],
        [
            PanelColumn("job_name", "Job", link=panels.job_link(name_cell="Job", namespace_cell="Namespace")),
            PanelColumn("namespace", "Namespace"),
            PanelColumn("job_kind", "Kind"),
            PanelColumn("queue", "LocalQueue"),
            PanelColumn("layer", "Held by"),
            PanelColumn("reason", "Reason"),
            PanelColumn("cluster", "Cluster"),
            PanelColumn("D", "Place", unit=COUNT),
            PanelColumn("B", "Waits for", unit=SECONDS, steps=WAIT_STEPS),
            PanelColumn("C", "GPUs asked", unit=GPUS),
        ],
        sort_by="Waits for",
        height=10,
    )


def _admission() -> PanelRow:
    waits = "sum by (cluster_queue) (max by (cluster, cluster_queue) (rate({}[$__rate_interval])))"
    seconds = waits.format(of("gpucost_cluster_queue_admission_wait_seconds_total", QUEUE))
    number = waits.format(of("gpucost_cluster_queue_admission_waits_total", QUEUE))
    stopped = grown("gpucost_workload_evictions_total", EVICTED, "$__range")
    return PanelRow(
        "Admission and preemption",
        [
            timeseries(
                "Mean wait until admission",
                "How long workloads that were admitted had waited, on average, by queue, from Kueue's own "
                "histogram. What still waits is not in it, so it looks best when nothing moves; read it "
                "beside the longest wait. No line: nothing was admitted, or Kueue's metrics are not read.",
                SECONDS,
                query(ratio(seconds, number), "{{cluster_queue}}"),
                width=8,
                min_step="15m",
            ),
            timeseries(
                "Admitted per hour",
                "Workloads admitted, as a rate per hour, by queue. 0 with work pending: the queue stands "
                "still. It does not say how large they were.",
                COUNT,
                query(f"3600 * {number}", "{{cluster_queue}}"),
                width=8,
                min_step="15m",
            ),
            bar_gauge(
                "Told to stop in the range, by reason",
                "Evictions in the range shown, of all queues, by reason. `Preempted` is another workload's "
                "gain; `PodsReadyTimeout` are pods that did not come up. What they had computed since their "
                "last checkpoint is lost; the table has their names. No bars: nothing was stopped.",
                COUNT,
                query(f"sort_desc(sum by (reason) ({stopped}) > 0)", "{{reason}}"),
            ),
            _evicted(),
        ],
    )


def _evicted() -> Panel:
    info = of("gpucost_workload_info")
    labels = ("workload_uid", "job_kind", "job_name", "cluster_queue", "owner_team")
    named = one_per(
        f"max by (cluster, {', '.join(labels)}) (last_over_time({info}[$__range]))", "workload_uid"
    )
    times = grown("gpucost_workload_evictions_total", EVICTED, "$__range")
    return table(
        "Told to stop in the range shown",
        "Workloads that Kueue told to stop in the range, how often and why. Often the same one: give it a "
        "higher priority, a queue that does not borrow, or more frequent checkpoints. Who took its place "
        "stands in the finding of pattern `preemption_waste`. No rows: nothing was stopped.",
        COUNT,
        [query(f"({times}) * on (cluster, workload_uid) group_left ({', '.join(labels[1:])}) {named} > 0")],
        [
            PanelColumn("job_name", "Job", link=panels.job_link(name_cell="Job", namespace_cell="Namespace")),
            PanelColumn("namespace", "Namespace"),
            PanelColumn("job_kind", "Kind"),
            PanelColumn("owner_team", "Team", link=panels.team_link(cell="Team")),
            PanelColumn("cluster_queue", "Queue"),
            PanelColumn("reason", "Reason"),
            PanelColumn("cluster", "Cluster"),
            PanelColumn("A", "Times"),
        ],
        sort_by="Times",
    )


def _local() -> PanelRow:
    amount = (*LOCAL, "flavor", "resource")
    pending = latest("gpucost_local_queue_pending_units", (*LOCAL, "resource", "reason"), RESOURCE)
    oldest = latest("gpucost_local_queue_oldest_pending_timestamp_seconds", LOCAL)
    info = one_per(latest("gpucost_local_queue_info", (*LOCAL, "cluster_queue"), QUEUE), *LOCAL)
    by = "cluster, namespace, queue"
    led = f"* on ({by}) group_left (cluster_queue) {info}"
    active = latest("gpucost_local_queue_active", (*LOCAL, "reason"))
    return PanelRow(
        "LocalQueues",
        [
            table(
                "LocalQueues",
                "The queues that people submit to, and the ClusterQueue each leads to: whether it takes "
                "work, GPU units reserved and used in it, those that wait, and the longest wait. A "
                "LocalQueue that takes no work holds everything that was sent to it.",
                GPUS,
                [
                    query(f"min by ({by}) ({active}) {led}"),
                    *(
                        query(f"sum by ({by}) ({latest(metric, amount, RESOURCE)}) {led}")
                        for metric in ("gpucost_local_queue_reserved", "gpucost_local_queue_used")
                    ),
                    query(f"sum by ({by}) ({pending}) {led}"),
                    query(f"(time() - {oldest}) {led}"),
                ],
                [
                    PanelColumn("namespace", "Namespace"),
                    PanelColumn("queue", "LocalQueue"),
                    PanelColumn("cluster_queue", "ClusterQueue"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn("A", "Takes work", unit=STATE),
                    PanelColumn("B", "Reserved"),
                    PanelColumn("C", "Used"),
                    PanelColumn("D", "Waiting"),
                    PanelColumn("E", "Longest wait", unit=SECONDS, steps=WAIT_STEPS),
                ],
                sort_by="Waiting",
            )
        ],
    )


def _gangs() -> PanelRow:
    infos = f"last_over_time({of('gpucost_gang_info')}[$__range])"
    info = one_per(f"max by (cluster, gang_uid, job_kind, job_name) ({infos})", "gang_uid")
    named = f"* on (cluster, gang_uid) group_left (job_kind, job_name) {info}"
    held = f"sum by (cluster, {', '.join(GANG)}) ({last_of_gangs('gpucost_gang_held_units', 'resource')})"
    return PanelRow(
        "Gangs",
        [
            timeseries(
                "GPUs held by partial gangs",
                "GPU units held by pods of gangs that lack members, so that nobody computes. A spike while "
                "a gang starts is normal; a plateau is a gang that will not get on by itself.",
                GPUS,
                query(f"sum by (namespace, gang) ({_held_by_partial()})", "{{namespace}}/{{gang}}"),
                width=8,
                height=9,
                stacked=True,
            ),
            table(
                "Gangs that were partial in the range",
                "Gangs that held GPUs while they lacked members: for how long at most, and what they last "
                "had. Let go of one that has waited long, or give its members a place: queues that admit a "
                "gang as a whole do not get here. No rows are good.",
                COUNT,
                [
                    query(f"({longest_partial()}) {named}"),
                    query(f"({held}) {named}"),
                    *(
                        query(f"({last_of_gangs(f'gpucost_gang_{name}_members')}) {named}")
                        for name in ("running", "pending", "min")
                    ),
                ],
                [
                    PanelColumn(
                        "job_name", "Job", link=panels.job_link(name_cell="Job", namespace_cell="Namespace")
                    ),
                    PanelColumn("namespace", "Namespace"),
                    PanelColumn("gang", "Gang"),
                    PanelColumn("gang_kind", "Kind"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn(
                        "A", "Partial for", unit=SECONDS, steps=((None, GREY), (300, YELLOW), (1800, RED))
                    ),
                    PanelColumn("B", "Holds", unit=GPUS),
                    PanelColumn("C", "With a node"),
                    PanelColumn("D", "Without"),
                    PanelColumn("E", "Needs"),
                ],
                sort_by="Partial for",
                width=16,
            ),
        ],
    )


def _volcano() -> PanelRow:
    names = ("deserved", "guarantee", "capability", "allocated", "pending_units")
    allocated = latest("gpucost_volcano_queue_allocated", VOLCANO, RESOURCE)
    groups = latest("gpucost_volcano_queue_pod_groups", ("volcano_queue", "phase"))
    return PanelRow(
        "Volcano",
        [
            table(
                "Volcano queues",
                "What each queue deserves, what is kept for it (guarantee), the most it may have "
                "(capability; empty: unlimited), what its pods use and what its waiting PodGroups need at "
                "least. Allocated above deserved can be reclaimed, where the scheduler is set to. A parent "
                "has its children's.",
                GPUS,
                [query(latest(f"gpucost_volcano_queue_{name}", VOLCANO, RESOURCE)) for name in names],
                [
                    PanelColumn("volcano_queue", "Queue"),
                    PanelColumn("resource", "Resource"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn("A", "Deserved"),
                    PanelColumn("B", "Guarantee"),
                    PanelColumn("C", "Capability"),
                    PanelColumn("D", "Allocated"),
                    PanelColumn("E", "Waiting"),
                ],
                sort_by="Allocated",
            ),
            timeseries(
                "Allocated in Volcano's queues",
                "GPU units that pods of each queue use, as the scheduler last wrote it: it may lag behind. "
                "Compare it with what the queue deserves in the table.",
                GPUS,
                query(f"sum by (volcano_queue, resource) ({allocated})", "{{volcano_queue}} {{resource}}"),
            ),
            timeseries(
                "PodGroups by phase",
                "PodGroups of Volcano's queues by phase. Pending: not let in yet; Inqueue: let in and "
                "without place; Running: enough of them run. Many Inqueue: quota is there, room is not.",
                COUNT,
                query(f"sum by (phase) ({groups})", "{{phase}}"),
                stacked=True,
            ),
        ],
    )


def _quota_of(name: str) -> str:
    return latest(f"gpucost_cluster_queue_{name}", QUOTA, QUEUE, RESOURCE)


def _held_by_partial() -> str:
    since = of("gpucost_gang_partial_since_timestamp_seconds")
    held = latest("gpucost_gang_held_units", (*GANG, "resource"), RESOURCE)
    return f"{held} and on (cluster, gang_uid) {since}"
