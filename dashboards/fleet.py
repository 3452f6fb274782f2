"""*Fleet*: what the GPUs of all clusters do, what they cost, and where savings are largest."""

from __future__ import annotations

from grafanalib.core import Dashboard

from dashboards import panels
from dashboards.panels import (
    BLUE,
    COUNT,
    GPUS,
    GREEN,
    GREY,
    RATIO,
    RED,
    USD,
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
    CAPACITY_WORDS,
    CLUSTER,
    GPU_CLUSTER,
    WASTE_WORDS,
    in_words,
    rate_sum,
    ratio,
    service_gauge,
    share,
    waste,
    waste_per_second,
)
from gpucost.domain.buckets import UNALLOCATED

POD = f'{CLUSTER}, holder="pod"'
TEAMS = 'owner_team!~"__un.*"'
BUCKET_COLOURS = {"held": GREEN, "unallocated": YELLOW, "unavailable": RED, "not observed": GREY}
WASTE_COLOURS = {
    "in use": GREEN,
    "no_demand": BLUE,
    "unknown": GREY,
    "unusable": RED,
    "gang_stall": "dark-orange",
    "preempted": "purple",
    "idle": "orange",
    "oversized": YELLOW,
    "starved": "dark-red",
    "stranded": "light-orange",
    "fragmented": "light-red",
}
SUBJECT = (
    *("pattern", "variant", "severity", "owner_team", "namespace", "subject_kind", "subject_name", "finding"),
)
FINDINGS = ("pattern", "severity", "finding_state")
CAPACITY = service_gauge("gpucost_capacity_gpus", ("bucket",))
_HELD = service_gauge("gpucost_capacity_gpus", ("bucket",), 'bucket="held"')


def dashboard() -> Dashboard:
    return board(
        panels.FLEET,
        "Fleet",
        "How many GPUs there are, how many are held, how much of that is used, what it costs per hour, "
        "where it goes, and which findings cost the most.",
        [_now(), _capacity(), _use(), _money(), _waste(), _teams()],
        [panels.datasource_variable(), panels.cluster_variable()],
    )


def _now() -> PanelRow:
    return PanelRow(
        "Now",
        [
            stat(
                "GPUs",
                "How many GPUs there are: boards in the last settled window, on average. A board counts "
                "once, whether it is cut into MIG slices or shared. It does not count boards that no node "
                "labels or advertises.",
                GPUS,
                query(f"sum({CAPACITY})"),
                width=3,
                decimals=0,
            ),
            stat(
                "Held",
                "What part of the GPUs pods hold. A high part says that GPUs are given out, not that they "
                "are used: read it beside the next two. Settled window, so up to two hours old.",
                RATIO,
                query(
                    ratio(
                        f"sum({_HELD})",
                        f"sum({CAPACITY})",
                    )
                ),
                width=3,
                decimals=0,
            ),
            stat(
                "Busy while held",
                "Part of the observed time of held GPUs in which at least one kernel ran. Low: GPUs are "
                "held and do nothing. It cannot show how much of a GPU a kernel uses: one tiny kernel makes "
                "it 100 %.",
                RATIO,
                query(
                    ratio(
                        rate_sum("gpucost_pod_gpu_busy_seconds_total", POD),
                        rate_sum("gpucost_pod_gpu_observed_seconds_total", POD),
                    )
                ),
                width=3,
                decimals=0,
                steps=((None, RED), (0.3, YELLOW), (0.6, GREEN)),
            ),
            stat(
                "SM active while held",
                "Part of the multiprocessors of held GPUs that had work, over the time in which that was "
                "measured. Far below Busy: kernels are small, batches too. GPUs without this signal are left "
                "out, not counted as 0.",
                RATIO,
                query(
                    ratio(
                        rate_sum("gpucost_pod_gpu_sm_active_seconds_total", POD),
                        rate_sum("gpucost_pod_gpu_sm_observed_seconds_total", POD),
                    )
                ),
                width=3,
                decimals=0,
                steps=((None, RED), (0.15, YELLOW), (0.4, GREEN)),
            ),
            stat(
                "Cost per hour",
                "What all GPUs cost per hour in the last settled window, held or not. GPUs without a price "
                "are not in it.",
                USD,
                query(f"sum({_by_team('gpucost_team_cost_per_hour_usd')})"),
                width=4,
                decimals=2,
            ),
            stat(
                "Cost this month",
                "What all GPUs cost in the current calendar month (UTC) so far. It falls to 0 on the first.",
                USD,
                query(f"sum({_by_team('gpucost_team_cost_usd')})"),
                width=4,
                decimals=0,
            ),
            stat(
                "Ledger coverage",
                "Part of the last 24 hours of settled windows in which the source watched; the worst "
                "cluster's. Below 1, time is missing and stands as unknown in all sums: look at gpucost "
                "itself.",
                RATIO,
                query(f"min(gpucost_ledger_observed_ratio{{{GPU_CLUSTER}}})"),
                width=4,
                decimals=1,
                steps=((None, RED), (0.9, YELLOW), (0.99, GREEN)),
                links=[panels.dashboard_link(panels.SELF, "gpucost itself")],
            ),
        ],
    )


