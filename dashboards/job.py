"""*Job*: what one job's GPUs do, one by one, what it has cost so far, and what holds it up."""

from __future__ import annotations

from grafanalib.core import Dashboard, Panel, Template

from dashboards import panels
from dashboards.panels import (
    BYTES,
    COUNT,
    ENERGY,
    GPUS,
    GREEN,
    GREY,
    RATIO,
    RED,
    SECONDS,
    STATE,
    USD,
    WATTS,
    YELLOW,
    PanelColumn,
    PanelRow,
    board,
    query,
    stat,
    table,
    timeline,
    timeseries,
)
from dashboards.series import (
    COLLECTOR_ALIVE,
    GANG,
    JOB,
    by_gpu,
    grown,
    held_units,
    last_of_gangs,
    latest,
    longest_partial,
    of,
    of_job_pods,
    on_job_gpus,
    or_zero,
    ratio,
    ratio_by_gpu,
    service_gauge,
    waiting,
)
from gpucost.contract.queue_metrics import WaitLayer

COSTS = ("namespace", "job_kind", "job_uid", "owner_team")
UNITS = ("namespace", "job_uid", "owner_team", "unit")
LEGEND = "{{node}} {{gpu_uuid}} {{gpu_instance}}"
BOARD_LEGEND = "{{node}} {{gpu_uuid}}"
BUSY_STEPS = ((None, RED), (0.3, YELLOW), (0.6, GREEN))
SM_STEPS = ((None, RED), (0.15, YELLOW), (0.4, GREEN))
WAIT_STEPS = ((None, GREEN), (3600, YELLOW), (6 * 3600, RED))
INFOS = ("gpucost_pod_owner_info", "gpucost_workload_info", "gpucost_job_waiting_info")
KNOWN = " or ".join(f"({of(metric, *JOB)})" for metric in INFOS)
"""Has series while the cluster has the job: pods that hold GPUs, a workload, or a waiting job."""
WORK = waiting(*JOB)
IS_PARTIAL = (
    f"{latest('gpucost_gang_partial_since_timestamp_seconds', GANG)} "
    f"and on (cluster, gang_uid) {of('gpucost_gang_info', *JOB)}"
)
OF_JOB_IN_RANGE = f"and on (cluster, gang_uid) last_over_time({of('gpucost_gang_info', *JOB)}[$__range])"


def dashboard() -> Dashboard:
    return board(
        panels.JOB,
        "Job",
        "What the GPUs of one job do, one by one, what it has cost so far, and what keeps it from getting "
        "on. Jobs of the same name in a namespace are shown together: choose a time range in which there "
        "was one. A job without pods in the range is not in the list, but links lead to it.",
        [_now(), _stalls(), _units(), _use(), _hardware()],
        [panels.datasource_variable(), panels.cluster_variable(), _namespace(), _job()],
    )


def _namespace() -> Template:
    infos = of("gpucost_pod_owner_info")
    return panels.from_labels("namespace", "Namespace", f"label_values({infos}, namespace)", multi=False)


def _job() -> Template:
    infos = of("gpucost_pod_owner_info", JOB[0], 'job_name!=""')
    return panels.from_labels("job", "Job", f"label_values({infos}, job_name)", multi=False)


