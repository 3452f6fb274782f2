"""All rules on one look at a cluster: what each found, and what of it counts when each second counts once.

``evaluate`` runs every rule that is enabled (``registry.RULES``) over the same ``DetectorFacts``: history as
frames, prices, and the state of now where somebody watches. A rule gives drafts: a subject, evidence,
episodes of GPU time that it calls wasted, and one action; or it says why it withheld one. Then claims are
settled (``waste_resolution``), and each draft becomes a ``Finding`` with what it wasted in the last 24 hours,
in GPU milliseconds and nano-units, what it wastes an hour now, and its severity by these.

Settled first, priced second, because two rules may claim the same GPU-second: a finding never shows more than
it gets. A finding that is only shown (``view_ms``) claims nothing, and is priced by the nodes it is about.

What keeps one look from going wrong as a whole:

- a rule that raises is a RuleFailure beside the findings of the others;
- a rule whose frames the source cannot give (``needs``) is withheld with the reason, and never "nothing
  found";
- a finding whose numbers a ledger cannot keep is refused by itself;
- of what is withheld 1,000 are kept per rule; findings are never left out.

Labels of subjects are looked up here, since an exemption may stand in one (``lifecycle.EXEMPT_LABEL``).

Pure. Called by ``gpucost.service.detection``: ``runner`` every five minutes for live findings, whose lives
``lifecycle`` follows from look to look; ``waste_accounting`` for windows of the ledger; ``backtest`` for
``gpucost findings rehearse``; ``job_inspection`` for the report of one job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from gpucost.cluster.views.overview import ClusterOverview
from gpucost.detectors.engine.lifecycle import EXEMPT_LABEL
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.engine.waste_resolution import resolve
from gpucost.detectors.findings import (
    Finding,
    FindingDraft,
    FindingEvidence,
    FindingSeverity,
    FindingSubject,
    FindingWaste,
    RuleDetection,
    SubjectKind,
    ViewTime,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import DetectorFacts
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.errors import InputError
from gpucost.domain.money import INT64_MAX
from gpucost.domain.time import DAY_MS, HOUR_MS, Window


class SubjectLabels:
    """Labels of jobs and nodes in the present cluster state."""

    def __init__(self, overview: ClusterOverview) -> None:
        self._overview = overview

    def of(self, draft: FindingDraft) -> Mapping[str, str]:
        """The labels of a job, or of its pods where the job has none; the labels of a node."""
        subject = draft.subject
        if subject.kind is SubjectKind.NODE:
            node = self._overview.state.node_by_name.get(subject.name)
            return {} if node is None else _exempting(node.labels)
        if subject.kind is SubjectKind.JOB:
            return self._of_job.get(subject.uid, {})
        return {}

    @cached_property
    def _of_job(self) -> Mapping[str, Mapping[str, str]]:
        state, ownership = self._overview.state, self._overview.ownership
        found: dict[str, dict[str, str]] = {}
        for pod in state.pods.values():
            if labels := _exempting(pod.meta.labels):
                found.setdefault(ownership.of(pod).job.uid, {}).update(labels)
        for uid, job in state.jobs.items():
            if labels := _exempting(job.meta.labels):
                found[uid] = {**found.get(uid, {}), **labels}
        return found


def _exempting(labels: Mapping[str, str]) -> dict[str, str]:
    """The one exemption label that counts: a tenant may write thousands."""
    return {EXEMPT_LABEL: labels[EXEMPT_LABEL]} if EXEMPT_LABEL in labels else {}


def labelled(drafts: Sequence[FindingDraft], overview: ClusterOverview | None) -> list[FindingDraft]:
    """Drafts with the labels of their subjects where the cluster state is known; labels that a rule set
    stay."""
    if overview is None:
        return list(drafts)
    labels = SubjectLabels(overview)
    return [replace(draft, labels={**labels.of(draft), **_exempting(draft.labels or {})}) for draft in drafts]


def finite(draft: FindingDraft) -> FindingDraft:
    """The draft without numbers that are not finite: these could not be read back from text."""
    view = draft.team_view
    if view is not None:
        draft = replace(draft, team_view=replace(view, evidence=_finite(view.evidence)))
    return replace(draft, evidence=_finite(draft.evidence))


def _finite(evidence: tuple[FindingEvidence, ...]) -> tuple[FindingEvidence, ...]:
    return tuple(
        replace(each, value="not known", unit="")
        if isinstance(each.value, float) and not math.isfinite(each.value)
        else each
        for each in evidence
    )


_AT_LEAST_MS = (
    (24 * HOUR_MS, FindingSeverity.HIGH),
    (8 * HOUR_MS, FindingSeverity.MEDIUM),
    (HOUR_MS, FindingSeverity.LOW),
)
_CRITICAL_PART = 0.05
MOST_WITHHELD = 1_000
"""How many withheld findings of one rule are kept, with one more that gives the number of the others: they
are for people to read, and a guard that holds for one job holds for thousands. Findings are never left out:
each claims time in the waste ledger, and the rules' thresholds decide how many there are."""
RECENT_MS = DAY_MS
"""A finding's waste is that of the last day: its cost per day, whenever it began."""


