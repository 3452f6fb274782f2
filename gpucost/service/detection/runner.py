"""Live findings: evaluations of all detectors one after another, and the lives of what they find.

The last day of a cluster is kept in memory: each evaluation reads only what is new, and old time is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames, empty_frame
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.contract.frames import (
    ACTIVITY,
    ALLOCATIONS,
    EVICTIONS,
    FRAMES,
    OBSERVED,
    PROGRESS,
    SERVING,
    SIGNALS,
    WASTE_PIECES,
    FrameSpec,
)
from gpucost.detectors.engine.evaluation import RuleEvaluation, RuleFailure, evaluate
from gpucost.detectors.engine.lifecycle import (
    REOPEN_MS,
    FindingChange,
    FindingExemption,
    FindingLife,
    FindingLifeState,
    advance,
)
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import (
    FindingDraft,
    FindingSubject,
    SubjectKind,
    WastePattern,
    WithheldFinding,
)
from gpucost.detectors.inputs.detector_facts import PastWork
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.errors import LedgerConflict
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.db.records import FindingEvent, FindingRecord
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.findings import SERVICE
from gpucost.service.detection.finding_records import is_readable, life_of, record_of
from gpucost.service.detection.waste_accounting import PastServers, look
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.telemetry.interval_source import IntervalSource

# Amounts with steps of their own: they are not joined, and a step that is read again replaces itself.
_AMOUNTS = (SIGNALS, PROGRESS, ACTIVITY, SERVING, EVICTIONS)


@dataclass
class RollingWindow:
    """The history of one cluster over the last ``length_ms``.

    A source may learn of events late, so the last ``overlap_ms`` before what is new is read again and
    replaces what was kept of it. Both are multiples of the source's step.
    """

    source: IntervalSource
    cluster: str
    length_ms: int
    overlap_ms: int
    _frames: ClusterFrames | None = field(default=None, repr=False)
    _window: Window | None = field(default=None, repr=False)

    @property
    def known(self) -> tuple[ClusterFrames, Window] | None:
        """The history in memory."""
        return None if self._frames is None or self._window is None else (self._frames, self._window)

    def upto(self, end_ms: int) -> tuple[ClusterFrames, Window] | None:
        """The history up to ``end_ms``, or as far as the source covers; None where it covers nothing.

        Raises SourceError; the history in memory is unchanged then.
        """
        covered = self.source.covered(self.cluster)
        if covered is None:
            return None
        wanted = covered.intersect(Window(end_ms - self.length_ms, end_ms))
        if wanted is None:
            return None
        known = self._window
        if known is None or known.end_ms < wanted.start_ms or known.end_ms > wanted.end_ms:
            self._frames, self._window = self.source.history(self.cluster, wanted), wanted
            return self._frames, wanted
        seam = max(known.start_ms, wanted.start_ms, known.end_ms - self.overlap_ms)
        if seam >= wanted.end_ms:
            assert self._frames is not None
            return self._frames, known
        fresh = self.source.history(self.cluster, Window(seam, wanted.end_ms))
        assert self._frames is not None
        self._frames = joined(self._frames, fresh, wanted.start_ms, seam)
        self._window = wanted
        return self._frames, wanted


def joined(old: ClusterFrames, new: ClusterFrames, start_ms: int, seam_ms: int) -> ClusterFrames:
    """``old`` from ``start_ms`` to ``seam_ms``, and ``new`` from there on; intervals that go on across the
    seam become one."""
    parts: dict[str, Any] = {spec.name: _joined(spec, old, new, start_ms, seam_ms) for spec in FRAMES}
    if old.of_pods is not None or new.of_pods is not None:
        # Where either has none, no pod was divided in its time.
        before, after = _of_pods(old), _of_pods(new)
        parts["of_pods"] = _joined(ALLOCATIONS, before, after, start_ms, seam_ms)
    problems = tuple(sorted({*old.problems, *new.problems}, key=repr))
    return replace(new, **parts, problems=problems)


def _of_pods(frames: ClusterFrames) -> ClusterFrames:
    return frames if frames.of_pods is None else replace(frames, allocations=frames.of_pods)


def _joined(
    spec: FrameSpec, old: ClusterFrames, new: ClusterFrames, start_ms: int, seam_ms: int
) -> pd.DataFrame:
    before: pd.DataFrame = getattr(old, spec.name)
    after: pd.DataFrame = getattr(new, spec.name)
    if spec in _AMOUNTS:
        # An eviction belongs to the instant before its end, so a window that begins at that end does not hold
        # it.
        name, earlier = ("end_ms", 1) if spec is EVICTIONS else ("start_ms", 0)
        known, fresh = before[name] - earlier, after[name] - earlier
        kept = before[(known >= start_ms) & (known < seam_ms)]
        return pd.concat([kept, after[fresh >= seam_ms]], ignore_index=True)
    kept = before[(before["start_ms"] < seam_ms) & (before["end_ms"] > start_ms)]
    kept = kept.assign(
        start_ms=kept["start_ms"].clip(lower=start_ms), end_ms=kept["end_ms"].clip(upper=seam_ms)
    )
    return _one_where_they_touch(pd.concat([kept, after], ignore_index=True), spec, seam_ms)


def _one_where_they_touch(rows: pd.DataFrame, spec: FrameSpec, seam_ms: int) -> pd.DataFrame:
    """Rows that end and rows that begin at the seam, equal in everything else, as one row."""
    left, right = rows["end_ms"] == seam_ms, rows["start_ms"] == seam_ms
    if not left.any() or not right.any():
        return rows
    keys = [name for name in spec.column_names if name not in ("start_ms", "end_ms")]
    edge = rows[left | right].astype({name: "str" for name in keys if rows[name].dtype.name == "category"})
    groups = edge.groupby(keys, dropna=False, sort=False, observed=True)
    merged = groups.agg(start_ms=("start_ms", "min"), end_ms=("end_ms", "max"), parts=("start_ms", "size"))
    several = merged["parts"] > 2
    if spec is not OBSERVED and several.any():
        # Two rows that are equal on one side (a pod with two equal containers) are left as they are.
        return rows
    found = merged.drop(columns="parts").reset_index()[list(spec.column_names)]
    return pd.concat([rows[~(left | right)], found], ignore_index=True)


logger = logging.getLogger(__name__)

AUTHOR = SERVICE


@dataclass(frozen=True)
class DetectorRun:
    """The result of one evaluation of one cluster."""

    evaluation: RuleEvaluation
    lives: tuple[FindingLife, ...]
    changes: tuple[tuple[FindingChange, FindingLife], ...]

    @property
    def withheld(self) -> tuple[WithheldFinding, ...]:
        return self.evaluation.withheld


SLOW = frozenset({WastePattern.RESERVED_UNUSED})
"""Rules that read weeks of a few frames: once an hour, since their input does not change faster."""
SLOW_FRAMES = ("nodes", "capacity", "observed", "quotas", "demand", "allocations")
_SLOW_EVERY_MS = HOUR_MS
_TRIES = 3


@dataclass(frozen=True)
class DetectorRunner:
    """A source, a ledger, and the rules of attribution and detectors. Lengths are ms.

    Live findings are found in the last ``history_ms``, those of SLOW rules in the last ``slow_ms``.
    """

    source: IntervalSource
    ledger: Ledger
    rules: AttributionRules
    detectors: RuleSettings
    exemptions: Sequence[FindingExemption]
    history_ms: int
    slow_ms: int
    overlap_ms: int
    past: PastServers
    _rolling: dict[str, RollingWindow] = field(default_factory=dict, compare=False, repr=False)
    _slow: dict[str, RuleEvaluation] = field(default_factory=dict, compare=False, repr=False)
    _past: dict[str, tuple[Window, PastWork | None]] = field(default_factory=dict, compare=False, repr=False)

    def once(self, cluster: str, now_ms: int, overview: ClusterOverview | None = None) -> DetectorRun | None:
        """Evaluate the cluster as it is now, and update the lives of its findings in the ledger.

        None where the source holds nothing about it. Raises SourceError and LedgerError; nothing is left half
        done.
        """
        known = self.rolling(cluster).upto(now_ms)
        if known is None:
            return None
        facts = replace(
            look(cluster, *known, self.rules),
            overview=overview,
            past=self._before(cluster, known[1].start_ms),
        )
        fast = evaluate(facts, self.detectors.only(set(RULES) - SLOW))
        found = _together(fast, self._slow_or_failed(cluster, facts.now_ms))
        for failure in found.failures:
            logger.error("%s: the detector %s failed", cluster, failure.pattern, exc_info=failure.error)
        return self._live(cluster, found)

    def rolling(self, cluster: str) -> RollingWindow:
        """The history of a cluster in memory; the assessment of windows uses it too."""
        return self._rolling.setdefault(
            cluster, RollingWindow(self.source, cluster, self.history_ms, self.overlap_ms)
        )

    def _before(self, cluster: str, until_ms: int) -> PastWork | None:
        """Read again when an hour is added: it is needed every few minutes."""
        window = self.past.window(until_ms)
        kept = self._past.get(cluster)
        if kept is None or kept[0] != window:
            kept = self._past[cluster] = window, self.past.read(cluster, window)
        return kept[1]

    def _slow_or_failed(self, cluster: str, now_ms: int) -> RuleEvaluation | None:
        """The result of the slow rules. Where their history cannot be read, the other rules still run."""
        try:
            return self._slowly(cluster, now_ms)
        except Exception as error:  # a source may fail in ways of its own
            failures = tuple(RuleFailure(pattern, error) for pattern in sorted(SLOW))
            return RuleEvaluation(now_ms, (), (), empty_frame(WASTE_PIECES), failures, now_ms)

    def _slowly(self, cluster: str, now_ms: int) -> RuleEvaluation | None:
        before = self._slow.get(cluster)
        if before is not None and 0 <= now_ms - before.now_ms < _SLOW_EVERY_MS:
            return before
        covered = self.source.covered(cluster)
        window = None if covered is None else covered.intersect(Window(now_ms - self.slow_ms, now_ms))
        if window is None:
            return None
        frames = self.source.history(cluster, window, only=SLOW_FRAMES)
        found = evaluate(look(cluster, frames, window, self.rules), self.detectors.only(SLOW))
        self._slow[cluster] = found
        return found

    def _live(self, cluster: str, found: RuleEvaluation) -> DetectorRun:
        """A person may answer a finding between the read and the write: then all is read again."""
        for _ in range(_TRIES - 1):
            try:
                return self._written(cluster, found)
            except LedgerConflict as conflict:
                logger.info("%s: %s", cluster, conflict)
        return self._written(cluster, found)

    def _written(self, cluster: str, found: RuleEvaluation) -> DetectorRun:
        stored = self.ledger.live_findings(cluster, resolved_since_ms=found.now_ms - REOPEN_MS)
        # The last one of several lives of one fingerprint: ids grow.
        unreadable = [record for record in stored if not is_readable(record)]
        self._close_unreadable(cluster, unreadable, found.now_ms)
        records = {record.fingerprint: record for record in stored if record not in unreadable}
        before = [life_of(record) for record in records.values()]
        step = advance(
            before,
            found.findings,
            found.now_ms,
            exemptions=self.exemptions,
            rehearsals={pattern: self.detectors.of(pattern).default.rehearsal for pattern in RULES},
            unknown=_unsure(before, found),
            known_from_ms=found.from_ms,
        )
        known = {life.fingerprint: life for life in before}
        written = [
            record_of(cluster, life, records.get(life.fingerprint))
            for life in step.lives
            if life != known.get(life.fingerprint)
        ]
        episodes = {(record.fingerprint, record.opened_at_ms): record.episode for record in written}
        events = [
            FindingEvent(
                life.fingerprint,
                episodes[life.fingerprint, life.opened_at_ms],
                found.now_ms,
                AUTHOR,
                change.value,
            )
            for change, life in step.changes
        ]
        self.ledger.save_findings(cluster, written, events)
        return DetectorRun(found, step.lives, step.changes)

    def _close_unreadable(self, cluster: str, records: Sequence[FindingRecord], now_ms: int) -> None:
        """Close findings that another version wrote and this one cannot read; if such a finding goes on, it
        is found again."""
        closed = [
            replace(record, state=FindingLifeState.RESOLVED, closed_at_ms=now_ms)
            for record in records
            if record.state is not FindingLifeState.RESOLVED
        ]
        events = [
            FindingEvent(record.fingerprint, record.episode, now_ms, AUTHOR, "unreadable")
            for record in closed
        ]
        if closed:
            logger.warning("%s: %d findings of another version are closed", cluster, len(closed))
            self.ledger.save_findings(cluster, closed, events)


def _together(fast: RuleEvaluation, slow: RuleEvaluation | None) -> RuleEvaluation:
    """One evaluation, over the time of the fast one. The pieces are those of the fast one: slow rules claim
    no time."""
    if slow is None:
        return fast
    return replace(
        fast,
        findings=(*fast.findings, *slow.findings),
        withheld=(*fast.withheld, *slow.withheld),
        failures=(*fast.failures, *slow.failures),
    )


def _unsure(lives: Iterable[FindingLife], found: RuleEvaluation) -> frozenset[str]:
    """Fingerprints for which this evaluation cannot say whether they are over: their rule failed, or lacked
    data for their subject or for the whole cluster."""
    failed = {failure.pattern for failure in found.failures}
    blind = {(each.pattern, each.variant, each.subject) for each in found.withheld if each.lacks_data}

    def is_unsure(draft: FindingDraft) -> bool:
        whole = FindingSubject(SubjectKind.CLUSTER, draft.subject.cluster, draft.subject.cluster)
        return draft.pattern in failed or any(
            (draft.pattern, variant, subject) in blind
            for variant in ("", draft.variant)
            for subject in (draft.subject, whole)
        )

    return frozenset(life.fingerprint for life in lives if is_unsure(life.finding.draft))
