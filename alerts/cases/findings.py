"""Findings: every pattern, changing severity, and a service that is down."""

from __future__ import annotations

from typing import NamedTuple

from alerts.cases.helpers import always, samples
from alerts.rules import thresholds as t
from alerts.rules.findings import PATTERN_ALERT_TEXTS
from alerts.rules.model import AlertCase, ExpectedAlert

_JOB = "gpucost-job?var-cluster=prod&var-namespace={}&var-job={}"
_QUEUES = "gpucost-queues?var-cluster=prod&var-queue="
_NODES = "gpucost-nodes?var-cluster=prod&var-node="
_FLEET = "gpucost-fleet?var-cluster=prod"


class _ExampleFinding(NamedTuple):
    """A finding of a pattern, and what its alert says."""

    severity: str
    alert_severity: str
    variant: str
    team: str
    namespace: str
    kind: str
    name: str
    first_sentence: str
    dashboard: str


_EXAMPLE_FINDINGS = {
    "idle_allocation": _ExampleFinding(
        *("high", "warning", "whole", "vision", "lab", "job", "segment"),
        "job lab/segment of team vision in cluster prod holds GPUs on which nothing runs (whole).",
        _JOB.format("lab", "segment"),
    ),
    "oversized_request": _ExampleFinding(
        *("medium", "warning", "fits_smaller", "nlp", "nlp", "job", "tune a&b"),
        "job nlp/tune a&b of team nlp in cluster prod holds more GPU than its work has use for "
        "(fits_smaller).",
        _JOB.format("nlp", "tune+a%26b"),
    ),
    "fragmentation": _ExampleFinding(
        *("critical", "critical", "blocked", "vision", "lab", "job", "big"),
        "job lab/big of team vision in cluster prod is where free GPUs lie in the wrong places (blocked).",
        _JOB.format("lab", "big"),
    ),
    "gang_stall": _ExampleFinding(
        *("high", "warning", "partial", "nlp", "nlp", "job", "pretrain"),
        "job nlp/pretrain of team nlp in cluster prod holds GPUs while it waits for members that do not "
        "run (partial).",
        _JOB.format("nlp", "pretrain"),
    ),
    "monopoly": _ExampleFinding(
        *("info", "info", "tenant", "", "", "queue", "llm"),
        "queue llm in cluster prod has far more than its part of the GPUs while others wait (tenant).",
        _QUEUES + "llm",
    ),
    "quota_starvation": _ExampleFinding(
        *("high", "warning", "starved", "", "", "queue", "vision"),
        "queue vision in cluster prod waits for quota beside free GPUs that would fit its work (starved).",
        _QUEUES + "vision",
    ),
    "not_advertised": _ExampleFinding(
        *("critical", "critical", "none", "", "", "node", "gpu-04"),
        "node gpu-04 in cluster prod is Ready and does not offer all the GPUs that it has (none).",
        _NODES + "gpu-04",
    ),
    "reserved_unused": _ExampleFinding(
        *("info", "info", "unused", "", "", "queue", "speech"),
        "queue speech in cluster prod has quota that it hardly ever uses and nobody borrows (unused).",
        _QUEUES + "speech",
    ),
    "preemption_waste": _ExampleFinding(
        *("low", "info", "below_threshold", "", "", "cluster", "prod"),
        "cluster prod loses work that was stopped and has to be done again (below_threshold).",
        _FLEET,
    ),
    "cpu_only_pods": _ExampleFinding(
        *("info", "info", "blocked", "", "", "node", "gpu-05"),
        "node gpu-05 in cluster prod has free GPUs that pods without GPUs leave no CPU or memory for "
        "(blocked).",
        _NODES + "gpu-05",
    ),
    "topology_spread": _ExampleFinding(
        *("info", "info", "spread", "nlp", "nlp", "job", "pretrain"),
        "job nlp/pretrain of team nlp in cluster prod is spread over more zones, racks or NVLink domains "
        "than it needs "
        "(spread).",
        _JOB.format("nlp", "pretrain"),
    ),
    "unhealthy_allocated": _ExampleFinding(
        *("medium", "warning", "xid", "", "", "node", "gpu-06"),
        "node gpu-06 in cluster prod has a broken GPU that a pod still holds (xid).",
        _NODES + "gpu-06",
    ),
    "nvlink_domain": _ExampleFinding(
        *("high", "warning", "rest", "", "", "cluster", "rack-1"),
        "cluster rack-1 has free GPUs in an NVLink domain that jobs wait for and cannot use (rest).",
        _FLEET,
    ),
}
_UP = {"gpucost_ledger_up": always()}