@dataclass(frozen=True, slots=True)
class RuleFailure:
    """A rule that raised; the other rules still run."""

    pattern: WastePattern
    error: Exception


@dataclass(frozen=True)
class RuleEvaluation:
    """The results of all rules. ``pieces`` (WASTE_PIECES) refer to ``findings`` by ``draft``; they cover the
    whole history, which begins at ``from_ms``, while ``wasted`` of a finding covers its last day. Findings
    that are over are included."""

    now_ms: int
    findings: tuple[Finding, ...]
    withheld: tuple[WithheldFinding, ...]
    pieces: pd.DataFrame
    failures: tuple[RuleFailure, ...] = ()
    from_ms: int = 0


def evaluate(facts: DetectorFacts, rules: RuleSettings) -> RuleEvaluation:
    """Run every enabled rule. An exception of one rule does not stop the others."""
    detections, failures = _detections(facts, rules)
    drafts = labelled([finite(draft) for each in detections for draft in each.drafts], facts.overview)
    pieces = resolve(facts.history, drafts)
    findings, refused = _storable(_findings(facts, drafts, pieces))
    withheld = tuple(each for detection in detections for each in _kept(facts, detection.withheld))
    every = (*failures, *refused)
    return RuleEvaluation(facts.now_ms, findings, withheld, pieces, every, facts.history.window.start_ms)


def _storable(findings: Sequence[Finding]) -> tuple[tuple[Finding, ...], tuple[RuleFailure, ...]]:
    """(findings whose numbers a ledger can keep, a failure for each of the others)."""
    kept, refused = list[Finding](), list[RuleFailure]()
    for each in findings:
        numbers = (each.wasted.board_ms, each.wasted.nano or 0, each.nano_per_hour or 0)
        if all(0 <= number <= INT64_MAX for number in numbers) and math.isfinite(each.boards_now):
            kept.append(each)
        else:
            error = InputError(str(each.draft.subject), numbers, "amounts of 64 bits")
            refused.append(RuleFailure(each.draft.pattern, error))
    return tuple(kept), tuple(refused)


def _detections(
    facts: DetectorFacts, rules: RuleSettings
) -> tuple[list[RuleDetection], tuple[RuleFailure, ...]]:
    found, failures = list[RuleDetection](), list[RuleFailure]()
    for pattern, rule in RULES.items():
        settings = rules.of(pattern)
        if not settings.default.enabled:
            continue
        lacking = _lacking(facts, pattern) if facts.history.frames.lacks else None
        if lacking is not None:
            found.append(RuleDetection(withheld=(lacking,)))
            continue
        try:
            found.append(rule.run(facts, settings))
        except Exception as error:  # a defect of one rule must not stop the others
            failures.append(RuleFailure(pattern, error))
    return found, tuple(failures)


def _lacking(facts: DetectorFacts, pattern: WastePattern) -> WithheldFinding | None:
    """The withheld finding of a rule that needs data which the source does not have."""
    lacks = facts.history.frames.lacks
    reasons = [lacks[spec.name] for spec in RULES[pattern].needs if spec.name in lacks]
    if not reasons:
        return None
    cluster = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
    return WithheldFinding(pattern, cluster, reasons[0], lacks_data=True)


def _kept(facts: DetectorFacts, withheld: Sequence[WithheldFinding]) -> Sequence[WithheldFinding]:
    """The first withheld findings of one rule, those that lack data first, and how many more there are."""
    if len(withheld) <= MOST_WITHHELD:
        return withheld
    kept = sorted(withheld, key=lambda each: not each.lacks_data)[:MOST_WITHHELD]
    cluster = FindingSubject(SubjectKind.CLUSTER, facts.cluster, facts.cluster)
    because = f"{len(withheld) - len(kept):,} more were held back, for reasons like those listed"
    return [*kept, WithheldFinding(withheld[0].pattern, cluster, because)]


def _findings(
    facts: DetectorFacts, drafts: Sequence[FindingDraft], pieces: pd.DataFrame
) -> tuple[Finding, ...]:
    window = facts.history.window
    recent = Window(max(window.start_ms, window.end_ms - RECENT_MS), window.end_ms)
    wasted = _wasted(facts, pieces, recent)
    capacity = _capacity_ms(facts, recent)
    served = {*pieces["draft"].tolist()}
    named = {
        (each.node, each.pod_uid, gpu) for n in served for each in drafts[n].episodes for gpu in each.gpus
    }
    return tuple(
        _finding(facts, draft, wasted.get(n, _WasteSum()), recent, capacity)
        for n, draft in enumerate(drafts)
        if n in served or not _is_of_others(draft, named)
    )