def _capacity() -> PanelRow:
    return PanelRow(
        "Capacity",
        [
            timeseries(
                "Capacity by what became of it",
                "Every GPU is in exactly one band: held by a pod, unallocated (free), unavailable (not "
                "advertised, on a node that takes no work, or unhealthy), or not observed (nobody watched). "
                "The bands add up to all GPUs. Averages over settled windows: minutes do not show.",
                GPUS,
                query(in_words(f"sum by (bucket) ({CAPACITY})", CAPACITY_WORDS), "{{bucket}}"),
                stacked=True,
                colours=BUCKET_COLOURS,
                links=[panels.dashboard_link(panels.NODES, "Nodes and GPUs")],
            ),
            timeseries(
                "GPUs held by team",
                "Who holds the GPUs, in settled windows. A shared GPU counts by the part held. __no_team__ "
                "is work that no team rule places; __other_teams__ are all teams beyond api.metrics_teams.",
                GPUS,
                query(
                    _sum_by_team("gpucost_team_gpus", TEAMS),
                    "{{owner_team}}",
                ),
                stacked=True,
                links=[panels.team_link(label="owner_team")],
            ),
        ],
    )


def _use() -> PanelRow:
    held = rate_sum("gpucost_pod_gpu_held_seconds_total", POD)
    observed = rate_sum("gpucost_pod_gpu_observed_seconds_total", POD)
    busy = rate_sum("gpucost_pod_gpu_busy_seconds_total", POD)
    return PanelRow(
        "Use of held GPUs",
        [
            timeseries(
                "Held GPUs: busy, idle, not observed",
                "What held GPUs do, from the exporters: busy (a kernel ran), idle (observed, and none ran) "
                "and not observed (held, but no signal). The height is the number of GPUs held. Idle for a "
                "moment is normal: findings tell what is idle for long.",
                GPUS,
                query(busy, "busy"),
                query(f"clamp_min({observed} - {busy}, 0)", "idle"),
                query(f"clamp_min({held} - {observed}, 0)", "not observed"),
                stacked=True,
                colours={"busy": GREEN, "idle": "orange", "not observed": GREY},
            ),
            timeseries(
                "Busy and SM active of held GPUs",
                "Two views of the same time: busy counts any kernel, SM active the multiprocessors at work, "
                "and tensor active the tensor cores. A wide gap means small kernels or waiting for data. "
                "Each is over the time in which it was measured.",
                RATIO,
                query(ratio(busy, observed), "busy"),
                query(
                    ratio(
                        rate_sum("gpucost_pod_gpu_sm_active_seconds_total", POD),
                        rate_sum("gpucost_pod_gpu_sm_observed_seconds_total", POD),
                    ),
                    "SM active",
                ),
                query(
                    ratio(
                        rate_sum("gpucost_pod_gpu_tensor_active_seconds_total", POD),
                        rate_sum("gpucost_pod_gpu_tensor_observed_seconds_total", POD),
                    ),
                    "tensor active",
                ),
                maximum=1,
            ),
        ],
    )


def _money() -> PanelRow:
    return PanelRow(
        "Cost",
        [
            timeseries(
                "Cost per hour by team",
                "What each team's GPUs cost per hour, in settled windows; __unallocated__, __unavailable__ "
                "and __unknown__ are nobody's and cost as well. The bands add up to what all GPUs cost. "
                "GPUs without a price are not in it.",
                USD,
                query(
                    _sum_by_team("gpucost_team_cost_per_hour_usd"),
                    "{{owner_team}}",
                ),
                width=16,
                stacked=True,
                links=[panels.team_link(label="owner_team")],
            ),
            bar_gauge(
                "Cost this month by team",
                "Cost of the current calendar month so far. __unallocated__ is what free GPUs cost. Compare "
                "teams here; for a budget see the table of teams. __other_teams__ are all beyond "
                "api.metrics_teams.",
                USD,
                query(
                    f"sort_desc({_sum_by_team('gpucost_team_cost_usd')})",
                    "{{owner_team}}",
                ),
                links=[panels.team_link(label="owner_team")],
            ),
            timeseries(
                "At the month's end",
                "What all teams together will have held when the month ends, and what free GPUs "
                "(__unallocated__) will have cost, at each moment: cost so far and the forecast of the days "
                "that are left, with the interval that 80 % of past forecasts kept. All clusters, whichever "
                "are chosen. No data: fewer than 14 days of history, or days that are not known.",
                USD,
                *(
                    query(
                        "max by (edge) (gpucost_team_month_end_usd"
                        f'{{owner_team="{team}", edge=~"expected|low|high"}})',
                        f"{words}: {{{{edge}}}}",
                    )
                    for team, words in (("__all_teams__", "all teams"), (UNALLOCATED, "free GPUs"))
                ),
                width=24,
            ),
        ],
    )