def _series(metric: str, pattern: str, severity: str, finding: int, more: str = "") -> str:
    about = _EXAMPLE_FINDINGS[pattern]
    pairs = (
        f'gpu_cluster="prod", pattern="{pattern}", variant="{about.variant}", severity="{severity}", '
        f'owner_team="{about.team}", namespace="{about.namespace}", '
        f'subject_kind="{about.kind}", subject_name="{about.name}", finding="{finding}", '
        f'cluster="central"'
    )
    return f"{metric}{{{pairs}{more}}}"


def _firing(pattern: str, severity: str, alert_severity: str, finding: int, money: str) -> ExpectedAlert:
    about = _EXAMPLE_FINDINGS[pattern]
    labels = {
        "severity": alert_severity,
        "finding_severity": severity,
        "cluster": "prod",
        "pattern": pattern,
        "variant": about.variant,
        "subject_kind": about.kind,
        "subject_name": about.name,
        "finding": str(finding),
        **({"team": about.team} if about.team else {}),
        **({"namespace": about.namespace} if about.namespace else {}),
    }
    summary = f"{about.first_sentence}{money} What to change: gpucost findings show {finding}"
    return ExpectedAlert(labels, summary, about.dashboard)


def _seen() -> list[AlertCase]:
    cases = []
    for number, said in enumerate(PATTERN_ALERT_TEXTS, start=1):
        about = _EXAMPLE_FINDINGS[said.pattern.value]
        severity, alert_severity = about.severity, about.alert_severity
        active = _series("gpucost_finding_active", said.pattern.value, severity, number)
        wasted = _series("gpucost_finding_wasted_per_hour_usd", said.pattern.value, severity, number)
        firing = _firing(
            said.pattern.value, severity, alert_severity, number, " It wastes USD 55.04 an hour."
        )
        cases.append(
            AlertCase(
                said.name,
                "fires with the first evaluation that sees it, and is over with the first that does not",
                {
                    **_UP,
                    active: samples(("_", 5), (1, 5), ("stale", 1)),
                    wasted: samples(("_", 5), (55.042, 5), ("stale", 1)),
                },
                silent=(240,),
                firing={300: (firing,), 540: (firing,)},
                resolved=(600,),
            )
        )
    return cases


_IDLE = "idle_allocation"
_ALERT = "GpuCostIdleAllocation"
_HELD = int(t.HELD_WHILE_AWAY.value)
_WARNING = _firing(_IDLE, "high", "warning", 17, "")
_CRITICAL = _firing(_IDLE, "critical", "critical", 17, "")
_HIGH, _WORST = (_series("gpucost_finding_active", _IDLE, severity, 17) for severity in ("high", "critical"))

CASES: tuple[AlertCase, ...] = (
    *_seen(),
    AlertCase(
        _ALERT,
        "one that becomes worse is one alert, before and after; without a price there is no amount",
        {**_UP, _HIGH: samples((1, 10), ("stale", 1)), _WORST: samples(("_", 10), (1, 20))},
        firing={540: (_WARNING,), 600: (_CRITICAL,), 660: (_CRITICAL,)},
    ),
    AlertCase(
        _ALERT,
        "medium and high are both a warning",
        {
            **_UP,
            _series("gpucost_finding_active", _IDLE, "medium", 17): samples((1, 10), ("stale", 1)),
            _HIGH: samples(("_", 10), (1, 20)),
        },
        firing={540: (_firing(_IDLE, "medium", "warning", 17, ""),), 600: (_WARNING,)},
    ),
    AlertCase(
        _ALERT,
        "the service is restarted, and the finding was solved before: what it last said is held, then gone",
        {
            "gpucost_ledger_up": samples((1, 10), ("stale", 1), ("_", 3), (1, 20)),
            _HIGH: samples((1, 5), ("stale", 1)),
            _WORST: samples(("_", 5), (1, 5), ("stale", 1)),
        },
        firing={540: (_CRITICAL,), 600: (_CRITICAL,), 780: (_CRITICAL,)},
        resolved=(840,),
    ),
    AlertCase(
        _ALERT,
        "the ledger is down for long: held as long as somebody may remember, and no longer",
        {
            "gpucost_ledger_up": samples((1, 10), (0, 100)),
            _HIGH: samples((1, 10), ("stale", 1)),
        },
        firing={540: (_WARNING,), 600: (_WARNING,), 540 + _HELD - 60: (_WARNING,)},
        resolved=(540 + _HELD + 60,),
    ),
    AlertCase(
        _ALERT,
        "another currency, and two services that say the same",
        {
            'gpucost_ledger_up{instance="a"}': always(),
            _series("gpucost_finding_active", _IDLE, "high", 17, ', instance="a"'): always(),
            _series("gpucost_finding_active", _IDLE, "high", 17, ', instance="b"'): always(),
            _series(
                "gpucost_finding_wasted_per_hour", _IDLE, "high", 17, ', currency="EUR", instance="a"'
            ): always(3.5),
        },
        firing={300: (_firing(_IDLE, "high", "warning", 17, " It wastes EUR 3.50 an hour."),)},
    ),
)