def _is_of_others(draft: FindingDraft, named: Collection[tuple[str, str, str]]) -> bool:
    """Whether it, which gets nothing, is about GPUs that others name: what these say of them is all there is
    to say then."""
    places = ((each, gpu) for each in draft.episodes for gpu in each.gpus or ("",))
    return bool(draft.episodes) and all(
        (each.node, each.pod_uid, name) in named or (each.node, each.pod_uid, gpu) in named
        for each, gpu in places
        for name in [gpu.partition("/")[0]]
    )


@dataclass(slots=True)
class _WasteSum:
    """Sums of one finding's pieces: over the last day, and of those that go on now."""

    board_ms: float = 0.0
    nano: int | None = 0
    boards_now: float = 0.0
    nano_per_hour: int | None = 0


def _wasted(facts: DetectorFacts, pieces: pd.DataFrame, recent: Window) -> Mapping[int, _WasteSum]:
    sums: dict[int, _WasteSum] = defaultdict(_WasteSum)
    now = facts.now_ms
    names = ("cluster", "node", "start_ms", "end_ms", "boards", "draft")
    for cluster, node, start, end, boards, draft in zip(
        *(pieces[name].tolist() for name in names), strict=True
    ):
        found = sums[draft]
        a, b = max(start, recent.start_ms), min(end, recent.end_ms)
        if a < b:
            found.board_ms += boards * (b - a)
            found.nano = _plus(found.nano, facts.prices.nano(cluster, node, a, b, boards))
        if end >= now:
            found.boards_now += boards
            hourly = facts.prices.nano_per_hour(cluster, node, now - 1)
            found.nano_per_hour = _plus(
                found.nano_per_hour, None if hourly is None else round(hourly * boards)
            )
    return sums


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _finding(
    facts: DetectorFacts, draft: FindingDraft, found: _WasteSum, recent: Window, capacity_ms: float
) -> Finding:
    counted = draft.view_ms is None
    if not counted:
        found = _viewed(facts, draft, recent)
    board_ms = round(found.board_ms)
    severity = max(
        (draft.at_least, _severity(board_ms, capacity_ms) if counted else FindingSeverity.INFO),
        key=lambda each: each.rank,
    )
    return Finding(
        draft,
        severity,
        FindingWaste(board_ms, found.nano, draft.formula, counted),
        found.boards_now,
        # A finding that claims nothing now has no rate, which is not the same as a rate of 0.
        found.nano_per_hour if found.boards_now > 0 else None,
    )


def _viewed(facts: DetectorFacts, draft: FindingDraft, recent: Window) -> _WasteSum:
    """The GPU time and cost of a view: each part at the price of its nodes, flavor or queue. A view claims no
    GPUs; their present number is given by the rule, at the price of the last part."""
    parts = [each.within(recent) for each in draft.view or ()]
    nano: int | None = 0
    for part in parts:
        nano = _plus(nano, facts.prices.mean_nano(facts.cluster, part))
    found = _WasteSum(sum(part.board_ms for part in parts), nano)
    if draft.view and draft.boards_now:
        last = max(draft.view, key=lambda each: each.end_ms)
        hour = ViewTime(facts.now_ms - 1, facts.now_ms, HOUR_MS * draft.boards_now, last.nodes)
        found.boards_now, found.nano_per_hour = (
            draft.boards_now,
            facts.prices.mean_nano(facts.cluster, hour),
        )
    return found


def _severity(board_ms: float, capacity_ms: float) -> FindingSeverity:
    """By antipatterns' section 5.0: 1, 8 and 24 GPU-hours in 24 hours, or 5 % of the cluster's capacity."""
    found = next((severity for least, severity in _AT_LEAST_MS if board_ms >= least), FindingSeverity.INFO)
    is_much = found is FindingSeverity.HIGH and capacity_ms > 0 and board_ms >= _CRITICAL_PART * capacity_ms
    return FindingSeverity.CRITICAL if is_much else found


def _capacity_ms(facts: DetectorFacts, recent: Window) -> float:
    """GPU time of all units that should exist, in the last day."""
    rows = facts.history.frames.capacity
    units = rows[["expected", "capacity", "allocatable"]].max(axis=1)
    time = rows["end_ms"].clip(upper=recent.end_ms) - rows["start_ms"].clip(lower=recent.start_ms)
    keys = zip(rows["cluster"], rows["node"], rows["resource"], strict=True)
    share = [float(facts.history.shares.get(key, 0)) for key in keys]
    return float((units * time.clip(lower=0) * share).sum())
