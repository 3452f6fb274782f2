"""The service, its ledger, its detectors, and its notifications."""

from __future__ import annotations

from alerts.cases.helpers import BEGINS, always, around, lasts, pair, samples
from alerts.rules import thresholds as t
from alerts.rules.model import AlertCase, ExpectedAlert

_SELF = "gpucost-self"
_OF_PROD = "gpucost-self?var-cluster=prod"
_PROD = {"cluster": "prod"}
_ON = 'gpu_cluster="prod"'
_DAY = int(t.GREW_WITHIN.value)
_LOOKED = "gpucost_detectors_last_evaluation_timestamp_seconds"
_FAILED = f'gpucost_detector_errors_total{{{_ON}, detector="gang_stall"}}'
_REVIEWS = 'gpucost_webhook_reviews_total{{result="{}"}}'


def _last_seen(alert: str, limit: int) -> str:
    """A timestamp just ``limit`` old a minute before ``BEGINS``, growing older, and new in the end."""
    long = BEGINS // 60 + lasts(alert) // 60 + 10
    return samples((BEGINS - 60 - limit, long), (f"{long * 60}+60", 60))


SERVICE: tuple[AlertCase, ...] = (
    AlertCase(
        "GpuCostWatchdog",
        "always",
        {},
        firing={
            0: (
                ExpectedAlert(
                    {"severity": "info"},
                    "Prometheus evaluates gpucost's rules, and Alertmanager gets them. Whoever waits for "
                    "this alert says "
                    "so when it stops.",
                    _SELF,
                ),
            )
        },
    ),
    pair(
        "GpuCostServiceDown",
        "it is gone, and back",
        {'gpucost_build_info{version="1"}': samples((1, 10), ("stale", 1), ("_", 14), (1, 20))},
        {},
        "No gpucost service is scraped. Nothing flows into the ledger, no finding changes, and nothing is "
        "posted. What "
        "Prometheus still holds is made up for later.",
        _SELF,
    ),
    AlertCase(
        "GpuCostServiceDown",
        "a restart of three scrapes is nothing",
        {
            name: samples((value, 30), ("stale", 1), ("_", 2), (value, 60))
            for name, value in (
                ('gpucost_build_info{version="1"}', 1),
                ("gpucost_ledger_up", 1),
                (f"gpucost_ledger_lag_seconds{{{_ON}}}", 60),
            )
        },
        silent=tuple(range(1_740, 2_400, 60)),
    ),
    pair(
        "GpuCostServiceDown",
        "of two services, prod's is gone, and back; one of two replicas is nothing, nor is another label",
        {
            'gpucost_build_info{instance="north"}': samples((1, 10), ("stale", 1), ("_", 14), (1, 20)),
            'gpucost_build_info{instance="south"}': always(),
            'gpucost_ledger_up{instance="south"}': always(),
            f'gpucost_ledger_lag_seconds{{{_ON}, instance="north"}}': samples(
                (60, 10), ("stale", 1), ("_", 14), (60, 20)
            ),
            'gpucost_ledger_lag_seconds{gpu_cluster="test", instance="south"}': samples(
                (60, 5), ("stale", 1)
            ),
            'gpucost_ledger_lag_seconds{gpu_cluster="test", instance="south", cluster="hub"}': samples(
                ("_", 5), (60, 200)
            ),
            'gpucost_ledger_lag_seconds{gpu_cluster="test", instance="other"}': samples(
                (60, 10), ("stale", 1)
            ),
        },
        _PROD,
        "No gpucost service for cluster prod is scraped. Nothing flows into the ledger, no finding changes, "
        "and nothing is posted. What Prometheus still holds is made up for later.",
        _SELF,
    ),
    pair(
        "GpuCostLoopStalled",
        "one service of two does not turn",
        {
            'gpucost_loop_last_turn_timestamp_seconds{instance="north"}': _last_seen(
                "GpuCostLoopStalled", int(t.LOOP_SILENT.value)
            ),
            'gpucost_loop_last_turn_timestamp_seconds{instance="south"}': samples(("0+60", 200)),
        },
        {"instance": "north"},
        "The loop of gpucost's service at north last ended a turn 36m 0s ago.",
        _SELF,
    ),
    pair(
        "GpuCostLoopStalled",
        "just as long as it may be silent, then longer",
        {
            "gpucost_loop_last_turn_timestamp_seconds": _last_seen(
                "GpuCostLoopStalled", int(t.LOOP_SILENT.value)
            )
        },
        {},
        "The loop of gpucost's service last ended a turn 36m 0s ago.",
        _SELF,
    ),
    pair(
        "GpuCostConfigReloadFailed",
        "it is wrong, and put right",
        {"gpucost_config_last_reload_successful": around("GpuCostConfigReloadFailed", 1, 0)},
        {},
        "What the files of gpucost's configuration say cannot be taken, so the service goes on with what "
        "they said before. It would not start with them.",
        _SELF,
    ),
    pair(
        "GpuCostDetectorsSilent",
        "two looks missed",
        {
            f"{_LOOKED}{{{_ON}}}": _last_seen("GpuCostDetectorsSilent", int(t.DETECTORS_SILENT.value)),
            f"gpucost_source_up{{{_ON}}}": always(),
        },
        _PROD,
        "No detector has looked at cluster prod for 31m 0s. Findings stay as they are, right or wrong.",
        _OF_PROD,
    ),
    pair(
        "GpuCostDetectorsSilent",
        "the service has just started, and they never look; then they do",
        {
            f"{_LOOKED}{{{_ON}}}": samples(("_", 35), ("2100+60", 30)),
            f"gpucost_source_up{{{_ON}}}": samples(("_", 10), (1, 90)),
        },
        _PROD,
        "No detector has looked at cluster prod since the service started. Findings stay as they are, "
        "right or wrong.",
        _OF_PROD,
    ),
    AlertCase(
        "GpuCostDetectorFailing",
        "one failure is nothing, two within half an hour are; none since",
        {_FAILED: samples((0, 30), (1, 60), (2, 5), (3, 60))},
        silent=(2_400, 5_400, 5_640),
        firing={
            5_700: (
                ExpectedAlert(
                    {"severity": "warning", **_PROD, "detector": "gang_stall"},
                    "gang_stall has failed about 2 times in 30m in cluster prod. Its findings stay as they "
                    "are, right or "
                    "wrong.",
                    _OF_PROD,
                ),
            )
        },
        resolved=(7_560,),
    ),
    pair(
        "GpuCostFindingsCutOff",
        "as many as there may be",
        {
            f'gpucost_finding_active{{{_ON}, finding="{number}"}}': always(1, 46)
            for number in range(1, int(t.FINDINGS_SHOWN.value))
        }
        | {f'gpucost_finding_active{{{_ON}, finding="0"}}': samples(("_", 10), (1, 25), ("stale", 1))},
        {},
        "500 findings are on /metrics, which is the most there may be (api.metrics_findings): cheaper ones "
        "raise no "
        "alert. gpucost findings lists them all.",
        _SELF,
    ),
    pair(
        "GpuCostTeamsCutOff",
        "a team is told as one of the others; not before",
        {"gpucost_metrics_other_teams": samples(("0", 10), (12, 25), ("0", 12))},
        {},
        "12 teams are one on /metrics, __other_teams__ (api.metrics_teams). A team's name may be what a "
        "pod's label says: name the real ones in the team rules.",
        _SELF,
    ),
    AlertCase(
        "GpuCostWebhookFailsOpen",
        "one in ten is not more than one in ten; one in five is. What users cause does not count",
        {
            _REVIEWS.format("advised"): samples(("0+9", 121), ("1088+8", 120), ("2048+9", 120)),
            _REVIEWS.format("deadline"): samples(("0+1", 121), ("122+2", 120), ("361+1", 120)),
            _REVIEWS.format("malformed"): samples(("0+0", 121), ("0+0", 120)),
        },
        silent=(7_200, 7_200 + lasts("GpuCostWebhookFailsOpen")),
        firing={
            7_260 + lasts("GpuCostWebhookFailsOpen"): (
                ExpectedAlert(
                    {"severity": "warning"},
                    "20% of the admission webhook's reviews got no advice: the service was too slow, too "
                    "busy, failed, or "
                    "knew no state. All of them are allowed.",
                    _SELF,
                ),
            )
        },
        resolved=(18_000,),
    ),
    pair(
        "GpuCostWebhookCertificateExpiring",
        "a week is enough; a minute less is not, until it is renewed",
        {
            "gpucost_webhook_certificate_expiry_timestamp_seconds": samples(
                (BEGINS - 60 + int(t.CERTIFICATE_LEFT.value), (BEGINS + int(t.AN_HOUR.value)) // 60 + 10),
                (3 * int(t.CERTIFICATE_LEFT.value), 20),
            )
        },
        {},
        "The certificate ends in 6d 22h 59m 0s and has not been renewed. After that the API server trusts "
        "the webhook no more: submissions go on without advice.",
        _SELF,
    ),
)

LEDGER: tuple[AlertCase, ...] = (
    pair(
        "GpuCostLedgerDown",
        "the database is away",
        {"gpucost_ledger_up": around("GpuCostLedgerDown", 1, 0)},
        {},
        "gpucost runs and cannot read its ledger. No window is written, and reports fail. Windows wait in "
        "Prometheus as "
        "long as it keeps them.",
        _SELF,
    ),
    pair(
        "GpuCostSourceDown",
        "of one cluster of two",
        {
            f"gpucost_source_up{{{_ON}}}": around("GpuCostSourceDown", 1, 0),
            'gpucost_source_up{gpu_cluster="test"}': always(),
        },
        _PROD,
        "gpucost cannot read the series of cluster prod from Prometheus. Windows wait until it can.",
        _OF_PROD,
    ),
    pair(
        "GpuCostLedgerLag",
        "just as far as it may be, then a second more",
        {f"gpucost_ledger_lag_seconds{{{_ON}}}": around("GpuCostLedgerLag", t.LAG, int(t.LAG.value) + 1)},
        _PROD,
        "The settled windows of cluster prod are 3h 0m 1s behind. Costs and waste of that time are in no "
        "report yet.",
        _OF_PROD,
    ),
    AlertCase(
        "GpuCostLedgerLag",
        "the service is away: its own alert says so",
        {f"gpucost_ledger_lag_seconds{{{_ON}}}": samples((20_000, 5), ("stale", 1))},
        silent=(3_000,),
    ),
    pair(
        "GpuCostSeriesRefused",
        "no job, then one",
        {f"gpucost_source_refused_jobs{{{_ON}}}": around("GpuCostSeriesRefused", 0, 1)},
        _PROD,
        "1 scrape jobs of cluster prod give series that gpucost reads and does not take from them. Nothing "
        "of it is in the ledger. Somebody forges GPU time, or a scrape job got another name.",
        _OF_PROD,
    ),
    pair(
        "GpuCostLedgerCoverageLow",
        "just enough, then a thousandth less",
        {f"gpucost_ledger_observed_ratio{{{_ON}}}": around("GpuCostLedgerCoverageLow", t.OBSERVED, 0.949)},
        _PROD,
        "94.9% of the last 24 h of cluster prod were observed. The rest is unknown, and billed to nobody.",
        _OF_PROD,
    ),
    pair(
        "GpuCostUseCoverageLow",
        "of two teams together: just enough, then less; a cluster that holds nothing lacks nothing",
        {
            f'gpucost_team_last_day_gpu_seconds{{{_ON}, owner_team="a", part="held"}}': always(500),
            f'gpucost_team_last_day_gpu_seconds{{{_ON}, owner_team="b", part="held"}}': always(500),
            f'gpucost_team_last_day_gpu_seconds{{{_ON}, owner_team="a", part="observed"}}': always(500),
            f'gpucost_team_last_day_gpu_seconds{{{_ON}, owner_team="b", part="observed"}}': around(
                "GpuCostUseCoverageLow", 400, 390
            ),
            'gpucost_team_last_day_gpu_seconds{gpu_cluster="test", owner_team="a", part="held"}': always(0),
            'gpucost_team_last_day_gpu_seconds{gpu_cluster="test", owner_team="a", part="observed"}': always(
                0
            ),
        },
        _PROD,
        "89% of the GPU time that was held in the last 24 h of cluster prod were measured. Detectors "
        "answer with not "
        "enough data where it is too little.",
        _OF_PROD,
    ),
    AlertCase(
        "GpuCostUseCoverageLow",
        "nothing at all is measured: there is no such part",
        {f'gpucost_team_last_day_gpu_seconds{{{_ON}, owner_team="a", part="held"}}': always(500)},
        firing={
            lasts("GpuCostUseCoverageLow"): (
                ExpectedAlert(
                    {"severity": "warning", **_PROD},
                    "0% of the GPU time that was held in the last 24 h of cluster prod were measured. "
                    "Detectors answer with not enough data where it is too little.",
                    _OF_PROD,
                ),
            )
        },
    ),
    pair(
        "GpuCostWasteNotAssessed",
        "as many as are always on their way, then one more",
        {
            f'gpucost_waste_windows{{{_ON}, assessment="missing"}}': around(
                "GpuCostWasteNotAssessed", t.MISSING_WINDOWS, int(t.MISSING_WINDOWS.value) + 1
            ),
            f'gpucost_waste_windows{{{_ON}, assessment="final"}}': always(700),
        },
        _PROD,
        "4 windows of cluster prod are in the ledger, and no detector has looked at them: in the waste "
        "ledger they are "
        "unknown.",
        _OF_PROD,
    ),
)

NOTIFY: tuple[AlertCase, ...] = (
    pair(
        "GpuCostNotifyWaiting",
        "just as long as it may, then longer",
        {
            'gpucost_notify_oldest_seconds{channel="ml-ops"}': around(
                "GpuCostNotifyWaiting", t.POST_WAITS, int(t.POST_WAITS.value) + 1
            ),
            'gpucost_notify_oldest_seconds{channel="mail"}': always(0),
        },
        {"channel": "ml-ops"},
        "The oldest message to channel ml-ops has waited for 30m 1s.",
        _SELF,
    ),
)

# Days: samples are an hour apart.
_GREW = samples((0, 4), (2, 60))
_AT = 4 * 3_600

DAYS: tuple[AlertCase, ...] = (
    AlertCase(
        "GpuCostWindowsLost",
        "none, then two, which is told for a day",
        {f"gpucost_windows_lost{{{_ON}}}": _GREW},
        silent=(_AT - 3_600,),
        firing={
            _AT: (
                ExpectedAlert(
                    {"severity": "warning", **_PROD},
                    "2 windows of cluster prod are not in the ledger, and Prometheus no longer holds them. "
                    "They stay "
                    "unknown: nobody is billed for them.",
                    _OF_PROD,
                ),
            )
        },
        resolved=(_AT + _DAY,),
        interval=3_600,
    ),
    AlertCase(
        "GpuCostNotifyDeadLetters",
        "none, then two, which is told for a day",
        {'gpucost_notify_dead_letters{channel="mail"}': _GREW},
        silent=(_AT - 3_600,),
        firing={
            _AT: (
                ExpectedAlert(
                    {"severity": "warning", "channel": "mail"},
                    "2 messages to channel mail were given up. Nobody has read them.",
                    _SELF,
                ),
            )
        },
        resolved=(_AT + _DAY,),
        interval=3_600,
    ),
    AlertCase(
        "GpuCostWasteNotAssessed",
        "a backlog that becomes smaller is none, however large",
        {f'gpucost_waste_windows{{{_ON}, assessment="missing"}}': samples(("900-4", 100))},
        silent=(_DAY + 3_600, 2 * _DAY),
        interval=3_600,
    ),
    AlertCase(
        "GpuCostMonthNotClosed",
        "the fifth begins and the month before is open, until somebody closes it",
        {
            'gpucost_month_closed{month="1969-12"}': samples((0, 4 * 24 + 10), (1, 20)),
            'gpucost_month_closed{month="1969-11"}': samples((1, 300)),
        },
        silent=(4 * 86_400 - 3_600, 4 * 86_400 + lasts("GpuCostMonthNotClosed") - 3_600),
        firing={
            4 * 86_400 + lasts("GpuCostMonthNotClosed"): (
                ExpectedAlert(
                    {"severity": "warning", "month": "1969-12"},
                    "1969-12 is not closed: its numbers may still change, and nobody can be billed by them.",
                    _SELF,
                ),
            )
        },
        resolved=(4 * 86_400 + 10 * 3_600,),
        interval=3_600,
    ),
)
