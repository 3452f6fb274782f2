"""*Nodes and GPUs*: which node and GPU has what, what is free and for whom, and which of them is faulty."""

from __future__ import annotations

from grafanalib.core import Dashboard

from dashboards import panels
from dashboards.panels import (
    BLUE,
    BYTES,
    COUNT,
    GPUS,
    GREEN,
    GREY,
    RATIO,
    RED,
    STATE,
    WATTS,
    YELLOW,
    PanelColumn,
    PanelRow,
    bar_gauge,
    board,
    query,
    stat,
    table,
    timeline,
    timeseries,
)
from dashboards.series import (
    CLUSTER,
    GPU_CLUSTER,
    NODE,
    grown,
    latest,
    of,
    or_zero,
    rate_sum,
    ratio,
    service_gauge,
    waste_per_second,
)

HELD = f'{NODE}, holder="pod"'
CHOSEN = 'node=~"$node"'
WHOLE = 'resource="nvidia.com/gpu"'
_POD = ("namespace", "pod", "pod_uid", "node", "resource")
_NODE_UNITS = ("node", "resource")
FRAGMENTED = service_gauge(
    "gpucost_findings", ("pattern", "severity", "finding_state"), 'pattern="fragmentation"'
)
XIDS = grown("gpucost_gpu_xid_events_total", ("node", "gpu_uuid", "xid"), "$__range", CHOSEN)
BOARD = "cluster, node, gpu_uuid"
_INFO = f'gpucost_gpu_info{{{NODE}, gpu_instance=""}}'
NAMED = f"* on ({BOARD}) group_left (device_minor) max by ({BOARD}, device_minor) ({_INFO})"
"""Adds to series of a GPU its number on the node, by which people know it."""
_GONE = f"unless on (cluster, node) {of('gpucost_node_end_timestamp_seconds', CHOSEN)}"
"""A node that was deleted keeps its series for ten minutes."""
SCHEDULABLE = f"({latest('gpucost_node_schedulable', ('node',), CHOSEN)} {_GONE})"
WANTED = 'bucket=~"starved|stranded|fragmented"'
ZERO_BAD = ((None, GREEN), (1, RED))
OK = {1.0: ("ok", GREEN), 0.0: ("not ok", RED)}


def _units(metric: str, *matchers: str) -> str:
    return f"sum by (cluster, node, resource) ({latest(metric, _NODE_UNITS, CHOSEN, *matchers)} {_GONE})"


def _held(*matchers: str) -> str:
    """Units that pods hold now, 0 where none. A pod that has ended keeps its series for ten minutes."""
    pods = latest("gpucost_pod_gpu_request", _POD, CHOSEN, *matchers)
    ended = latest("gpucost_pod_gpu_end_timestamp_seconds", _POD, CHOSEN, *matchers)
    none = _units("gpucost_node_gpu_allocatable", *matchers)
    held = f"sum by (cluster, node, resource) ({pods} unless {ended})"
    return f"({held} - on (cluster, node, resource) ({_again(*matchers)} or 0 * {held}) or 0 * {none})"


def _again(*matchers: str) -> str:
    """How often devices are counted again, because every pod that shares one requests it."""
    by_pod = latest("gpucost_pod_gpu_claim_share", (*_POD, "device"), CHOSEN, *matchers)
    ended = latest("gpucost_pod_gpu_end_timestamp_seconds", _POD, CHOSEN, *matchers)
    devices = f"max by (cluster, node, resource, device) ({by_pod} unless on (cluster, pod_uid) {ended})"
    each = f"{by_pod} unless on (cluster, pod_uid) {ended}"
    return f"(count by (cluster, node, resource) ({each}) - count by (cluster, node, resource) ({devices}))"


UNITS = _units("gpucost_node_gpu_allocatable")
EXPECTED = _units("gpucost_node_gpu_expected")
MISSING_UNITS = f"clamp_min({EXPECTED} - ({UNITS} or 0 * {EXPECTED}), 0)"
FREE_UNITS = f"clamp_min({UNITS} - {_held()}, 0)"


def dashboard() -> Dashboard:
    return board(
        panels.NODES,
        "Nodes and GPUs",
        "Which GPUs are held, busy, free or ill, node by node; whether what is free can be used; MIG "
        "instances and memory.",
        [_now(), _allocation(), _fragmentation(), _health(), _use(), _mig()],
        [
            panels.datasource_variable(),
            panels.cluster_variable(),
            panels.from_labels("node", "Node", f"label_values(gpucost_node_info{{{CLUSTER}}}, node)"),
        ],
    )


