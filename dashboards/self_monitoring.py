"""*gpucost itself*: whether the numbers of the other dashboards are complete and current."""

from __future__ import annotations

from grafanalib.core import Dashboard

from dashboards import panels
from dashboards.panels import (
    AGO,
    COUNT,
    GREEN,
    PER_SECOND,
    RATIO,
    RED,
    SECONDS,
    STATE,
    YELLOW,
    PanelColumn,
    PanelRow,
    ThresholdSteps,
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
    latest,
    or_none,
    or_zero,
    rate_sum,
    ratio,
    service_gauge,
)

ZERO_BAD: ThresholdSteps = ((None, GREEN), (1, RED))
UP = {1.0: ("up", GREEN), 0.0: ("down", RED)}
UP_STEPS: ThresholdSteps = ((None, RED), (1, GREEN))
NOTIFY_ERRORS = "sum by (kind) (rate(gpucost_notify_errors_total[$__rate_interval]))"
PROBLEMS = latest("gpucost_state_problems", ("code",))
ALIVE = "gpucost_build_info"
"""Series of a running service: what has no series until the first error is 0 while these exist."""


def dashboard() -> Dashboard:
    return board(
        panels.SELF,
        "gpucost itself",
        "Whether the ledger is up to date and complete, the source and the exporters are well, the "
        "detectors look, and messages arrive. Read it when another board looks wrong.",
        [_now(), _ledger(), _errors(), _detectors(), _advisor(), _notify(), _collector(), _gpu_exporters()],
        [panels.datasource_variable(), panels.cluster_variable()],
    )


def _now() -> PanelRow:
    return PanelRow(
        "Now",
        [
            stat(
                "Source",
                "Whether the last attempt to read the source (Prometheus) of each cluster succeeded; the "
                "worst one's. Down: the ledger stands still, and nothing is lost as long as the source "
                "keeps its data.",
                STATE,
                query(f"min(gpucost_source_up{{{GPU_CLUSTER}}})"),
                width=3,
                values=UP,
                steps=UP_STEPS,
            ),
            stat(
                "Ledger",
                "Whether the ledger's database could be read for the last scrape. Down: money panels of all "
                "boards are empty.",
                STATE,
                query("min(gpucost_ledger_up)"),
                width=3,
                values=UP,
                steps=UP_STEPS,
            ),
            stat(
                "Lag",
                "How far the unbroken run of settled windows is behind now; the worst cluster's. One window "
                "and its lateness (75 minutes by default) is normal, and it falls once per window.",
                SECONDS,
                query(f"max(gpucost_ledger_lag_seconds{{{GPU_CLUSTER}}})"),
                width=3,
                steps=((None, GREEN), (3 * 3600, YELLOW), (6 * 3600, RED)),
            ),
            stat(
                "Windows pending",
                "Windows that have ended and are not yet in the ledger, of all clusters. It rises while the "
                "source is down, and falls when it is back.",
                COUNT,
                query(f"sum({service_gauge('gpucost_windows_pending', ())})"),
                width=3,
                decimals=0,
                steps=((None, GREEN), (3, YELLOW), (12, RED)),
            ),
            stat(
                "Windows lost",
                "Windows that are not in the ledger and that the source no longer holds: they stay unknown, "
                "for good. Any number above 0 is a hole in a bill.",
                COUNT,
                query(f"sum({service_gauge('gpucost_windows_lost', ())})"),
                width=3,
                decimals=0,
                steps=ZERO_BAD,
            ),
            stat(
                "Coverage",
                "Part of the last 24 hours of settled windows in which the source watched the cluster; the "
                "worst cluster's. What is missing stands as unknown in all sums.",
                RATIO,
                query(f"min(gpucost_ledger_observed_ratio{{{GPU_CLUSTER}}})"),
                width=3,
                decimals=1,
                steps=((None, RED), (0.9, YELLOW), (0.99, GREEN)),
            ),
            stat(
                "Detectors looked",
                "When all detectors last looked; the cluster where it is longest ago. Older than two turns "
                "of the loop: findings are out of date.",
                AGO,
                query(f"1000 * min(gpucost_detectors_last_evaluation_timestamp_seconds{{{GPU_CLUSTER}}})"),
                width=3,
            ),
            stat(
                "Version",
                "Which version runs; the name is the version, the number how many instances of it. Two "
                "names: an update is under way, or half done.",
                COUNT,
                query("count by (version) (gpucost_build_info)", "{{version}}"),
                width=3,
            ),
        ],
    )


