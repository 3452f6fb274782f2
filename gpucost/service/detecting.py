"""Findings, live: one evaluation of all detectors after another, and the lives of what they find."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpucost.attribution.frames import empty_frame
from gpucost.cluster.overview import Overview
from gpucost.contract.frames import WASTE_PIECES
from gpucost.detectors.evaluate import Evaluation, Failure, evaluate
from gpucost.detectors.findings import Draft, Pattern, Subject, SubjectKind, Withheld
from gpucost.detectors.lifecycle import REOPEN_MS, Change, Exemption, Life, State, advance
from gpucost.detectors.past import PastWork
from gpucost.detectors.registry import RULES
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.errors import LedgerConflict
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger import FindingEvent, FindingRecord, Ledger
from gpucost.ledger.findings import SERVICE
from gpucost.service.assessing import look
from gpucost.service.finding_records import is_readable, life_of, record_of
from gpucost.service.past_work import PastServers
from gpucost.service.pipeline import Rules
from gpucost.service.rolling import Rolling
from gpucost.telemetry.source import Source

logger = logging.getLogger(__name__)

AUTHOR = SERVICE


@dataclass(frozen=True)
class Looked:
    """What one evaluation of one cluster came to."""

    evaluation: Evaluation
    lives: tuple[Life, ...]
    changes: tuple[tuple[Change, Life], ...]

    @property
    def withheld(self) -> tuple[Withheld, ...]:
        return self.evaluation.withheld


SLOW = frozenset({Pattern.RESERVED_UNUSED})
"""Rules that look at weeks of a few frames: once an hour, since nothing of it changes faster."""
SLOW_FRAMES = ("nodes", "capacity", "observed", "quotas", "demand", "allocations")
_SLOW_EVERY_MS = HOUR_MS
_TRIES = 3


@dataclass(frozen=True)
class Detecting:
    """A source, a ledger, and the rules of attribution and detectors. Lengths are ms.

    ``history_ms`` is how much history live findings are found in, ``slow_ms`` how much SLOW rules look at.
    """

    source: Source
    ledger: Ledger
    rules: Rules
    detectors: RuleSettings
    exemptions: Sequence[Exemption]
    history_ms: int
    slow_ms: int
    overlap_ms: int
    past: PastServers
    _rolling: dict[str, Rolling] = field(default_factory=dict, compare=False, repr=False)
    _slow: dict[str, Evaluation] = field(default_factory=dict, compare=False, repr=False)
    _past: dict[str, tuple[Window, PastWork | None]] = field(default_factory=dict, compare=False, repr=False)

    def once(self, cluster: str, now_ms: int, overview: Overview | None = None) -> Looked | None:
        """Look at the cluster as it is known now, and bring its findings' lives up to date in the ledger.

        None where the source knows nothing of it. Raises SourceError and LedgerError; nothing is half done.
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

    def rolling(self, cluster: str) -> Rolling:
        """The history of a cluster in memory; the assessment of windows uses it too."""
        return self._rolling.setdefault(
            cluster, Rolling(self.source, cluster, self.history_ms, self.overlap_ms)
        )

    def _before(self, cluster: str, until_ms: int) -> PastWork | None:
        """Read anew when an hour is added: it is asked for every few minutes."""
        window = self.past.window(until_ms)
        kept = self._past.get(cluster)
        if kept is None or kept[0] != window:
            kept = self._past[cluster] = window, self.past.read(cluster, window)
        return kept[1]

    def _slow_or_failed(self, cluster: str, now_ms: int) -> Evaluation | None:
        """What the slow rules say. Where their history cannot be read, the others are not their hostages."""
        try:
            return self._slowly(cluster, now_ms)
        except Exception as error:  # a source may fail in ways of its own
            failures = tuple(Failure(pattern, error) for pattern in sorted(SLOW))
            return Evaluation(now_ms, (), (), empty_frame(WASTE_PIECES), failures, now_ms)

    def _slowly(self, cluster: str, now_ms: int) -> Evaluation | None:
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

    def _live(self, cluster: str, found: Evaluation) -> Looked:
        """Somebody may answer a finding between our reading and our writing: then all is read again."""
        for _ in range(_TRIES - 1):
            try:
                return self._written(cluster, found)
            except LedgerConflict as conflict:
                logger.info("%s: %s", cluster, conflict)
        return self._written(cluster, found)

    def _written(self, cluster: str, found: Evaluation) -> Looked:
        stored = self.ledger.live_findings(cluster, resolved_since_ms=found.now_ms - REOPEN_MS)
        # Of several lives of one fingerprint the last: ids grow.
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
        return Looked(found, step.lives, step.changes)

    def _close_unreadable(self, cluster: str, records: Sequence[FindingRecord], now_ms: int) -> None:
        """What another version wrote and this one cannot read is over; if it goes on, it is found again."""
        closed = [
            replace(record, state=State.RESOLVED, closed_at_ms=now_ms)
            for record in records
            if record.state is not State.RESOLVED
        ]
        events = [
            FindingEvent(record.fingerprint, record.episode, now_ms, AUTHOR, "unreadable")
            for record in closed
        ]
        if closed:
            logger.warning("%s: %d findings of another version are closed", cluster, len(closed))
            self.ledger.save_findings(cluster, closed, events)


def _together(fast: Evaluation, slow: Evaluation | None) -> Evaluation:
    """One evaluation, of the time of the fast one. Pieces are of the fast one: slow rules claim nothing."""
    if slow is None:
        return fast
    return replace(
        fast,
        findings=(*fast.findings, *slow.findings),
        withheld=(*fast.withheld, *slow.withheld),
        failures=(*fast.failures, *slow.failures),
    )


def _unsure(lives: Iterable[Life], found: Evaluation) -> frozenset[str]:
    """Fingerprints of which this evaluation cannot say whether they are over: their rule failed, or said of
    their subject, or of the whole cluster, that it lacks data."""
    failed = {failure.pattern for failure in found.failures}
    blind = {(each.pattern, each.variant, each.subject) for each in found.withheld if each.lacks_data}

    def is_unsure(draft: Draft) -> bool:
        whole = Subject(SubjectKind.CLUSTER, draft.subject.cluster, draft.subject.cluster)
        return draft.pattern in failed or any(
            (draft.pattern, variant, subject) in blind
            for variant in ("", draft.variant)
            for subject in (draft.subject, whole)
        )

    return frozenset(life.fingerprint for life in lives if is_unsure(life.finding.draft))
