"""One alert per anti-pattern, from the metrics that the service exports of its findings.

The detectors are patient already, so an alert fires with the first evaluation that has a finding, and is gone
with the first that does not. A service that is down for a moment would resolve and raise all of them: while
it, or its ledger, cannot be read, the last known value is held, for an hour at most.
"""

from __future__ import annotations

from dataclasses import dataclass

from alerts.rules import thresholds as t
from alerts.rules.model import (
    AlertRule,
    RecordingRule,
    RuleGroup,
    last_known,
    money,
    of_service,
)
from gpucost.detectors.findings import WastePattern
from gpucost.service.metrics import FINDING_ACTIVE

LAST = "finding:gpucost_finding_active:last"
WASTED_LAST = "finding:gpucost_finding_wasted_per_hour:last"


# The finding's own severity has five steps, an alert's three. It is in the label, so that a change does not
# notify twice: one finding is one series.
SEVERITY = (
    '{{ if eq $labels.severity "critical" }}critical'
    '{{ else if or (eq $labels.severity "high") (eq $labels.severity "medium") }}warning'
    "{{ else }}info{{ end }}"
)
LABELS = {"finding_severity": "{{ $labels.severity }}"}

_JOB = (
    "d/gpucost-job?var-cluster={{ $labels.cluster | urlquery }}"
    "&var-namespace={{ $labels.namespace | urlquery }}"
    "&var-job={{ $labels.subject_name | urlquery }}"
)
_TEAM = (
    "d/gpucost-team?var-cluster={{ $labels.cluster | urlquery }}"
    "&var-team={{ $labels.subject_name | urlquery }}"
)
_NAME = "{{ $labels.subject_name | urlquery }}"
_OTHER = "?var-cluster={{ $labels.cluster | urlquery }}"
BOARD = (
    f'{{{{ if eq $labels.subject_kind "job" }}}}{_JOB}'
    f'{{{{ else if eq $labels.subject_kind "team" }}}}{_TEAM}'
    f'{{{{ else if eq $labels.subject_kind "queue" }}}}d/gpucost-queues{_OTHER}&var-queue={_NAME}'
    f'{{{{ else if eq $labels.subject_kind "node" }}}}d/gpucost-nodes{_OTHER}&var-node={_NAME}'
    f"{{{{ else }}}}d/gpucost-fleet{_OTHER}{{{{ end }}}}"
)

_SUBJECT = (
    "{{ $labels.subject_kind }} {{ with $labels.namespace }}{{ . }}/{{ end }}{{ $labels.subject_name }}"
    "{{ with $labels.team }} of team {{ . }}{{ end }}"
    '{{ if ne $labels.subject_kind "cluster" }} in cluster {{ $labels.cluster }}{{ end }}'
)
# Finding ids are numbers: no text that a user could choose gets into the query.
_MONEY = (
    f"{{{{ with printf \"{WASTED_LAST}{{finding='%s',cluster='%s'}}\" "
    "$labels.finding $labels.cluster | query }}"
    ' It wastes {{ . | first | label "currency" }} {{ . | first | value | printf "%.2f" }} an hour.{{ end }}'
)


@dataclass(frozen=True, slots=True)
class PatternText:
    """The text of a pattern: ``summary``, and ``what``, which continues after the subject's name."""

    pattern: WastePattern
    summary: str
    what: str

    @property
    def name(self) -> str:
        return self.pattern.alert

    def alert(self) -> AlertRule:
        return AlertRule(
            self.name,
            f'{LAST}{{pattern="{self.pattern.value}"}}',
            SEVERITY,
            self.summary,
            f"{_SUBJECT} {self.what} ({{{{ $labels.variant }}}}).{_MONEY} "
            "What to change: gpucost findings show {{ $labels.finding }}",
            BOARD,
            labels=LABELS,
            thresholds=(t.HELD_WHILE_AWAY,),
        )


PATTERN_ALERT_TEXTS = (
    PatternText(
        WastePattern.IDLE_ALLOCATION, "GPUs are held and do nothing.", "holds GPUs on which nothing runs"
    ),
    PatternText(
        WastePattern.OVERSIZED_REQUEST,
        "More GPU is held than the work has use for.",
        "holds more GPU than its work has use for",
    ),
    PatternText(
        WastePattern.FRAGMENTATION,
        "Enough GPUs are free, and in the wrong places.",
        "is where free GPUs lie in the wrong places",
    ),
    PatternText(
        WastePattern.GANG_STALL,
        "Members of a gang hold GPUs and wait for the others.",
        "holds GPUs while it waits for members that do not run",
    ),
    PatternText(
        WastePattern.MONOPOLY,
        "One tenant has far more than its part while others wait.",
        "has far more than its part of the GPUs while others wait",
    ),
    PatternText(
        WastePattern.QUOTA_STARVATION,
        "Work waits beside free GPUs that would fit it.",
        "waits for quota beside free GPUs that would fit its work",
    ),
    PatternText(
        WastePattern.NOT_ADVERTISED,
        "A node does not offer the GPUs that it has.",
        "is Ready and does not offer all the GPUs that it has",
    ),
    PatternText(
        WastePattern.RESERVED_UNUSED,
        "Quota is hardly ever used, and nobody borrows it.",
        "has quota that it hardly ever uses and nobody borrows",
    ),
    PatternText(
        WastePattern.PREEMPTION_WASTE,
        "Work is stopped again and again, and has to be done anew.",
        "loses work that was stopped and has to be done again",
    ),
    PatternText(
        WastePattern.CPU_ONLY_PODS,
        "Pods without GPUs keep free GPUs from being used.",
        "has free GPUs that pods without GPUs leave no CPU or memory for",
    ),
    PatternText(
        WastePattern.TOPOLOGY_SPREAD,
        "A job is spread over more of the network than it needs.",
        "is spread over more zones, racks or NVLink domains than it needs",
    ),
    PatternText(
        WastePattern.UNHEALTHY_ALLOCATED,
        "A broken GPU is still held by a pod.",
        "has a broken GPU that a pod still holds",
    ),
    PatternText(
        WastePattern.NVLINK_DOMAIN,
        "Part of an NVLink domain is reserved, and the rest is of no use to who waits.",
        "has free GPUs in an NVLink domain that jobs wait for and cannot use",
    ),
)

GROUP = RuleGroup(
    "gpucost-findings",
    (
        RecordingRule(LAST, last_known(of_service(FINDING_ACTIVE.name, *FINDING_ACTIVE.labels), LAST)),
        RecordingRule(
            WASTED_LAST,
            last_known(money("gpucost_finding_wasted_per_hour", "gpu_cluster", "finding"), WASTED_LAST),
        ),
        *(said.alert() for said in PATTERN_ALERT_TEXTS),
    ),
)
