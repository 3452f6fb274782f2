"""Messages as people get them: what the docs show, and what tests of renderers begin with.

Most are written by hand. A composer's own message can stand in for any of them in ``SAMPLES``.
"""

from __future__ import annotations

from gpucost.advisor.model.answers import (
    Advice,
    AdviceSubject,
    JobSuggestion,
    SchedulingDecision,
    SchedulingLayer,
    SuggestedChange,
    SuggestedChangeKind,
    WaitEstimate,
)
from gpucost.advisor.model.redaction import AnswerReader
from gpucost.domain.time import HOUR_MS, MINUTE_MS, parse_instant
from gpucost.notify.alertmanager import parse
from gpucost.notify.compose.advice import of_advice
from gpucost.notify.compose.alert import of_group
from gpucost.notify.compose.links import MessageLinks
from gpucost.notify.message import (
    ChartBar,
    MessageChart,
    MessageFact,
    MessageLink,
    MessageSection,
    MessageTone,
    NotificationMessage,
)

FOOTER = "gpucost · cluster prod-eu1 · 3 Nov 2026, 09:25 UTC"

PATCH = """\
# kubectl -n vision patch job train-resnet --type merge --patch-file suspend.yaml
spec:
  suspend: true
"""

REQUEST = """\
spec:
  pytorchReplicaSpecs:
    Master:
      template:
        spec:
          containers:
            - name: pytorch
              resources:
                limits:
                  nvidia.com/gpu: "2"
"""

IDLE = NotificationMessage(
    title="Idle: train-resnet holds 8 GPUs and uses none",
    summary="Since 06:10 UTC, USD 98.40 so far, USD 726.00 a day until it ends.",
    tone=MessageTone.WARNING,
    facts=(
        MessageFact("Team", "vision"),
        MessageFact("Job", "vision / train-resnet (Job)"),
        MessageFact("Costs", "USD 30.25 an hour, USD 98.40 so far"),
        MessageFact("Held", "8 × H100 80GB on gpu-node-17"),
        MessageFact("Use", "0% for 3 h 15 min, seen in 99% of the time"),
        MessageFact("Owner", "alice@example.com"),
    ),
    sections=(
        MessageSection(
            title="What to do",
            text="The main process waits for input. Suspend the job and its GPUs go to the 2 jobs that wait "
            "for them; or end it, if nobody needs the result.",
            code=PATCH,
        ),
    ),
    links=(
        MessageLink("Open the finding", "https://gpucost.example.com/findings/8f31c2"),
        MessageLink("Dashboard of the job", "https://grafana.example.com/d/gpucost-job?var-namespace=vision"),
        MessageLink("Runbook", "https://runbooks.example.com/idle_allocation"),
    ),
    footer=FOOTER,
    mentions=True,
)

RESOLVED = NotificationMessage(
    title="Resolved: train-resnet has given its 8 GPUs back",
    summary="It was idle for 3 h 40 min and cost USD 110.92.",
    tone=MessageTone.GOOD,
    facts=(
        MessageFact("Team", "vision"),
        MessageFact("Job", "vision / train-resnet (Job)"),
        MessageFact("Ended", "suspended by alice@example.com, 09:50 UTC"),
        MessageFact("Saved", "USD 726.00 a day"),
    ),
    links=(MessageLink("Open the finding", "https://gpucost.example.com/findings/8f31c2"),),
    footer="gpucost · cluster prod-eu1 · 3 Nov 2026, 09:50 UTC",
)

# As Alertmanager posts it for alerts/rules/service.py.
_SOURCE_DOWN = {
    "version": "4",
    "groupKey": '{}:{alertname="GpuCostSourceDown"}',
    "status": "firing",
    "receiver": "gpucost",
    "groupLabels": {"alertname": "GpuCostSourceDown"},
    "commonLabels": {"alertname": "GpuCostSourceDown", "severity": "warning"},
    "commonAnnotations": {
        "summary": "gpucost cannot read its source.",
        "runbook_url": "RUNBOOKS/GpuCostSourceDown",
        "dashboard_url": "DASHBOARDS/d/gpucost-self",
    },
    "externalURL": "https://alertmanager.example.com",
    "alerts": [
        {
            "status": "firing",
            "labels": {
                "alertname": "GpuCostSourceDown",
                "severity": "warning",
                "cluster": cluster,
                "gpu_cluster": cluster,
            },
            "annotations": {
                "summary": "gpucost cannot read its source.",
                "description": f"gpucost cannot read the series of cluster {cluster} from Prometheus. "
                "Windows wait until it can.",
                "runbook_url": "RUNBOOKS/GpuCostSourceDown",
                "dashboard_url": f"DASHBOARDS/d/gpucost-self?var-cluster={cluster}",
            },
            "startsAt": since,
        }
        for cluster, since in (("prod-eu1", "2026-11-03T07:20:00Z"), ("prod-us1", "2026-11-03T07:22:00Z"))
    ],
}
_LINKS = MessageLinks(
    "https://gpucost.example.com", "https://grafana.example.com", "https://runbooks.example.com"
)
ALERTS = of_group(parse(_SOURCE_DOWN), _LINKS, received_ms=0).message

