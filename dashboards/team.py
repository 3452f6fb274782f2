"""*Team*: what one team's GPUs cost, how well they are used, what is wasted, and what it waits for."""

from __future__ import annotations

from grafanalib.core import Dashboard, Panel

from dashboards import panels
from dashboards.panels import (
    COUNT,
    GPUS,
    GREEN,
    GREY,
    RATIO,
    RED,
    SECONDS,
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
    COLLECTOR_ALIVE,
    GPU_CLUSTER,
    SERVICE_ALIVE,
    WAITING_LABELS,
    WASTE_WORDS,
    in_words,
    or_zero,
    ratio,
    service_gauge,
    waiting_of_team,
    waste_per_second,
)

TEAM = 'owner_team=~"$team"'
WASTED = 'bucket=~"unavailable|gang_stall|preempted|idle|oversized|starved|stranded|fragmented"'
BUSY_STEPS = ((None, RED), (0.3, YELLOW), (0.6, GREEN))
SM_STEPS = ((None, RED), (0.15, YELLOW), (0.4, GREEN))
COVERAGE_STEPS = ((None, RED), (0.9, YELLOW), (0.99, GREEN))
FINDING = ("pattern", "variant", "severity", "namespace", "subject_kind", "subject_name", "finding")
JOBS = ("namespace", "job_kind", "job_name", "job_uid")
NAMED = 'job_name!=""'

COST = f"sum({service_gauge('gpucost_team_cost_usd', ['owner_team'], TEAM)})"
PER_HOUR = f"sum({service_gauge('gpucost_team_cost_per_hour_usd', ['owner_team'], TEAM)})"
HELD = f"sum({service_gauge('gpucost_team_gpus', ['owner_team'], TEAM)})"
BUDGET = f"max(gpucost_team_budget_usd{{{TEAM}}})"
OWN_BUDGET = 'subject_kind="team", subject=~"$team"'


def month_end(edge: str) -> str:
    """What all clusters together will have cost, by the service's forecast: ``expected``, ``low`` or
    ``high``."""
    return f'sum(max by (owner_team) (gpucost_team_month_end_usd{{{TEAM}, edge="{edge}"}}))'


def dashboard() -> Dashboard:
    return board(
        panels.TEAM,
        "Team",
        "What one team's GPUs cost, how well they are used, what is wasted and how to have it back, and "
        "what the team waits for.",
        [_cost(), _use(), _waste(), _jobs(), _queue()],
        [panels.datasource_variable(), panels.cluster_variable(), panels.team_variable()],
        since="now-7d",
    )