def _now() -> PanelRow:
    return PanelRow(
        "Now",
        [
            stat(
                "Nodes with GPUs",
                "Nodes that the collector knows. Compare it with what you bought.",
                COUNT,
                query(f"count({SCHEDULABLE})"),
                decimals=0,
            ),
            stat(
                "Nodes that take no work",
                "Nodes that are cordoned or not Ready. Their free GPUs cost money and help nobody. It does "
                "not show why; `kubectl describe node` does.",
                COUNT,
                query(f"count({SCHEDULABLE}) - sum({SCHEDULABLE})"),
                decimals=0,
                steps=((None, GREEN), (1, YELLOW)),
            ),
            stat(
                "Units not advertised",
                "GPU units that nodes should have and Kubernetes does not know of: the device plugin hangs, "
                "or a board is lost. Nodes of which nothing says how many they should have are left out.",
                COUNT,
                query(f"sum({MISSING_UNITS})"),
                decimals=0,
                steps=ZERO_BAD,
            ),
            stat(
                "GPUs that do not answer",
                "Boards that the exporter knew and whose driver gives no values now: lost from the bus, or "
                "the driver is gone. Time that pods hold them goes on and costs.",
                COUNT,
                query(f"count(gpucost_gpu_up{{{NODE}}}) - sum(gpucost_gpu_up{{{NODE}}})"),
                decimals=0,
                steps=ZERO_BAD,
            ),
            stat(
                "Nodes without NVML",
                "Nodes whose exporter cannot talk to the driver: nothing of their GPUs is measured. A node "
                "whose exporter is gone altogether is not in it: see gpucost itself.",
                COUNT,
                query(f"count(gpucost_nvml_up{{{NODE}}}) - sum(gpucost_nvml_up{{{NODE}}})"),
                decimals=0,
                steps=ZERO_BAD,
            ),
            stat(
                "XID errors",
                "Errors that drivers reported in the range shown. One may be a program's fault; many on one "
                "board are the board's. The table below has codes.",
                COUNT,
                query(
                    or_zero(
                        f"sum({XIDS})",
                        f"gpucost_nvml_up{{{NODE}}}",
                    )
                ),
                decimals=0,
                steps=ZERO_BAD,
            ),
        ],
    )


def _allocation() -> PanelRow:
    held = rate_sum("gpucost_pod_gpu_held_seconds_total", HELD, BOARD)
    up = f"max by ({BOARD}) (gpucost_gpu_up{{{NODE}}})"
    busy = rate_sum("gpucost_gpu_busy_seconds_total", NODE, BOARD)
    return PanelRow(
        "Allocation",
        [
            timeline(
                "Allocation map of nodes",
                "A row per node and resource: the part of its units that pods hold, over time. Dark blue is "
                "all, grey is none. Rows that are partly held for long are fragmentation. Held says nothing "
                "of use: see the next map.",
                RATIO,
                query(f"{_held()} / ({UNITS} > 0)", "{{node}} {{resource}}"),
                steps=(
                    (None, GREY),
                    (0.01, "super-light-blue"),
                    (0.34, "light-blue"),
                    (0.67, BLUE),
                    (1, "dark-blue"),
                ),
                links=[panels.node_link(label="node")],
            ),
            timeline(
                "Map of GPUs",
                "A row per board: free, held, or partly held (cut into MIG slices or shared, and some of it "
                "free; or for part of the time), and whether it was busy (a kernel ran in more than 5 % of "
                "the time). Orange for hours is money for nothing. Boards that do not answer have no "
                "colour. Choose nodes above, or the map is long.",
                STATE,
                query(
                    f"(({held} or 0 * {up}) > bool 0.01) * (1 + (({busy} or 0 * {up}) > bool 0.05) "
                    f"+ 2 * (({held} or 0 * {up}) < bool 0.95)) {NAMED}",
                    "{{node}} GPU {{device_minor}}",
                ),
                values={
                    0: ("free", BLUE),
                    1: ("held, idle", "orange"),
                    2: ("held, busy", GREEN),
                    3: ("partly held, idle", YELLOW),
                    4: ("partly held, busy", "light-green"),
                },
                height=12,
                links=[panels.node_link(label="node")],
            ),
            table(
                "Nodes",
                "A row per node and resource: units it should have, advertises, and that pods hold; and "
                "whether it takes work. Units are boards, MIG slices or shares, as the resource says, so do "
                "not add up different resources.",
                COUNT,
                [
                    query(EXPECTED),
                    query(UNITS),
                    query(_held()),
                    query(FREE_UNITS),
                    query(f"{UNITS} * 0 + on (cluster, node) group_left () {SCHEDULABLE}"),
                ],
                [
                    PanelColumn("node", "Node", link=panels.node_link(cell="Node")),
                    PanelColumn("resource", "Resource"),
                    PanelColumn("A", "Expected", unit=COUNT),
                    PanelColumn("B", "Advertised", unit=COUNT),
                    PanelColumn("C", "Held", unit=COUNT),
                    PanelColumn("D", "Free", unit=COUNT),
                    PanelColumn("E", "Takes work", unit=STATE, steps=((None, RED), (1, GREEN))),
                ],
                sort_by="Free",
            ),
        ],
    )