def _waste() -> PanelRow:
    wasted = 'bucket=~"unavailable|gang_stall|preempted|idle|oversized|starved|stranded|fragmented"'
    return PanelRow(
        "Waste",
        [
            timeseries(
                "Where the capacity goes",
                "Capacity by what became of it, once the detectors' word is final: in use (held, and seen at "
                "work; how busy says the row above), no_demand "
                "(free and nobody waited), unknown, and the buckets of waste. They add up to capacity. It "
                "stands where windows became final, hours after they ended, and not where they were.",
                GPUS,
                query(
                    in_words(f"sum by (bucket) ({waste_per_second('$__rate_interval')})", WASTE_WORDS),
                    "{{bucket}}",
                ),
                width=16,
                stacked=True,
                min_step="1h",
                colours=WASTE_COLOURS,
            ),
            bar_gauge(
                "Wasted in the range shown",
                "Part of the capacity that somebody could have had back, by bucket, over the windows that "
                "became final in the range shown. Start at the longest bar; docs/waste.md says what each "
                "bucket means.",
                RATIO,
                query(
                    in_words(
                        f"sort_desc(sum by (bucket) ({waste('$__range', wasted)}) "
                        f"/ on () group_left () (sum({waste('$__range')}) > 0))",
                        WASTE_WORDS,
                    ),
                    "{{bucket}}",
                ),
            ),
            table(
                "Dearest findings",
                "The open findings that waste the most per hour now, the dearest on top; mute one or read "
                "its evidence with `gpucost findings`. A GPU can be in two findings, so the column does not "
                "add up. A finding without a price is not here.",
                USD,
                [query(f"topk(20, {service_gauge('gpucost_finding_wasted_per_hour_usd', SUBJECT)})")],
                [
                    PanelColumn("pattern", "Pattern"),
                    PanelColumn("variant", "Variant"),
                    PanelColumn("severity", "Severity", width=90),
                    PanelColumn("owner_team", "Team", link=panels.team_link(cell="Team")),
                    PanelColumn("namespace", "Namespace"),
                    PanelColumn("subject_kind", "Kind"),
                    PanelColumn("subject_name", "Subject"),
                    PanelColumn("finding", "Finding", width=80),
                    PanelColumn(
                        "A", "Wasted per hour", unit=USD, steps=((None, GREY), (10, YELLOW), (50, RED))
                    ),
                ],
                sort_by="Wasted per hour",
                width=16,
            ),
            bar_gauge(
                "Findings by pattern",
                "How many findings are not resolved, by pattern: open, acknowledged or muted, and those "
                "that are exempt. Many of one pattern are best mended at their common cause.",
                COUNT,
                query(
                    f"sort_desc(sum by (pattern) ({service_gauge('gpucost_findings', FINDINGS)}))",
                    "{{pattern}}",
                ),
                height=9,
            ),
        ],
    )


def _teams() -> PanelRow:
    return PanelRow(
        "Teams",
        [
            table(
                "Teams",
                "A row per team: cost, and at the month's end (all clusters), budget where one is set, GPUs "
                "held, and of the last 24 hours what part of its held time was busy and what part was "
                "observed at all. Read use only where coverage is high. A click on the team opens its board.",
                USD,
                [
                    query(_sum_by_team("gpucost_team_cost_usd", TEAMS)),
                    query('max by (owner_team) (gpucost_team_budget_usd{owner_team!~"__.*"})'),
                    query(_sum_by_team("gpucost_team_cost_per_hour_usd", TEAMS)),
                    query(_sum_by_team("gpucost_team_gpus", TEAMS)),
                    query(share("busy", "observed", "owner_team")),
                    query(share("sm_active", "sm_observed", "owner_team")),
                    query(share("observed", "held", "owner_team")),
                    query(
                        "max by (owner_team) "
                        '(gpucost_team_month_end_usd{edge="expected", owner_team!~"__.*"})'
                    ),
                ],
                [
                    PanelColumn("owner_team", "Team", link=panels.team_link(cell="Team")),
                    PanelColumn("A", "Cost this month", unit=USD),
                    PanelColumn("H", "At month's end", unit=USD),
                    PanelColumn("B", "Budget", unit=USD),
                    PanelColumn("C", "Cost per hour", unit=USD),
                    PanelColumn("D", "GPUs held", unit=GPUS),
                    PanelColumn("E", "Busy", unit=RATIO, steps=((None, RED), (0.3, YELLOW), (0.6, GREEN))),
                    PanelColumn(
                        "F", "SM active", unit=RATIO, steps=((None, RED), (0.15, YELLOW), (0.4, GREEN))
                    ),
                    PanelColumn(
                        "G", "Coverage", unit=RATIO, steps=((None, RED), (0.9, YELLOW), (0.99, GREEN))
                    ),
                ],
                sort_by="Cost this month",
            ),
        ],
    )


def _by_team(metric: str, *matchers: str) -> str:
    return service_gauge(metric, ("owner_team",), *matchers)


def _sum_by_team(metric: str, *matchers: str) -> str:
    return f"sum by (owner_team) ({_by_team(metric, *matchers)})"