def _cost() -> PanelRow:
    return PanelRow(
        "Cost",
        [
            stat(
                "Cost this month",
                "What the team's GPUs cost in the current calendar month (UTC) so far, whether they were "
                "used or not. It falls to 0 on the first. GPUs without a price are not in it. Too high? "
                "Begin with the findings below.",
                USD,
                query(COST),
                decimals=0,
            ),
            stat(
                "Cost per hour",
                "What the GPUs that the team held in the last settled window cost per hour. It follows what "
                "is held within an hour or two, not at once.",
                USD,
                query(or_zero(PER_HOUR, f"gpucost_team_cost_per_hour_usd{{{GPU_CLUSTER}}}")),
                decimals=2,
            ),
            stat(
                "At month's end",
                "What the team will have cost when the month ends, in all clusters together, whichever are "
                "chosen: cost so far and the forecast of the days that are left. The interval is in *Cost of "
                "the month against budget*; plans that the cluster does not know are not foreseen. No "
                "data: fewer than 14 days of history, or days that are not known; `gpucost forecast` says "
                "which.",
                USD,
                query(month_end("expected")),
                decimals=0,
            ),
            stat(
                "Budget of the month",
                "The team's monthly budget from the team rules, for all clusters together, whichever are "
                "chosen. No data: none is set; set `monthly_budget` in the team rules.",
                USD,
                query(BUDGET),
                decimals=0,
            ),
            stat(
                "Budgets at their end",
                "What each budget of the team is expected to be spent at the end of its month, quarter or "
                "year, as a part of it, carry-over included. Above 100 %: it will not be enough, unless "
                "something ends; `gpucost budget show` says on which day, and what costs most.",
                RATIO,
                query(
                    "max by (budget, period) "
                    f'(gpucost_budget_expected_ratio{{{OWN_BUDGET}, edge="expected"}})',
                    "{{budget}}, {{period}}",
                ),
                decimals=0,
                steps=((None, GREEN), (0.9, YELLOW), (1, RED)),
            ),
            stat(
                "Wasted per hour",
                "What the team's active findings waste per hour now, as far as they have a price. A GPU can "
                "be in two findings, so this can be more than what was lost; 0 is no finding, no data that "
                "the service cannot tell.",
                USD,
                query(
                    or_zero(
                        f"sum({service_gauge('gpucost_finding_wasted_per_hour_usd', FINDING, TEAM)})",
                        SERVICE_ALIVE,
                    )
                ),
                decimals=2,
                steps=((None, GREEN), (1, YELLOW), (50, RED)),
            ),
            timeseries(
                "Cost of the month against budget",
                "The month's cost as it grows, in the clusters chosen; the cost expected at the month's end "
                "at each moment, in all clusters, with the interval that 80 % of past forecasts kept; and "
                "the monthly budget, where one is set. Cost above the line is spent; expectation above the "
                "line can still be mended. All but the budget fall back on the first of a month.",
                USD,
                query(COST, "so far"),
                query(month_end("expected"), "expected at month's end"),
                query(month_end("low"), "at least (80 %)"),
                query(month_end("high"), "at most (80 %)"),
                query(BUDGET, "budget"),
                colours={
                    "budget": RED,
                    "expected at month's end": YELLOW,
                    "at least (80 %)": GREY,
                    "at most (80 %)": GREY,
                },
            ),
            timeseries(
                "Cost per hour by cluster",
                "What the team's GPUs cost per hour, by cluster, in settled windows. A step up is more or "
                "dearer GPUs; look at *GPUs held by cluster* to tell which. The last one or two hours are "
                "not settled yet.",
                USD,
                query(
                    "sum by (gpu_cluster) ("
                    f"{service_gauge('gpucost_team_cost_per_hour_usd', ['owner_team'], TEAM)})",
                    "{{gpu_cluster}}",
                ),
                stacked=True,
            ),
        ],
    )