def _fragmentation() -> PanelRow:
    return PanelRow(
        "Fragmentation",
        [
            bar_gauge(
                "Free units by node",
                "What is free where. Three nodes with two free each serve no pod that wants four. Nodes that "
                "take no work are in it.",
                COUNT,
                query(f"sort_desc({FREE_UNITS})", "{{node}} {{resource}}"),
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Free GPUs by kind of node",
                "Free whole GPUs on nodes that are all free, and on nodes that are partly held: those no job "
                "that wants whole nodes can use. The second high and somebody waiting: re-pack. Nodes that "
                "take no work are in it, shared GPUs and MIG slices are not.",
                GPUS,
                query(_free("== 0"), "on free nodes"),
                query(_free("> 0"), "on partly held nodes"),
                width=16,
                stacked=True,
                colours={"on free nodes": GREEN, "on partly held nodes": "orange"},
            ),
            stat(
                "Fragmentation findings",
                "How many findings say that free GPUs lie in the wrong places. They take into account who "
                "waits, labels, taints, CPU and memory, which the panels here do not. 0 while detectors "
                "look and find none.",
                COUNT,
                query(
                    or_zero(
                        f"sum({FRAGMENTED})",
                        f"gpucost_detectors_last_evaluation_timestamp_seconds{{{GPU_CLUSTER}}}",
                    )
                ),
                width=8,
                height=6,
                decimals=0,
                steps=((None, GREEN), (1, YELLOW)),
                links=[panels.dashboard_link(panels.FLEET, "Fleet: the findings")],
            ),
            timeseries(
                "Free GPUs while somebody waits",
                "GPUs that were free while somebody waited: starved would have fitted, fragmented did not "
                "fit, stranded are in an NVLink domain that "
                "others have a part of. It stands where windows became final, hours after they ended.",
                GPUS,
                query(
                    f"sum by (bucket) ({waste_per_second('$__rate_interval', WANTED)})",
                    "{{bucket}}",
                ),
                width=16,
                height=6,
                min_step="1h",
                stacked=True,
            ),
        ],
    )


def _free(held: str) -> str:
    """Free whole GPUs on nodes whose held ones are ``held`` ("== 0", "> 0")."""
    units, taken = _units("gpucost_node_gpu_allocatable", WHOLE), _held(WHOLE)
    boards = latest("gpucost_node_boards", ("node",), CHOSEN)
    # Shares of GPUs, and MIG slices of one size, have the same resource name as whole GPUs: there are more of
    # them.
    parts = f"{units} > on (cluster, node) group_left () {boards}"
    free = f"(clamp_min({units} - {taken}, 0) unless {parts})"
    return f"sum({free} * ({taken} {held.replace(' ', ' bool ')}))"


