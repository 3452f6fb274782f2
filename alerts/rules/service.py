"""Health of gpucost itself: the service, its source and its ledger, its detectors, and its notifications."""

from __future__ import annotations

from alerts.rules import thresholds as t
from alerts.rules.model import (
    SELF,
    SELF_OF_CLUSTER,
    AlertRule,
    AlertSeverity,
    RuleGroup,
    grown_within,
    of_service,
)

_IN = "cluster {{ $labels.cluster }}"
_GREW = t.GREW_WITHIN.duration
_SERVED = f"last_over_time(gpucost_ledger_lag_seconds[{t.REMEMBERED.duration}])"
_REASONS = "deadline|busy|error|no_state"


def _reviews(selector: str = "") -> str:
    return f"sum(rate(gpucost_webhook_reviews_total{selector}[{t.OPEN_REVIEWS_WITHIN.duration}]))"


SERVICE = RuleGroup(
    "gpucost-service",
    (
        AlertRule(
            "GpuCostWatchdog",
            "vector(1)",
            AlertSeverity.INFO,
            "Always firing: its absence is the alarm.",
            "Prometheus evaluates gpucost's rules, and Alertmanager gets them. Whoever waits for this "
            "alert says so "
            "when it stops.",
            SELF,
        ),
        AlertRule(
            "GpuCostServiceDown",
            f"absent(gpucost_build_info) or (0 * {of_service(_SERVED, 'gpu_cluster')} "
            f"unless on (cluster) {of_service('gpucost_ledger_lag_seconds', 'gpu_cluster')}) "
            "and on () min(gpucost_ledger_up) == 1",
            AlertSeverity.CRITICAL,
            "gpucost is not there.",
            "No gpucost service{{ with $labels.cluster }} for cluster {{ . }}{{ end }} is scraped. Nothing "
            "flows into the ledger, no finding changes, and nothing is posted. "
            "What Prometheus still holds is made up for later.",
            SELF,
            t.BLIP,
            thresholds=(t.REMEMBERED,),
        ),
        AlertRule(
            "GpuCostLoopStalled",
            f"time() - max by (instance) (gpucost_loop_last_turn_timestamp_seconds) > {t.LOOP_SILENT}",
            AlertSeverity.WARNING,
            "The loop that fills the ledger does not turn.",
            "The loop of gpucost's service{{ with $labels.instance }} at {{ . }}{{ end }} last ended a turn "
            "{{ $value | humanizeDuration }} ago.",
            SELF,
            t.BLIP,
            thresholds=(t.LOOP_SILENT,),
        ),
        AlertRule(
            "GpuCostConfigReloadFailed",
            "min(gpucost_config_last_reload_successful) == 0",
            AlertSeverity.WARNING,
            "A changed configuration is not taken.",
            "What the files of gpucost's configuration say cannot be taken, so the service goes on with what "
            "they said before. It would not start with them.",
            SELF,
            t.BLIP,
        ),
        AlertRule(
            "GpuCostDetectorsSilent",
            f"time() - {of_service('gpucost_detectors_last_evaluation_timestamp_seconds', 'gpu_cluster')} "
            f"> {t.DETECTORS_SILENT} "
            f"or (0 * {of_service('gpucost_source_up', 'gpu_cluster')} unless on (cluster) "
            f"{of_service('gpucost_detectors_last_evaluation_timestamp_seconds', 'gpu_cluster')})",
            AlertSeverity.WARNING,
            "The detectors do not look at a cluster.",
            f"No detector has looked at {_IN} "
            "{{ if $value }}for {{ $value | humanizeDuration }}{{ else }}since the service started{{ end }}. "
            "Findings stay as they are, right or wrong.",
            SELF_OF_CLUSTER,
            t.PATIENT,
            thresholds=(t.DETECTORS_SILENT,),
        ),
        AlertRule(
            "GpuCostDetectorFailing",
            of_service(
                f"increase(gpucost_detector_errors_total[{t.DETECTOR_ERRORS_WITHIN.duration}])",
                *("gpu_cluster", "detector"),
            )
            + f" > {t.DETECTOR_ERRORS}",
            AlertSeverity.WARNING,
            "A detector fails again and again.",
            f'{{{{ $labels.detector }}}} has failed about {{{{ $value | printf "%.0f" }}}} times in '
            f"{t.DETECTOR_ERRORS_WITHIN.shown} in {_IN}. Its findings stay as they are, right or wrong.",
            SELF_OF_CLUSTER,
            thresholds=(t.DETECTOR_ERRORS, t.DETECTOR_ERRORS_WITHIN),
        ),
        AlertRule(
            "GpuCostFindingsCutOff",
            f"count(max by (gpu_cluster, finding) (gpucost_finding_active)) >= {t.FINDINGS_SHOWN}",
            AlertSeverity.INFO,
            "Not all findings have an alert.",
            "{{ $value }} findings are on /metrics, which is the most there may be (api.metrics_findings): "
            "cheaper ones "
            "raise no alert. gpucost findings lists them all.",
            SELF,
            t.PATIENT,
            thresholds=(t.FINDINGS_SHOWN,),
        ),
        AlertRule(
            "GpuCostTeamsCutOff",
            "max(gpucost_metrics_other_teams) > 0",
            AlertSeverity.INFO,
            "Not all teams have metrics of their own.",
            "{{ $value }} teams are one on /metrics, __other_teams__ (api.metrics_teams). A team's name may "
            "be what a pod's label says: name the real ones in the team rules.",
            SELF,
            t.PATIENT,
        ),
        AlertRule(
            "GpuCostWebhookFailsOpen",
            f'{_reviews(f"""{{result=~"{_REASONS}"}}""")} / {_reviews()} > {t.OPEN_REVIEWS}',
            AlertSeverity.WARNING,
            "Submissions are admitted without advice.",
            "{{ $value | humanizePercentage }} of the admission webhook's reviews got no advice: the "
            "service was too slow, "
            "too busy, failed, or knew no state. All of them are allowed.",
            SELF,
            t.PATIENT,
            thresholds=(t.OPEN_REVIEWS, t.OPEN_REVIEWS_WITHIN),
        ),
        AlertRule(
            "GpuCostWebhookCertificateExpiring",
            f"min(gpucost_webhook_certificate_expiry_timestamp_seconds) - time() < {t.CERTIFICATE_LEFT}",
            AlertSeverity.WARNING,
            "The admission webhook's certificate ends soon.",
            "The certificate ends in {{ $value | humanizeDuration }} and has not been renewed. After that "
            "the API server trusts the webhook no more: submissions go on without advice.",
            SELF,
            t.AN_HOUR,
            thresholds=(t.CERTIFICATE_LEFT,),
        ),
    ),
)