def _ledger() -> PanelRow:
    return PanelRow(
        "Ledger and source",
        [
            timeseries(
                "Lag by cluster",
                "How far settled windows are behind now. A saw-tooth of one window is normal; a line that "
                "climbs all the time is a source that cannot be read.",
                SECONDS,
                query(
                    f"max by (gpu_cluster) (gpucost_ledger_lag_seconds{{{GPU_CLUSTER}}})", "{{gpu_cluster}}"
                ),
            ),
            timeseries(
                "Windows pending and lost",
                "Windows that wait to be read, and windows that can no longer be. Pending becomes lost when "
                "the source's retention is over: act before.",
                COUNT,
                query(
                    service_gauge("gpucost_windows_pending", ()),
                    "{{gpu_cluster}} pending",
                ),
                query(service_gauge("gpucost_windows_lost", ()), "{{gpu_cluster}} lost"),
            ),
            timeseries(
                "Coverage by cluster",
                "Part of the last 24 hours of settled windows that was observed. A dip is a time when the "
                "collector or Prometheus was away; it leaves the graph a day later, and the ledger never.",
                RATIO,
                query(
                    f"min by (gpu_cluster) (gpucost_ledger_observed_ratio{{{GPU_CLUSTER}}})",
                    "{{gpu_cluster}}",
                ),
                maximum=1,
            ),
            timeline(
                "Source by cluster",
                "Green while the source of a cluster could be read. A gap is a service that did not run, or "
                "was not scraped.",
                STATE,
                query(f"min by (gpu_cluster) (gpucost_source_up{{{GPU_CLUSTER}}})", "{{gpu_cluster}}"),
                width=12,
                height=8,
                values=UP,
                steps=UP_STEPS,
            ),
            timeseries(
                "Assessments of windows",
                "Windows of the ledger by what the detectors said of them. Provisional ones become final "
                "within hours; missing ones were never looked at, and their waste is unknown.",
                COUNT,
                query(
                    f"sum by (assessment) ({service_gauge('gpucost_waste_windows', ('assessment',))})",
                    "{{assessment}}",
                ),
            ),
            timeseries(
                "Month closed",
                "1 when the month before the current one is closed, 0 while it can still change. Close it "
                "before bills go out. Empty when the ledger has nothing of that month.",
                STATE,
                query("max by (month) (gpucost_month_closed)", "{{month}}"),
                maximum=1,
            ),
        ],
    )


def _errors() -> PanelRow:
    return PanelRow(
        "Errors and loop",
        [
            timeseries(
                "Errors of the source",
                "Failed attempts to read the source, per second and kind of error. Tries go on with longer "
                "pauses, so a steady low line is a source that is down.",
                PER_SECOND,
                query(
                    or_none(
                        rate_sum("gpucost_source_errors_total", GPU_CLUSTER, "kind"),
                        "kind",
                        f"gpucost_source_up{{{GPU_CLUSTER}}}",
                    ),
                    "{{kind}}",
                ),
                width=8,
            ),
            timeseries(
                "Errors of gpucost and its ledger",
                "Errors per second by kind. Any of them is worth a look at the service's log, which has the "
                "text.",
                PER_SECOND,
                query(
                    or_none("sum by (kind) (rate(gpucost_errors_total[$__rate_interval]))", "kind", ALIVE),
                    "{{kind}}",
                ),
                width=8,
            ),
            timeseries(
                "Since the loop's last turn",
                "Time since the loop that reads windows last ended a turn over all clusters. Longer than "
                "the longest pause after failures (10 minutes by default): the loop hangs.",
                SECONDS,
                query("time() - max(gpucost_loop_last_turn_timestamp_seconds)", "loop"),
                width=8,
            ),
        ],
    )


