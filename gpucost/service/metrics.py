"""The metrics of ``gpucost serve``, declared once; gpucost.api.metrics fills them, docs/metrics.md lists
them.

Labels are named as in the metric contract, so that no scrape target's own label clashes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from gpucost.contract.metrics import render as render_contract

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    name: str
    type: str
    labels: tuple[str, ...]
    help: str


BUILD = ServiceMetric("gpucost_build_info", GAUGE, ("version",), "Always 1; the version that runs.")
LEDGER_UP = ServiceMetric("gpucost_ledger_up", GAUGE, (), "1 when the ledger could be read for this scrape.")
LEDGER_LAG = ServiceMetric(
    "gpucost_ledger_lag_seconds",
    GAUGE,
    ("gpu_cluster",),
    "How far the unbroken run of settled windows is behind now, never below 0.",
)
SETTLED_END = ServiceMetric(
    "gpucost_ledger_settled_end_timestamp_seconds",
    GAUGE,
    ("gpu_cluster",),
    "End of the newest settled window, whatever is missing before it: gauges of the last settled window and "
    "of the 24 hours before its end are of that time. A cluster has none of them once this is more than 7 "
    "days ago.",
)
PENDING = ServiceMetric(
    "gpucost_windows_pending",
    GAUGE,
    ("gpu_cluster",),
    "Windows that have ended and are not yet in the ledger.",
)
LOST = ServiceMetric(
    "gpucost_windows_lost",
    GAUGE,
    ("gpu_cluster",),
    "Windows that are not in the ledger and that the source no longer holds.",
)
REFUSED = ServiceMetric(
    "gpucost_source_refused_jobs",
    GAUGE,
    ("gpu_cluster",),
    "Scrape jobs that gave series which are not believed, in the hour before windows were last written; the "
    "log and gpucost doctor name them.",
)
INGESTED = ServiceMetric(
    "gpucost_windows_ingested_total", COUNTER, ("gpu_cluster",), "Windows written since the start."
)
SOURCE_UP = ServiceMetric(
    "gpucost_source_up", GAUGE, ("gpu_cluster",), "1 when the last attempt to read the source succeeded."
)
SOURCE_SUCCESS = ServiceMetric(
    "gpucost_source_last_success_timestamp_seconds",
    GAUGE,
    ("gpu_cluster",),
    "When a window was last read and written.",
)
SOURCE_ERRORS = ServiceMetric(
    "gpucost_source_errors_total",
    COUNTER,
    ("gpu_cluster", "kind"),
    "Attempts to read the source that failed, by kind of error.",
)
ERRORS = ServiceMetric(
    "gpucost_errors_total", COUNTER, ("kind",), "Errors of the ledger and of gpucost itself, by kind."
)
LAST_TURN = ServiceMetric(
    "gpucost_loop_last_turn_timestamp_seconds",
    GAUGE,
    (),
    "When the loop last ended a turn over all clusters, whatever became of it.",
)
TEAM_COST = ServiceMetric(
    "gpucost_team_cost_usd",
    GAUGE,
    ("gpu_cluster", "owner_team"),
    "Cost of the current month so far; __unallocated__, __unavailable__ and __unknown__ are nobody's. "
    "A ledger in another currency has gpucost_team_cost, labelled with it.",
)
JOB_COST = ServiceMetric(
    "gpucost_job_cost_usd",
    GAUGE,
    ("gpu_cluster", "namespace", "job_kind", "job_name", "job_uid", "owner_team"),
    "Cost of the current month so far, of the costliest jobs (api.metrics_jobs); all others of a team are "
    "one series with an empty job. A ledger in another currency has gpucost_job_cost, labelled with it.",
)
JOB_UNIT_COST = ServiceMetric(
    "gpucost_job_unit_cost_usd",
    GAUGE,
    ("gpu_cluster", "namespace", "job_name", "job_uid", "owner_team", "unit"),
    "Cost of one unit (a token, a request, a step) in the last 24 hours of settled windows, of the ten jobs "
    "of a team whose counted hours cost most: by what their own pods count. A ledger in another currency has "
    "gpucost_job_unit_cost, labelled with it.",
)
TEAM_COST_PER_HOUR = ServiceMetric(
    "gpucost_team_cost_per_hour_usd",
    GAUGE,
    ("gpu_cluster", "owner_team"),
    "Cost per hour in the last settled window; __unallocated__, __unavailable__ and __unknown__ are "
    "nobody's. Absent where nothing has a price. A ledger in another currency has "
    "gpucost_team_cost_per_hour, labelled with it.",
)
TEAM_BUDGET = ServiceMetric(
    "gpucost_team_budget_usd",
    GAUGE,
    ("owner_team",),
    "What the team may cost in a calendar month, where the team rules say so (monthly_budget). A ledger in "
    "another currency has gpucost_team_budget, labelled with it.",
)
BUDGET_USED = ServiceMetric(
    "gpucost_budget_used_ratio",
    GAUGE,
    ("budget", "subject_kind", "subject", "period"),
    "What was spent of a budget of the team rules in its current month, quarter or year, carry-over "
    "included: 1 is all of it, +Inf what was spent of nothing, or of less after a period that was overspent. "
    "Absent for one in another currency than the ledger's.",
)
BUDGET_EXPECTED = ServiceMetric(
    "gpucost_budget_expected_ratio",
    GAUGE,
    ("budget", "subject_kind", "subject", "period", "edge"),
    "What the period of a budget is expected to cost, of the budget: expected, and low and high, which 80 % "
    "of past forecasts kept. Absent where there is no forecast.",
)
MONTH_END = ServiceMetric(
    "gpucost_team_month_end_usd",
    GAUGE,
    ("owner_team", "edge"),
    "What the team will have held at the end of the current month: expected, low and high (the interval that "
    "80 % of past forecasts kept); __all_teams__ is of all together, __unallocated__ of time that nobody "
    "held. A ledger in another currency has gpucost_team_month_end, labelled with it.",
)
CAPACITY = ServiceMetric(
    "gpucost_capacity_gpus",
    GAUGE,
    ("gpu_cluster", "bucket"),
    "GPUs in the newest settled window, on average: held, unallocated, unavailable, unknown. They add up to "
    "capacity. Absent once that window is more than 7 days ago, as all of that window and that day.",
)
TEAM_GPUS = ServiceMetric(
    "gpucost_team_gpus",
    GAUGE,
    ("gpu_cluster", "owner_team"),
    "GPUs that the team held in the last settled window, on average.",
)
LAST_DAY = ServiceMetric(
    "gpucost_team_last_day_gpu_seconds",
    GAUGE,
    ("gpu_cluster", "owner_team", "part"),
    "Board time of the last 24 hours of settled windows: held, the part of it that was observed, and what of "
    "that was busy; sm_observed and sm_active likewise. observed / held is the coverage, busy / observed the "
    "use. A part of which nothing is known is absent.",
)
OBSERVED = ServiceMetric(
    "gpucost_ledger_observed_ratio",
    GAUGE,
    ("gpu_cluster",),
    "Part of the last 24 hours of settled windows in which the source watched the cluster.",
)
MONTH_CLOSED = ServiceMetric(
    "gpucost_month_closed",
    GAUGE,
    ("month",),
    "1 when the month before the current one is closed, else 0; absent when the ledger has nothing of it.",
)
TEAM_MONTH_CHARGE = ServiceMetric(
    "gpucost_team_month_charge_usd",
    GAUGE,
    ("month", "owner_team"),
    "What the team pays for the month before the current one, adjustments included: the total of its "
    "statement. What the platform keeps is of __platform__. Absent until that month is closed, and where it "
    "was closed without charges. Those in another currency are gpucost_team_month_charge, labelled with it.",
)
_FINDING_LABELS = (
    *("gpu_cluster", "pattern", "variant", "severity", "owner_team", "namespace"),
    *("subject_kind", "subject_name", "finding"),
)
FINDING_ACTIVE = ServiceMetric(
    "gpucost_finding_active",
    GAUGE,
    _FINDING_LABELS,
    "Always 1; a finding that may raise an alert: open, neither muted nor exempt, no rehearsal. Only the "
    "dearest (api.metrics_findings).",
)
FINDING_WASTED = ServiceMetric(
    "gpucost_finding_wasted_per_hour_usd",
    GAUGE,
    _FINDING_LABELS,
    "What an active finding wastes per hour now; absent without a price or a rate. "
    "A ledger in another currency has gpucost_finding_wasted_per_hour, labelled with it.",
)
FINDINGS = ServiceMetric(
    "gpucost_findings",
    GAUGE,
    ("gpu_cluster", "pattern", "severity", "finding_state"),
    "Findings that are not resolved: open, acknowledged or muted; exempt ones and rehearsals too.",
)
WASTE = ServiceMetric(
    "gpucost_waste_gpu_seconds_total",
    COUNTER,
    ("gpu_cluster", "bucket", "owner_team"),
    "Capacity of all windows whose waste is final, by what became of it; buckets add up to capacity. "
    "A window counts once, when it becomes final. After a start, absent until the whole ledger was added; a "
    "window that was assessed again then counts as it is now, so the total may be a little less than before: "
    "take the delta of max by (gpu_cluster, bucket, owner_team), not increase, which would add the whole "
    "total again, and count it once per instance. /v1/waste is exact.",
)
WASTE_WINDOWS = ServiceMetric(
    "gpucost_waste_windows",
    GAUGE,
    ("gpu_cluster", "assessment"),
    "Windows of the ledger by what detectors said of them: final, provisional or missing.",
)
OTHER_TEAMS = ServiceMetric(
    "gpucost_metrics_other_teams",
    GAUGE,
    (),
    "Teams without series of their own here, by api.metrics_teams: in families by team they are one, with "
    "the owner_team __other_teams__. Findings name their team all the same.",
)
LAST_EVALUATION = ServiceMetric(
    "gpucost_detectors_last_evaluation_timestamp_seconds",
    GAUGE,
    ("gpu_cluster",),
    "When all detectors last looked at the cluster.",
)
EVALUATION = ServiceMetric(
    "gpucost_detectors_evaluation_seconds",
    GAUGE,
    ("gpu_cluster",),
    "How long their last look took.",
)
DETECTOR_ERRORS = ServiceMetric(
    "gpucost_detector_errors_total",
    COUNTER,
    ("gpu_cluster", "detector"),
    "Failures by detector; by class of error where no detector got to look.",
)
WITHHELD = ServiceMetric(
    "gpucost_detector_withheld",
    GAUGE,
    ("gpu_cluster", "pattern"),
    "What a detector did not say at its last look: held back by a guard, or for want of data.",
)
ADVISOR_ANSWERS = ServiceMetric(
    "gpucost_advisor_answers_total",
    COUNTER,
    ("face", "decision"),
    "Answers of the advisor since the start, by who asked (advice, explain, webhook; webhook_wait and "
    "webhook_suggestions for a second look while there is time) and what it said. The decision is empty "
    "where an explanation needed no advice.",
)
ADVISOR_SECONDS = ServiceMetric(
    "gpucost_advisor_seconds",
    HISTOGRAM,
    ("face",),
    "How long an answer of the advisor took to work out.",
)
WEBHOOK_REVIEWS = ServiceMetric(
    "gpucost_webhook_reviews_total",
    COUNTER,
    ("result",),
    "Reviews of the admission webhook since the start, all of them allowed: advised, or why without advice.",
)
WEBHOOK_CERTIFICATE_EXPIRY = ServiceMetric(
    "gpucost_webhook_certificate_expiry_timestamp_seconds",
    GAUGE,
    (),
    "When the certificate of the admission webhook ends. No sample without one.",
)
WEBHOOK_CERTIFICATE_ERRORS = ServiceMetric(
    "gpucost_webhook_certificate_errors_total",
    COUNTER,
    ("kind",),
    "Attempts to look after the webhook's certificate that failed, by kind of error: http_403 and the like, "
    "or why the API server could not be asked; unreadable or expired, of one in files, once for each change.",
)
WAIT_PREDICTIONS = ServiceMetric(
    "gpucost_wait_predictions_total",
    COUNTER,
    ("outcome",),
    "Waits that were foretold and came to their end since the start: held_p50, held_p90 (longer than p50, at "
    "most p90), missed, beyond_horizon (p90 was no number), gone (left without a start).",
)
WAIT_PREDICTION_ERRORS = ServiceMetric(
    "gpucost_wait_prediction_errors_total",
    COUNTER,
    ("kind",),
    "Steps of the loop that foretells waits which failed since the start, by kind of error.",
)
NOTIFY_POSTS = ServiceMetric(
    "gpucost_notify_posts_total",
    COUNTER,
    ("channel", "kind", "outcome"),
    "Tries to post a message since the start: sent, retried (to be tried again) or dead (given up).",
)
NOTIFY_WAITING = ServiceMetric(
    "gpucost_notify_waiting", GAUGE, ("channel",), "Messages that are on their way to a channel."
)
NOTIFY_OLDEST = ServiceMetric(
    "gpucost_notify_oldest_seconds",
    GAUGE,
    ("channel",),
    "How long the oldest of them has been; 0 when none is.",
)
NOTIFY_DEAD = ServiceMetric(
    "gpucost_notify_dead_letters",
    GAUGE,
    ("channel",),
    "Messages that were given up and that nobody has sent again (gpucost notify resend).",
)
NOTIFY_SUPPRESSED = ServiceMetric(
    "gpucost_notify_suppressed_total",
    COUNTER,
    ("kind", "reason"),
    "News that were not posted, or not at once, since the start: cool_down, quiet_hours, burst, duplicate, "
    "or no_channel.",
)
NOTIFY_SUCCESS = ServiceMetric(
    "gpucost_notify_last_success_timestamp_seconds",
    GAUGE,
    ("channel",),
    "When a message last arrived at the channel, since the start.",
)
NOTIFY_ERRORS = ServiceMetric(
    "gpucost_notify_errors_total",
    COUNTER,
    ("kind",),
    "Steps of the loop that looks for news which failed since the start, by kind of error.",
)
CONFIG_GOOD = ServiceMetric(
    "gpucost_config_last_reload_successful",
    GAUGE,
    (),
    "1 when the configuration was taken the last time it was read; at 0 the one before is in force.",
)
CONFIG_LOADED = ServiceMetric(
    "gpucost_config_last_reload_success_timestamp_seconds",
    GAUGE,
    (),
    "When the configuration that is in force was read.",
)
CONFIG_HASH = ServiceMetric(
    "gpucost_config_hash",
    GAUGE,
    ("hash",),
    "Always 1; a hash of the settings in force (secrets left out), the price book and the team rules: the "
    "same in every replica that has the same.",
)
API_REQUESTS = ServiceMetric(
    "gpucost_api_requests_total",
    COUNTER,
    ("method", "route", "status"),
    "Requests that the API answered since the start; of what is no route, with an empty one.",
)
API_REFUSED = ServiceMetric(
    "gpucost_api_refused_total",
    COUNTER,
    ("reason",),
    "Requests that were not worked on since the start: rate (api.rate), unauthorized (api.refused_rate), "
    "heavy (api.heavy).",
)
SERVICE_METRICS = (
    *(
        BUILD,
        LEDGER_UP,
        LEDGER_LAG,
        SETTLED_END,
        PENDING,
        LOST,
        REFUSED,
        INGESTED,
        SOURCE_UP,
        SOURCE_SUCCESS,
        SOURCE_ERRORS,
    ),
    *(ERRORS, LAST_TURN, LAST_EVALUATION, EVALUATION, DETECTOR_ERRORS, WITHHELD, TEAM_COST, JOB_COST),
    *(
        JOB_UNIT_COST,
        TEAM_COST_PER_HOUR,
        TEAM_BUDGET,
        BUDGET_USED,
        BUDGET_EXPECTED,
        MONTH_END,
        CAPACITY,
        TEAM_GPUS,
        LAST_DAY,
        OBSERVED,
        MONTH_CLOSED,
    ),
    TEAM_MONTH_CHARGE,
    *(FINDING_ACTIVE, FINDING_WASTED, FINDINGS, WASTE_WINDOWS, WASTE, OTHER_TEAMS),
    *(ADVISOR_ANSWERS, ADVISOR_SECONDS, WEBHOOK_REVIEWS, WAIT_PREDICTIONS, WAIT_PREDICTION_ERRORS),
    *(WEBHOOK_CERTIFICATE_EXPIRY, WEBHOOK_CERTIFICATE_ERRORS),
    *(NOTIFY_POSTS, NOTIFY_WAITING, NOTIFY_OLDEST, NOTIFY_DEAD, NOTIFY_SUPPRESSED, NOTIFY_SUCCESS),
    NOTIFY_ERRORS,
    *(CONFIG_GOOD, CONFIG_LOADED, CONFIG_HASH, API_REQUESTS, API_REFUSED),
)


_SERVE = """## gpucost serve

What the service says on `/metrics`: costs and findings out of the ledger, and how it fares itself.
`gpu_cluster` and `owner_team` are named so that no label of the scrape's target (`cluster`, `team`) clashes
with them. All are experimental.
"""


def render_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([render_contract(), _SERVE, *(_entry(metric) for metric in SERVICE_METRICS)])


def _entry(metric: ServiceMetric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none of its own"
    return f"### {metric.name}\n\n{metric.help}\n\n- {metric.type}\n- labels: {labels}\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file named, or print it when none is."""
    if arguments:
        Path(arguments[0]).write_text(render_page(), encoding="utf-8")
    else:
        sys.stdout.write(render_page())


if __name__ == "__main__":
    main(sys.argv[1:])