def _now() -> PanelRow:
    energy = of("gpucost_pod_gpu_energy_joules_total", 'holder="pod"', 'namespace=~"$namespace"')
    in_range = of_job_pods(f"increase({energy}[$__range])", span="$__range")
    return PanelRow(
        "Now",
        [
            stat(
                "Cost this month",
                "What the job has cost in the current calendar month (UTC) so far, in settled windows; of a "
                "job that began earlier, only this month's part. No data: the job is not among the "
                "costliest (`api.metrics_jobs`), or nothing of it is settled yet; `gpucost job UID` tells "
                "the whole.",
                USD,
                # Of two teams, each has its part.
                query(f"sum({service_gauge('gpucost_job_cost_usd', COSTS, *JOB)})"),
                width=3,
                decimals=2,
            ),
            stat(
                "GPUs held",
                "GPU units that the job's pods hold now: whole GPUs, MIG slices or shares, as it asked for "
                "them. 0: it has none, though it is known; no data: nothing is known of it now.",
                GPUS,
                query(or_zero(f"sum({held_units('cluster')})", KNOWN)),
                width=3,
                decimals=0,
            ),
            stat(
                "Busy",
                "Part of the observed time of the job's GPUs in which at least one kernel ran. Low: look "
                "below whether all GPUs are idle, or one waits for the others.",
                RATIO,
                query(ratio(f"sum({by_gpu('busy_seconds')})", f"sum({by_gpu('observed_seconds')})")),
                width=3,
                decimals=0,
                steps=BUSY_STEPS,
            ),
            stat(
                "SM active",
                "Part of the multiprocessors of the job's GPUs that had work, over the time in which that "
                "was measured. Far below Busy: kernels or batches are too small, or it waits for data.",
                RATIO,
                query(ratio(f"sum({by_gpu('sm_active_seconds')})", f"sum({by_gpu('sm_observed_seconds')})")),
                width=3,
                decimals=0,
                steps=SM_STEPS,
            ),
            stat(
                "Energy in the range",
                "Energy that the job's GPUs used for it in the range shown, measured on the boards. What "
                "hosts, network and cooling used is not in it; on shared GPUs it is divided by activity.",
                ENERGY,
                query(f"sum({in_range}) / 3600"),
                width=3,
            ),
            stat(
                "GPUs waiting",
                "GPU units that pods of the job ask for and do not have. 0 is none; no data: no collector "
                "tells.",
                GPUS,
                query(or_zero(f"sum({WORK.units(['cluster'])})", COLLECTOR_ALIVE)),
                width=3,
                decimals=0,
                links=[panels.dashboard_link(panels.QUEUES, "Queues")],
            ),
            stat(
                "Waits for",
                "How long the job's Kueue workload has waited since it was queued or last evicted. 0: it "
                "does not wait, or Kueue does not manage it, and then nothing says since when it waits.",
                SECONDS,
                query(or_zero(f"max({WORK.seconds(['cluster'])})", COLLECTOR_ALIVE)),
                width=3,
                steps=WAIT_STEPS,
                links=[panels.dashboard_link(panels.QUEUES, "Queues")],
            ),
            stat(
                "Partial for",
                "For how long some of the job's gang has held GPUs while it lacks members, so that none of "
                "them gets on. 0: it is whole, or holds nothing. After some minutes find out what the "
                "missing pods wait for, or let the job go.",
                SECONDS,
                query(or_zero(f"max(time() - ({IS_PARTIAL}))", COLLECTOR_ALIVE)),
                width=3,
                steps=((None, GREEN), (300, YELLOW), (1800, RED)),
            ),
        ],
    )