LEDGER = RuleGroup(
    "gpucost-ledger",
    (
        AlertRule(
            "GpuCostLedgerDown",
            "max(gpucost_ledger_up) == 0",
            AlertSeverity.CRITICAL,
            "The ledger's database cannot be read.",
            "gpucost runs and cannot read its ledger. No window is written, and reports fail. Windows wait "
            "in Prometheus "
            "as long as it keeps them.",
            SELF,
            t.BLIP,
        ),
        AlertRule(
            "GpuCostSourceDown",
            f"{of_service('gpucost_source_up', 'gpu_cluster')} == 0",
            AlertSeverity.WARNING,
            "gpucost cannot read its source.",
            f"gpucost cannot read the series of {_IN} from Prometheus. Windows wait until it can.",
            SELF_OF_CLUSTER,
            t.PATIENT,
        ),
        AlertRule(
            "GpuCostLedgerLag",
            f"{of_service('gpucost_ledger_lag_seconds', 'gpu_cluster')} > {t.LAG}",
            AlertSeverity.WARNING,
            "The ledger is behind.",
            f"The settled windows of {_IN} are {{{{ $value | humanizeDuration }}}} behind. Costs and waste "
            f"of that time "
            "are in no report yet.",
            SELF_OF_CLUSTER,
            t.PATIENT,
            thresholds=(t.LAG,),
        ),
        AlertRule(
            "GpuCostWindowsLost",
            grown_within("gpucost_windows_lost", 0, _GREW, "gpu_cluster"),
            AlertSeverity.WARNING,
            "Windows of the ledger are lost.",
            f"{{{{ $value }}}} windows of {_IN} are not in the ledger, and Prometheus no longer holds "
            f"them. They stay "
            "unknown: nobody is billed for them.",
            SELF_OF_CLUSTER,
            thresholds=(t.GREW_WITHIN,),
        ),
        AlertRule(
            "GpuCostSeriesRefused",
            f"{of_service('gpucost_source_refused_jobs', 'gpu_cluster')} > 0",
            AlertSeverity.WARNING,
            "Somebody writes series that are gpucost's to write.",
            f"{{{{ $value }}}} scrape jobs of {_IN} give series that gpucost reads and does not take from "
            "them. Nothing of it is in the ledger. Somebody forges GPU time, or a scrape job got another "
            "name.",
            SELF_OF_CLUSTER,
        ),
        AlertRule(
            "GpuCostLedgerCoverageLow",
            f"{of_service('gpucost_ledger_observed_ratio', 'gpu_cluster')} < {t.OBSERVED}",
            AlertSeverity.WARNING,
            "Much of the last day was not observed.",
            f"{{{{ $value | humanizePercentage }}}} of the last 24 h of {_IN} were observed. The rest is "
            f"unknown, and "
            "billed to nobody.",
            SELF_OF_CLUSTER,
            t.AN_HOUR,
            thresholds=(t.OBSERVED,),
        ),
        AlertRule(
            "GpuCostUseCoverageLow",
            "(cluster:gpucost_team_last_day_gpu_seconds:sum_observed "
            "or 0 * cluster:gpucost_team_last_day_gpu_seconds:sum_held) "
            f"/ on (cluster) (cluster:gpucost_team_last_day_gpu_seconds:sum_held > 0) < {t.MEASURED}",
            AlertSeverity.WARNING,
            "What held GPUs do is not measured well enough.",
            f"{{{{ $value | humanizePercentage }}}} of the GPU time that was held in the last 24 h of "
            f"{_IN} were "
            "measured. Detectors answer with not enough data where it is too little.",
            SELF_OF_CLUSTER,
            t.AN_HOUR,
            thresholds=(t.MEASURED,),
        ),
        AlertRule(
            "GpuCostWasteNotAssessed",
            grown_within(
                'gpucost_waste_windows{assessment="missing"}', t.MISSING_WINDOWS, _GREW, "gpu_cluster"
            ),
            AlertSeverity.WARNING,
            "Windows of the ledger are not looked at for waste.",
            f"{{{{ $value }}}} windows of {_IN} are in the ledger, and no detector has looked at them: in "
            f"the waste "
            "ledger they are unknown.",
            SELF_OF_CLUSTER,
            t.TWO_HOURS,
            thresholds=(t.MISSING_WINDOWS, t.GREW_WITHIN),
        ),
        AlertRule(
            "GpuCostMonthNotClosed",
            f"max by (month) (gpucost_month_closed) == 0 and on () day_of_month() >= {t.CLOSED_BY}",
            AlertSeverity.WARNING,
            "The last month is not closed.",
            "{{ $labels.month }} is not closed: its numbers may still change, and nobody can be billed by "
            "them.",
            SELF,
            t.AN_HOUR,
            thresholds=(t.CLOSED_BY,),
        ),
    ),
)

NOTIFY = RuleGroup(
    "gpucost-notify",
    (
        AlertRule(
            "GpuCostNotifyDeadLetters",
            grown_within("gpucost_notify_dead_letters", 0, _GREW, "channel"),
            AlertSeverity.WARNING,
            "Messages could not be delivered, and were given up.",
            "{{ $value }} messages to channel {{ $labels.channel }} were given up. Nobody has read them.",
            SELF,
            thresholds=(t.GREW_WITHIN,),
        ),
        AlertRule(
            "GpuCostNotifyWaiting",
            f"max by (channel) (gpucost_notify_oldest_seconds) > {t.POST_WAITS}",
            AlertSeverity.WARNING,
            "Messages wait to be delivered.",
            "The oldest message to channel {{ $labels.channel }} has waited for "
            "{{ $value | humanizeDuration }}.",
            SELF,
            t.BLIP,
            thresholds=(t.POST_WAITS,),
        ),
    ),
)