def _detectors() -> PanelRow:
    return PanelRow(
        "Detectors",
        [
            timeseries(
                "Duration of an evaluation",
                "How long the detectors' last look at a cluster took. When it nears the pause between looks, "
                "findings come late.",
                SECONDS,
                query(
                    f"max by (gpu_cluster) (gpucost_detectors_evaluation_seconds{{{GPU_CLUSTER}}})",
                    "{{gpu_cluster}}",
                ),
                width=8,
            ),
            timeseries(
                "Failures of detectors",
                "Failures per second by detector. A detector that fails says nothing: its bucket of the "
                "waste ledger stays unknown.",
                PER_SECOND,
                query(
                    or_none(
                        rate_sum("gpucost_detector_errors_total", GPU_CLUSTER, "detector"),
                        "detector",
                        f"gpucost_detectors_evaluation_seconds{{{GPU_CLUSTER}}}",
                    ),
                    "{{detector}}",
                ),
                width=8,
            ),
            timeseries(
                "Withheld by pattern",
                "What detectors did not say at their last look, held back by a guard or for want of data. "
                "High and steady: see `gpucost findings` for the reason, often a signal that no GPU gives.",
                COUNT,
                query(
                    f"sum by (pattern) ({service_gauge('gpucost_detector_withheld', ('pattern',))})",
                    "{{pattern}}",
                ),
                width=8,
            ),
        ],
    )


def _advisor() -> PanelRow:
    seconds = "gpucost_advisor_seconds"
    return PanelRow(
        "Advisor",
        [
            timeseries(
                "Answers of the advisor",
                "Answers per second, by who asked. Nobody asks: people do not know it, or the webhook is "
                "off.",
                PER_SECOND,
                query(
                    or_none(
                        "sum by (face) (rate(gpucost_advisor_answers_total[$__rate_interval]))", "face", ALIVE
                    ),
                    "{{face}}",
                ),
                width=8,
            ),
            timeseries(
                "Time to an answer",
                "Mean time in which the advisor worked an answer out, by who asked. The webhook has little: "
                "its answers come without advice when it is over.",
                SECONDS,
                query(
                    ratio(
                        f"sum by (face) (rate({seconds}_sum[$__rate_interval]))",
                        f"sum by (face) (rate({seconds}_count[$__rate_interval]))",
                    ),
                    "{{face}}",
                ),
                width=8,
            ),
            timeseries(
                "Reviews of the webhook",
                "Reviews of the admission webhook per second by result; all of them are allowed. Results "
                "other than advised are reviews without advice.",
                PER_SECOND,
                query(
                    or_none(
                        "sum by (result) (rate(gpucost_webhook_reviews_total[$__rate_interval]))",
                        "result",
                        ALIVE,
                    ),
                    "{{result}}",
                ),
                width=8,
            ),
        ],
    )


def _notify() -> PanelRow:
    return PanelRow(
        "Messages",
        [
            timeseries(
                "Posts by outcome",
                "Posts to chats per second: sent, retried, dead (given up). Dead ones are lost to the "
                "channel; the findings stay in the ledger.",
                PER_SECOND,
                query(
                    "sum by (channel, outcome) (rate(gpucost_notify_posts_total[$__rate_interval]))",
                    "{{channel}} {{outcome}}",
                ),
                width=8,
            ),
            timeseries(
                "Posts that wait",
                "Posts that are due and not delivered, by channel. A channel that grows is down, or allows "
                "less than is written to it.",
                COUNT,
                query("max by (channel) (gpucost_notify_waiting)", "{{channel}}"),
                width=8,
            ),
            table(
                "Channels",
                "A row per channel: posts that wait, how long the oldest has, posts that were given up, and "
                "when one last arrived. Quiet hours keep posts back too.",
                COUNT,
                [
                    query("max by (channel) (gpucost_notify_waiting)"),
                    query("max by (channel) (gpucost_notify_oldest_seconds)"),
                    query("max by (channel) (gpucost_notify_dead_letters)"),
                    query("1000 * max by (channel) (gpucost_notify_last_success_timestamp_seconds)"),
                ],
                [
                    PanelColumn("channel", "Channel"),
                    PanelColumn("A", "Waiting", unit=COUNT),
                    PanelColumn("B", "Oldest", unit=SECONDS),
                    PanelColumn("C", "Given up", unit=COUNT, steps=ZERO_BAD),
                    PanelColumn("D", "Last arrived", unit=AGO),
                ],
                sort_by="Waiting",
                width=8,
                height=8,
            ),
            timeseries(
                "Posts held back",
                "What was not posted, per second and reason: cool_down and duplicate spare people, "
                "quiet_hours come later, and no_channel is a team without a route.",
                PER_SECOND,
                query(
                    or_none(
                        "sum by (reason) (rate(gpucost_notify_suppressed_total[$__rate_interval]))",
                        "reason",
                        ALIVE,
                    ),
                    "{{reason}}",
                ),
                width=12,
                height=6,
            ),
            timeseries(
                "Errors of telling",
                "Failed looks for news, per second and kind; the service's log has the text. While they fail "
                "nothing new is posted, and nothing is lost: the next look finds it.",
                PER_SECOND,
                query(
                    or_none(NOTIFY_ERRORS, "kind", ALIVE),
                    "{{kind}}",
                ),
                width=12,
                height=6,
            ),
        ],
    )