def _stalls() -> PanelRow:
    waits = [query(_is(WORK.count(["cluster"], layer)), f"waits: {layer}") for layer in WaitLayer]
    return PanelRow(
        "Holding and waiting",
        [
            timeseries(
                "GPUs held and waited for",
                "GPU units that the job's pods hold, and those that its waiting pods ask for. A line that "
                "waits above one that holds is a job that has started in part. Pods that lived between two "
                "scrapes do not show.",
                GPUS,
                query(held_units("resource"), "held {{resource}}"),
                query(f"sum({WORK.units(['cluster'])})", "waited for"),
                colours={"waited for": YELLOW},
            ),
            timeline(
                "What keeps the job",
                "When the job's gang was partial, and when it waited, by the first layer that held it: "
                "quota (its queue gives none), placement (no nodes with room) or device (nodes do not give "
                "their GPUs). Grey is no, empty that nothing was known of the job.",
                STATE,
                query(_is(IS_PARTIAL), "gang partial"),
                *waits,
                width=12,
                height=8,
                values={1: ("yes", RED), 0: ("no", GREY)},
            ),
            table(
                "Gangs that were partial in the range",
                "Gangs of the job that held GPUs while they lacked members: for how long at most, and how "
                "many members they last had, waited for and needed. No rows are good. The cost stands under "
                "`gang_stall` in the waste of the team.",
                SECONDS,
                [
                    query(f"({longest_partial()}) {OF_JOB_IN_RANGE}"),
                    query(f"{last_of_gangs('gpucost_gang_running_members')} {OF_JOB_IN_RANGE}"),
                    query(f"{last_of_gangs('gpucost_gang_pending_members')} {OF_JOB_IN_RANGE}"),
                    query(f"{last_of_gangs('gpucost_gang_min_members')} {OF_JOB_IN_RANGE}"),
                ],
                [
                    PanelColumn("gang", "Gang"),
                    PanelColumn("gang_kind", "Kind"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn(
                        "A", "Partial for", unit=SECONDS, steps=((None, GREY), (300, YELLOW), (1800, RED))
                    ),
                    PanelColumn("B", "Members with a node", unit=COUNT),
                    PanelColumn("C", "Members without", unit=COUNT),
                    PanelColumn("D", "Members needed", unit=COUNT),
                ],
                sort_by="Partial for",
                height=5,
            ),
        ],
    )


def _units() -> PanelRow:
    each = service_gauge("gpucost_job_unit_cost_usd", UNITS, *JOB)
    return PanelRow(
        "Unit cost",
        [
            table(
                "Cost of a unit in the last day",
                "What a token, a request or a step cost in the last 24 hours of settled windows: the cost of "
                "the hours in which the job counted, over what its own pods say that they counted. Prompts "
                "and answers count together. No rows: it counts nothing that is known; `gpucost job UID` "
                "tells the coverage and the idle share.",
                USD,
                [query(each), query(f"1e6 * {each}")],
                [
                    PanelColumn("unit", "Unit"),
                    PanelColumn("owner_team", "Team"),
                    PanelColumn("job_uid", "Job"),
                    PanelColumn("gpu_cluster", "Cluster"),
                    PanelColumn("A", "Each", unit=USD),
                    PanelColumn("B", "Per million", unit=USD),
                ],
                sort_by="Per million",
                height=6,
            )
        ],
    )


def _use() -> PanelRow:
    used = latest("gpucost_gpu_memory_used_bytes", ("node", "gpu_uuid", "gpu_instance"))
    return PanelRow(
        "Use, GPU by GPU",
        [
            timeseries(
                "Busy by GPU",
                "Part of the time in which at least one kernel of the job ran, by GPU. One line below the "
                "others: that rank waits or has died. Lines that fall together every so often: checkpoints, "
                "evaluation or a data loader. Pods whose uid the exporter does not know are missing.",
                RATIO,
                query(ratio_by_gpu("busy_seconds", "observed_seconds"), LEGEND),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "SM active by GPU",
                "Part of the multiprocessors with work, by GPU, over the time in which that was measured. "
                "Training that keeps a GPU full is mostly above 50 %; small batches and small kernels are "
                "far below. GPUs without the signal have no line.",
                RATIO,
                query(ratio_by_gpu("sm_active_seconds", "sm_observed_seconds"), LEGEND),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Tensor cores active by GPU",
                "Part of the tensor pipes at work, by GPU. Near 0 in training: it does not use mixed "
                "precision, or its shapes do not fit tensor cores. Half of what is possible is much.",
                RATIO,
                query(ratio_by_gpu("tensor_active_seconds", "tensor_observed_seconds"), LEGEND),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Memory by GPU",
                "Memory in use on the job's GPUs, of everybody who shares them. What a framework has "
                "reserved counts as used, so full does not say needed; far below a smaller GPU's memory "
                "says that a smaller one would do.",
                BYTES,
                query(on_job_gpus(used, "node", "gpu_uuid", "gpu_instance"), LEGEND),
                links=[panels.node_link(label="node")],
            ),
            _gpus(),
        ],
    )


def _gpus() -> Panel:
    span = "$__range"
    return table(
        "GPUs of the job in the range",
        "The GPUs that the job had in the range shown: which part of the range it held them, and how it "
        "used them. A click on the node opens it in *Nodes and GPUs*. A GPU that stands out in every job is "
        "the GPU's matter; one that stands out in this is the job's.",
        RATIO,
        [
            query(by_gpu("held_seconds", span=span)),
            query(ratio_by_gpu("busy_seconds", "observed_seconds", span=span)),
            query(ratio_by_gpu("sm_active_seconds", "sm_observed_seconds", span=span)),
            query(by_gpu("energy_joules", span=span)),
        ],
        [
            PanelColumn("node", "Node", link=panels.node_link(cell="Node")),
            PanelColumn("gpu_uuid", "GPU"),
            PanelColumn("gpu_instance", "MIG instance"),
            PanelColumn("cluster", "Cluster"),
            PanelColumn("A", "Held, of the range", unit=RATIO),
            PanelColumn("B", "Busy", unit=RATIO, steps=BUSY_STEPS),
            PanelColumn("C", "SM active", unit=RATIO, steps=SM_STEPS),
            PanelColumn("D", "Mean power over the range", unit=WATTS),
        ],
        sort_by="Held, of the range",
    )


def _hardware() -> PanelRow:
    throttled = of("gpucost_gpu_throttled_seconds_total")
    rate = f"sum by (cluster, node, gpu_uuid, reason) (rate({throttled}[$__rate_interval]))"
    xids = grown("gpucost_gpu_xid_events_total", ("node", "gpu_uuid", "xid"), "$__range")
    of_boards = on_job_gpus(f"({xids})", "node", "gpu_uuid", span="$__range")
    boards = f"group by (cluster, node, gpu_uuid) ({by_gpu('held_seconds', span='$__range')})"
    return PanelRow(
        "Hardware",
        [
            timeseries(
                "Power by board",
                "Power that the job's GPUs draw for it, by board. Busy at low power is waiting or copying "
                "rather than computing; a board far below its sisters may be throttled or ill.",
                WATTS,
                query(by_gpu("energy_joules", whole=True), BOARD_LEGEND),
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Throttled by board",
                "Part of the time in which the clocks of the job's GPUs were held down, by board and "
                "reason. A power cap is mostly wanted; thermal and hardware reasons slow all ranks down to "
                "the slowest: tell who looks after the machines. It counts for the board, whoever used it.",
                RATIO,
                query(on_job_gpus(rate, "node", "gpu_uuid"), f"{BOARD_LEGEND} {{{{reason}}}}"),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            table(
                "XID errors of the job's GPUs in the range",
                "Errors that the driver reported on boards which the job held in the range shown, also "
                "where they happened before or after the job; 0 without a code is a board without errors. "
                "Codes 48, 63, 64, 79, 94 and 95 are mostly the board's fault, 13, 31 and 43 mostly the "
                "program's.",
                COUNT,
                [query(f"{of_boards} or on (cluster, node, gpu_uuid) 0 * {boards}")],
                [
                    PanelColumn("node", "Node", link=panels.node_link(cell="Node")),
                    PanelColumn("gpu_uuid", "GPU"),
                    PanelColumn("xid", "XID"),
                    PanelColumn("cluster", "Cluster"),
                    PanelColumn("A", "Errors", unit=COUNT, steps=((None, GREY), (1, RED))),
                ],
                sort_by="Errors",
            ),
        ],
    )


def _is(expr: str) -> str:
    """1 while ``expr`` has rows, 0 while it has none and the job is known."""
    return or_zero(f"group({expr})", KNOWN)