def _use() -> PanelRow:
    return PanelRow(
        "Use",
        [
            stat(
                "GPUs held",
                "GPUs that the team's pods held in the last settled window, on average; a shared GPU by the "
                "part that was held.",
                GPUS,
                query(or_zero(HELD, f"gpucost_team_gpus{{{GPU_CLUSTER}}}")),
                decimals=1,
            ),
            stat(
                "Busy",
                "Part of the observed time of the last 24 hours in which at least one kernel ran on the "
                "team's GPUs. Low: they are held and do nothing. It says nothing of how much of a GPU a "
                "kernel uses.",
                RATIO,
                query(_of_last_day("busy", "observed")),
                decimals=0,
                steps=BUSY_STEPS,
            ),
            stat(
                "SM active",
                "Part of the multiprocessors that had work, of the last 24 hours in which that was measured. "
                "Far below Busy: kernels or batches are too small. GPUs without the signal are left out.",
                RATIO,
                query(_of_last_day("sm_active", "sm_observed")),
                decimals=0,
                steps=SM_STEPS,
            ),
            stat(
                "Coverage",
                "Part of the held time of the last 24 hours that was observed. Where it is low, Busy and SM "
                "active speak of little: look at the exporters on *gpucost itself*.",
                RATIO,
                query(_of_last_day("observed", "held")),
                decimals=0,
                steps=COVERAGE_STEPS,
                links=[panels.dashboard_link(panels.SELF, "gpucost itself")],
            ),
            stat(
                "GPUs waiting",
                "GPUs that the team's waiting work asks for now. 0 is none, no data that no collector tells. "
                "Work is the team's by its label, or without one by a namespace in which the team has costs.",
                GPUS,
                query(or_zero(f"sum({waiting_of_team().units(['cluster'])})", COLLECTOR_ALIVE)),
                decimals=0,
                links=[panels.dashboard_link(panels.QUEUES, "Queues")],
            ),
            stat(
                "Longest wait",
                "How long the team's Kueue workload that waits longest has waited since it was queued or "
                "last evicted. 0 is none. Of jobs without Kueue nothing says since when they wait.",
                SECONDS,
                query(or_zero(f"max({waiting_of_team().seconds(['cluster'])})", COLLECTOR_ALIVE)),
                steps=((None, GREEN), (3600, YELLOW), (6 * 3600, RED)),
                links=[panels.dashboard_link(panels.QUEUES, "Queues")],
            ),
            timeseries(
                "GPUs held by cluster",
                "How many GPUs the team held, by cluster, in settled windows. What is held costs, used or "
                "not: a flat line over nights and weekends is worth a question.",
                GPUS,
                query(
                    f"sum by (gpu_cluster) ({service_gauge('gpucost_team_gpus', ['owner_team'], TEAM)})",
                    "{{gpu_cluster}}",
                ),
                stacked=True,
            ),
            timeseries(
                "Busy, SM active and coverage",
                "Use of the team's GPUs over the 24 hours before each moment, and which part of the time "
                "was observed at all. Busy up and SM active down: more small kernels. Read both only where "
                "coverage is high. Minutes do not show: the Job board has them.",
                RATIO,
                query(_of_last_day("busy", "observed"), "busy"),
                query(_of_last_day("sm_active", "sm_observed"), "SM active"),
                query(_of_last_day("observed", "held"), "coverage"),
                maximum=1,
                colours={"coverage": GREY},
            ),
        ],
    )


def _waste() -> PanelRow:
    return PanelRow(
        "Waste and findings",
        [
            timeseries(
                "Wasted GPUs by bucket",
                "GPUs wasted, by bucket, where windows became final, which is hours after they ended; so "
                "when it happened is some hours to the left. `idle`: held and seen to do nothing; the "
                "others stand in docs/waste.md. `starved`, `stranded` and `fragmented` are of free GPUs and "
                "belong to no team.",
                GPUS,
                query(
                    in_words(
                        f"sum by (bucket) ({waste_per_second('$__rate_interval', TEAM, WASTED)})", WASTE_WORDS
                    ),
                    "{{bucket}}",
                ),
                stacked=True,
                min_step="1h",
            ),
            bar_gauge(
                "Wasted in the range shown",
                "GPUs wasted on average over the range shown, by bucket, in windows that became final in it. "
                "Begin with the longest bar: its findings are in the table below. Without bars nothing was "
                "final in the range.",
                GPUS,
                query(
                    in_words(
                        f"sort_desc(sum by (bucket) ({waste_per_second('$__range', TEAM, WASTED)}))",
                        WASTE_WORDS,
                    ),
                    "{{bucket}}",
                ),
                width=6,
            ),
            bar_gauge(
                "Findings by pattern",
                "Active findings of the team by pattern: open, and neither muted nor exempt. Many of one "
                "pattern have a common cause: a template, a default, a habit. Only the dearest of all teams "
                "are known here (`api.metrics_findings`).",
                COUNT,
                query(
                    f"sort_desc(sum by (pattern) ({service_gauge('gpucost_finding_active', FINDING, TEAM)}))",
                    "{{pattern}}",
                ),
                width=6,
            ),
            _findings(),
        ],
    )