def _collector() -> PanelRow:
    return PanelRow(
        "Queue collector",
        [
            timeline(
                "View of the cluster",
                "Green while the collector's view of its cluster is current, red while it serves an old "
                "one. Time that is not green is not observed: nobody's GPUs are counted in it.",
                STATE,
                query(f"min by (cluster) (gpucost_state_up{{{CLUSTER}}})", "{{cluster}}"),
                width=12,
                height=7,
                values=UP,
                steps=UP_STEPS,
            ),
            timeseries(
                "Age of the view",
                "Time since the collector last brought its series up to date. It should stay below a few "
                "scrapes.",
                SECONDS,
                query(
                    f"time() - min by (cluster) (gpucost_state_refreshed_timestamp_seconds{{{CLUSTER}}})",
                    "{{cluster}}",
                ),
                height=7,
            ),
            timeline(
                "Collections of the API",
                "Green while a collection (pods, nodes, workloads, …) is current. A red one is mostly a "
                "right that the collector lacks.",
                STATE,
                query(f"min by (collection) (gpucost_state_collection_up{{{CLUSTER}}})", "{{collection}}"),
                width=12,
                values=UP,
                steps=UP_STEPS,
            ),
            timeseries(
                "Objects that make no sense",
                "Objects that contradict themselves or each other, by code; docs/queue-collector.md "
                "explains each. What is said of them in other panels may be wrong.",
                COUNT,
                query(
                    or_none(f"sum by (code) ({PROBLEMS})", "code", f"gpucost_state_up{{{CLUSTER}}}"),
                    "{{code}}",
                ),
                height=9,
            ),
        ],
    )


def _gpu_exporters() -> PanelRow:
    return PanelRow(
        "GPU exporters",
        [
            timeline(
                "Parts of the exporters",
                "Green while every exporter had all of a part (driver, kubelet, pods, …) in its last "
                "rendering; red while one of them failed. Which one: the table of what is missing.",
                STATE,
                query(f"min by (source) (gpucost_exporter_source_up{{{CLUSTER}}})", "{{source}}"),
                width=8,
                values=UP,
                steps=UP_STEPS,
            ),
            timeseries(
                "Age of the oldest reading",
                "Time since the exporter that is furthest behind read its GPUs. It should stay below a few "
                "scrapes. An exporter that is gone altogether is not in it.",
                SECONDS,
                query(
                    "time() - min by (cluster) "
                    f"(gpucost_gpu_exporter_last_collection_timestamp_seconds{{{CLUSTER}}})",
                    "{{cluster}}",
                ),
                width=8,
                height=9,
            ),
            timeseries(
                "Failures and dropped readings",
                "Failures of GPU exporters by part, and readings thrown away because they cannot be true, "
                "per second. A few when pods end are normal.",
                PER_SECOND,
                query(
                    or_zero(
                        rate_sum("gpucost_gpu_exporter_errors_total", CLUSTER),
                        f"gpucost_nvml_up{{{CLUSTER}}}",
                    ),
                    "failures",
                ),
                query(
                    or_zero(
                        rate_sum("gpucost_gpu_exporter_dropped_samples_total", CLUSTER),
                        f"gpucost_nvml_up{{{CLUSTER}}}",
                    ),
                    "dropped",
                ),
                width=8,
                height=9,
            ),
        ],
    )