def _health() -> PanelRow:
    return PanelRow(
        "Health",
        [
            timeline(
                "Nodes whose GPUs are measured",
                "Green while the exporter of a node talks to the driver, red while it does not. A gap is a "
                "node whose exporter was not scraped at all.",
                STATE,
                query(f"min by (node) (gpucost_nvml_up{{{NODE}}})", "{{node}}"),
                values=OK,
                steps=((None, RED), (1, GREEN)),
                width=12,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Units not advertised by node",
                "Units that a node should have and does not advertise, on any node. A step up from 0 is a "
                "device plugin that stopped. Nodes of which nothing says how many they should have are left "
                "out.",
                COUNT,
                query(
                    f"sum by (node) ({MISSING_UNITS})",
                    "{{node}}",
                ),
                height=9,
                links=[panels.node_link(label="node")],
            ),
            table(
                "XID errors by board",
                "A row per board and code that it reported since its node booted; the number is how often "
                "in the range shown. Codes 48, 63, 64, 74, 79, 94 and 95 speak for the hardware; 13, 31 and "
                "43 mostly for the program.",
                COUNT,
                [query(f"sum by (node, gpu_uuid, xid) ({XIDS})")],
                [
                    PanelColumn("node", "Node", link=panels.node_link(cell="Node")),
                    PanelColumn("gpu_uuid", "GPU"),
                    PanelColumn("xid", "XID", width=80),
                    PanelColumn("A", "Errors", unit=COUNT, width=100),
                ],
                sort_by="Errors",
                width=12,
                height=8,
            ),
            timeseries(
                "GPUs throttled by reason",
                "How many boards' clocks are held down, by reason. Power caps are normal under load; "
                "thermal and hardware reasons are for the data centre. A board can be in several reasons, "
                "so they do not add up.",
                GPUS,
                query(rate_sum("gpucost_gpu_throttled_seconds_total", NODE, "reason"), "{{reason}}"),
            ),
        ],
    )


def _use() -> PanelRow:
    busy = rate_sum("gpucost_gpu_busy_seconds_total", NODE, BOARD)
    observed = rate_sum("gpucost_gpu_observed_seconds_total", NODE, BOARD)
    used = f"sum by ({BOARD}) (gpucost_gpu_memory_used_bytes{{{NODE}}})"
    total = f"sum by ({BOARD}) (gpucost_gpu_memory_total_bytes{{{NODE}}})"
    return PanelRow(
        "Use of each GPU",
        [
            timeseries(
                "Busy by GPU",
                "Part of the observed time of each board in which a kernel ran, whoever held it. Lines that "
                "lie apart on one node are an uneven job. Choose nodes above, or there are many lines.",
                RATIO,
                query(f"({ratio(busy, observed)}) {NAMED}", "{{node}} GPU {{device_minor}}"),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Memory used by GPU",
                "Memory in use of each board. Full memory with low busy: the model is loaded and does "
                "nothing. What a framework has reserved counts as used.",
                BYTES,
                query(f"({used}) {NAMED}", "{{node}} GPU {{device_minor}}"),
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Memory used by node",
                "Part of a node's GPU memory that is in use. Low for weeks: smaller GPUs, or slices of "
                "these, would do.",
                RATIO,
                query(
                    ratio(
                        f"sum by (node) ({used})",
                        f"sum by (node) ({total})",
                    ),
                    "{{node}}",
                ),
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Power by node",
                "Electric power of a node's GPUs, from their energy counters. High power is not high use, "
                "but idle boards are plain to see. The rest of the node is not in it.",
                WATTS,
                query(rate_sum("gpucost_gpu_energy_joules_total", NODE, "node"), "{{node}}"),
                links=[panels.node_link(label="node")],
            ),
        ],
    )


def _mig() -> PanelRow:
    instance = "node, gpu_uuid, gpu_instance"
    mig = f'{NODE}, gpu_instance!=""'
    return PanelRow(
        "MIG",
        [
            timeseries(
                "MIG instances by profile",
                "How many MIG instances of each profile there are. A change is a board that was cut anew. "
                "Empty where no board is cut.",
                COUNT,
                query(f"count by (mig_profile) (gpucost_gpu_info{{{mig}}})", "{{mig_profile}}"),
                width=8,
            ),
            timeseries(
                "SM active by MIG instance",
                "Part of an instance's multiprocessors that had work. Instances that stay low could be "
                "smaller. Busy is not shown: drivers do not measure it per instance.",
                RATIO,
                query(
                    ratio(
                        rate_sum("gpucost_gpu_sm_active_seconds_total", mig, instance),
                        rate_sum("gpucost_gpu_sm_observed_seconds_total", mig, instance),
                    ),
                    "{{node}} {{gpu_uuid}} {{gpu_instance}}",
                ),
                width=8,
                maximum=1,
                links=[panels.node_link(label="node")],
            ),
            timeseries(
                "Parts of cut boards that no instance uses",
                "GPUs' worth of multiprocessors that are in no MIG instance: bought, and usable by nobody "
                "until the board is cut otherwise.",
                GPUS,
                query(
                    rate_sum(
                        "gpucost_pod_gpu_held_seconds_total", f'{NODE}, holder="__unpartitioned__"', "node"
                    ),
                    "{{node}}",
                ),
                width=8,
                links=[panels.node_link(label="node")],
            ),
        ],
    )