def _findings() -> Panel:
    return table(
        "Active findings",
        "What is going on now that wastes the team's GPUs, the dearest on top: the pattern, the subject, "
        "and what it wastes per hour (empty without a price). A click on a subject that is a job opens its "
        "board; evidence and what to do: `gpucost findings show ID`. A GPU can be in two findings, so the "
        "column does not add up.",
        USD,
        [
            query(service_gauge("gpucost_finding_active", FINDING, TEAM)),
            query(service_gauge("gpucost_finding_wasted_per_hour_usd", FINDING, TEAM)),
        ],
        [
            PanelColumn("finding", "ID", width=70),
            PanelColumn("pattern", "Pattern"),
            PanelColumn("variant", "Variant"),
            PanelColumn("severity", "Severity", width=90),
            PanelColumn("namespace", "Namespace"),
            PanelColumn("subject_kind", "Kind", width=80),
            PanelColumn(
                "subject_name",
                "Subject",
                link=panels.job_link(name_cell="Subject", namespace_cell="Namespace"),
            ),
            PanelColumn("gpu_cluster", "Cluster"),
            PanelColumn("B", "Wasted per hour", unit=USD, steps=((None, GREY), (10, YELLOW), (50, RED))),
        ],
        sort_by="Wasted per hour",
    )


def _jobs() -> PanelRow:
    return PanelRow(
        "Jobs",
        [
            table(
                "The 20 costliest jobs",
                "The team's costliest jobs of the current month; a click on the name opens the job's board. "
                "Jobs that are not among the costliest of all teams (`api.metrics_jobs`) have no row of "
                "their own, so the column is at most the team's cost.",
                USD,
                [query(f"topk(20, {service_gauge('gpucost_job_cost_usd', JOBS, TEAM, NAMED)})")],
                [
                    PanelColumn(
                        "job_name", "Job", link=panels.job_link(name_cell="Job", namespace_cell="Namespace")
                    ),
                    PanelColumn("job_kind", "Kind"),
                    PanelColumn("namespace", "Namespace"),
                    PanelColumn("gpu_cluster", "Cluster"),
                    PanelColumn("A", "Cost this month", unit=USD),
                ],
                sort_by="Cost this month",
            )
        ],
    )


def _queue() -> PanelRow:
    work = waiting_of_team()
    by = ("cluster", *WAITING_LABELS)
    return PanelRow(
        "Queue",
        [
            timeseries(
                "GPUs waiting, by what holds them",
                "GPUs that the team's waiting work asks for, by the first layer that holds it. `quota`: ask "
                "who owns the quota, or wait for others to finish. `placement`: it may run, but no nodes "
                "have room in the right shape. `device`: nodes do not give the GPUs they have. Unlabelled "
                "work shows with each team that has costs in its namespace.",
                GPUS,
                query(f"sum by (layer) ({work.units(['cluster', 'layer'])})", "{{layer}}"),
                width=8,
                height=9,
                stacked=True,
                links=[panels.dashboard_link(panels.QUEUES, "Queues")],
            ),
            table(
                "What the team waits for",
                "Jobs that wait now: the layer that holds them, the reason, for how long (since they were "
                "queued or last evicted; empty for jobs without Kueue) and how many GPUs they ask for. "
                "*What holds a workload* in docs/queue-collector.md says who can do something.",
                SECONDS,
                [query(work.count(by)), query(work.seconds(by)), query(work.units(by))],
                [
                    PanelColumn(
                        "job_name", "Job", link=panels.job_link(name_cell="Job", namespace_cell="Namespace")
                    ),
                    PanelColumn("namespace", "Namespace"),
                    PanelColumn("queue", "Queue"),
                    PanelColumn("layer", "Held by"),
                    PanelColumn("reason", "Reason"),
                    PanelColumn(
                        "B", "Waits for", unit=SECONDS, steps=((None, GREY), (3600, YELLOW), (21600, RED))
                    ),
                    PanelColumn("C", "GPUs asked", unit=GPUS),
                ],
                sort_by="Waits for",
                width=16,
            ),
        ],
    )


def _of_last_day(part: str, whole: str) -> str:
    metric, by = "gpucost_team_last_day_gpu_seconds", ["owner_team", "part"]
    sums = [
        f"sum({service_gauge(metric, by, TEAM, matcher)})"
        for matcher in (f'part="{part}"', f'part="{whole}"')
    ]
    return ratio(*sums)