_WAIT = WaitEstimate(50 * MINUTE_MS, 2 * HOUR_MS, 168 * HOUR_MS, "", 40)
_ADVICE = Advice(
    AdviceSubject("workload", "nlp", "llm-eval", "uid"),
    SchedulingDecision.WAITS,
    SchedulingLayer.QUOTA,
    "WaitingForQuota",
    "waits about 50 min (p90 2 h): queue nlp has 2 of 8 GPUs left",
    ("quota: 6 GPUs short",),
    "kueue",
    "Kueue 0.19.2",
    "nlp",
    wait=_WAIT,
    suggestions=(
        JobSuggestion(
            "fewer-gpus",
            "2 GPUs in place of 8: the last 14 runs used 2",
            SuggestedChange(
                SuggestedChangeKind.MANIFEST, "pytorchjob/llm-eval", REQUEST, (), "kubectl apply -f -"
            ),
            SchedulingDecision.NOW,
            price_per_hour=14_880_000_000,
        ),
    ),
)
_READER = AnswerReader(lambda _: False, lambda _: False, lambda _: False, lambda _: False)


def _advice() -> NotificationMessage:
    notice = of_advice(
        _ADVICE,
        _READER,
        cluster="prod-eu1",
        workload_uid="uid",
        team="nlp",
        since_ms=parse_instant("2026-11-03T09:25:00Z"),
        links=_LINKS,
        currency="USD",
    )
    assert notice is not None
    return notice.message


ADVICE = _advice()

_DAYS = ("Mon 26", "Tue 27", "Wed 28", "Thu 29", "Fri 30", "Sat 31", "Sun 1")
_WORK = (1180, 1232, 1204, 1296, 1088, 640, 590)
_IDLE = (180, 96, 132, 88, 240, 410, 428)
_OVER = (120, 118, 126, 122, 104, 60, 58)

DIGEST = NotificationMessage(
    title="Week 44: team vision spent USD 37,412 and wasted USD 8,065",
    summary="22% of what was held brought nothing, 4 points more than the week before. Three actions bring "
    "USD 5,910 a week back.",
    tone=MessageTone.INFO,
    facts=(
        MessageFact("Cost", "USD 37,412.08 (+6.1%)"),
        MessageFact("Wasted", "USD 8,064.51 (22%)"),
        MessageFact("Held", "9,512.0 GPU-hours"),
        MessageFact("Month so far", "USD 4,981.20 of USD 150,000.00"),
    ),
    sections=(
        MessageSection(
            title="Three actions that bring most back",
            items=(
                "USD 3,212 a week: end notebooks that hold a GPU over the weekend (6 of them)",
                "USD 1,874 a week: ask for 4 GPUs instead of 8 in train-resnet, which never uses more",
                "USD 824 a week: let segment-anything checkpoint before it is preempted (11 restarts)",
            ),
        ),
        MessageSection(
            title="Where the GPU-hours went",
            chart=MessageChart(
                title="GPU-hours held, per day",
                unit="GPU-hours",
                series=("productive", "idle", "oversized"),
                colours=("productive", "idle", "oversized"),
                bars=tuple(
                    ChartBar(day, parts, f"{sum(parts):,}")
                    for day, parts in zip(_DAYS, zip(_WORK, _IDLE, _OVER, strict=True), strict=True)
                ),
                upright=True,
            ),
        ),
        MessageSection(
            title="What was wasted",
            chart=MessageChart(
                title="Wasted, by cause",
                unit="USD",
                series=("USD",),
                colours=("accent",),
                bars=(
                    ChartBar("Idle", (4716,), "USD 4,716 (58%)"),
                    ChartBar("Oversized", (2121,), "USD 2,121 (26%)"),
                    ChartBar("Preempted", (824,), "USD 824 (10%)"),
                    ChartBar("Gang stall", (403,), "USD 403 (5%)"),
                ),
            ),
        ),
    ),
    links=(
        MessageLink("Report of the week", "https://gpucost.example.com/reports/2026-W44?team=vision"),
        MessageLink("Dashboard of the team", "https://grafana.example.com/d/gpucost-team?var-team=vision"),
    ),
    footer="gpucost · 26 Oct to 1 Nov 2026, UTC · team vision",
)

MONTH = NotificationMessage(
    title="October 2026 is closed: USD 612,480.17",
    summary="The ledger of October is final. What comes later is booked as an adjustment.",
    tone=MessageTone.GOOD,
    facts=(
        MessageFact("Cost", "USD 612,480.17 (+2.4%)"),
        MessageFact("Teams", "11"),
        MessageFact("Wasted", "USD 118,204.90 (19%)"),
        MessageFact("Not observed", "0.3% of the time"),
    ),
    sections=(
        MessageSection(
            title="Where the capacity went",
            chart=MessageChart(
                title="Capacity of October, by cluster",
                unit="GPU-hours",
                series=("held", "unallocated", "unavailable", "unknown"),
                colours=("held", "unallocated", "unavailable", "unknown"),
                bars=(
                    ChartBar("prod-eu1", (142_330, 21_804, 3_120, 560), "167,814"),
                    ChartBar("prod-us1", (88_412, 9_050, 1_204, None), "98,666 seen"),
                    ChartBar("research", (20_115, 9_433, 212, 0), "29,760"),
                ),
            ),
        ),
    ),
    links=(MessageLink("Report of October", "https://gpucost.example.com/reports/2026-10"),),
    footer="gpucost · all clusters · 3 Nov 2026, 00:10 UTC",
)

SAMPLES: dict[str, NotificationMessage] = {
    "finding": IDLE,
    "resolved": RESOLVED,
    "alerts": ALERTS,
    "advice": ADVICE,
    "digest": DIGEST,
    "month": MONTH,
}
