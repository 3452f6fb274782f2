"""Backtest: what the detectors would have found on past days. Nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucost.detectors.engine.evaluation import RuleEvaluation, RuleFailure, evaluate
from gpucost.detectors.engine.registry import RULES
from gpucost.detectors.findings import Finding, WastePattern
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.time import DAY_MS, Window
from gpucost.service.detection.runner import SLOW, SLOW_FRAMES
from gpucost.service.detection.waste_accounting import look
from gpucost.service.ingest.batch_reader import AttributionRules
from gpucost.telemetry.interval_source import IntervalSource


@dataclass(frozen=True, slots=True)
class BacktestHit:
    """A finding of the backtest: seen on ``days`` of the ``of`` days, its waste added up over them."""

    finding: Finding
    days: int
    of: int
    board_ms: int
    nano: int | None


@dataclass(frozen=True, slots=True)
class BacktestMiss:
    """What a detector would have withheld, why, and how often over all days."""

    pattern: WastePattern
    because: str
    lacks_data: bool
    times: int


@dataclass(frozen=True, slots=True)
class BacktestOutcome:
    """What would have been found, the costliest first; what would have been withheld, by pattern and the most
    frequent first; and the detectors that failed on any day."""

    findings: tuple[BacktestHit, ...]
    withheld: tuple[BacktestMiss, ...]
    failures: tuple[RuleFailure, ...]


@dataclass(frozen=True)
class DetectorBacktest:
    """A source, and the rules of attribution and detectors. Lengths are ms, as in DetectorRunner."""

    source: IntervalSource
    rules: AttributionRules
    detectors: RuleSettings
    history_ms: int
    slow_ms: int

    def rehearse(self, cluster: str, days: int, end_ms: int) -> BacktestOutcome:
        """Hits and misses on the last ``days`` whole days before ``end_ms``. Raises SourceError."""
        looked = [*_days(self.source.covered(cluster), days, end_ms)]
        seen, failures = dict[str, _BacktestedFinding](), list[RuleFailure]()
        unsaid = Counter[tuple[WastePattern, str, bool]]()
        for day in looked:
            for found in self._looks(cluster, day):
                failures += found.failures
                unsaid.update((each.pattern, each.because, each.lacks_data) for each in found.withheld)
                for finding in found.findings:
                    if (finding.draft.ended_ms or day.end_ms) > day.start_ms:
                        _add(seen, finding, day)
        order = sorted(
            (each.counted(len(looked)) for each in seen.values()),
            key=lambda each: (-(each.nano or 0), -each.board_ms, each.finding.fingerprint),
        )
        withheld = [BacktestMiss(*key, times) for key, times in unsaid.items()]
        return BacktestOutcome(
            tuple(order),
            tuple(sorted(withheld, key=lambda each: (each.pattern, -each.times, each.because))),
            tuple({failure.pattern: failure for failure in failures}.values()),
        )

    def _looks(self, cluster: str, day: Window) -> Iterator[RuleEvaluation]:
        """Evaluations as the service would have made them in the evening of the day: with all rules, the slow
        ones included."""
        for length_ms, only, patterns in (
            (self.history_ms, None, set(RULES) - SLOW),
            (self.slow_ms, SLOW_FRAMES, SLOW),
        ):
            covered = self.source.covered(cluster)
            window = (
                None if covered is None else covered.intersect(Window(day.end_ms - length_ms, day.end_ms))
            )
            if window is not None:
                frames = self.source.history(cluster, window, only=only)
                yield evaluate(look(cluster, frames, window, self.rules), self.detectors.only(patterns))


def _days(covered: Window | None, days: int, end_ms: int) -> Iterator[Window]:
    """Whole days before ``end_ms`` whose end the source covers, the oldest first."""
    last = end_ms - end_ms % DAY_MS
    for back in range(days, 0, -1):
        day = Window(last - back * DAY_MS, last - (back - 1) * DAY_MS)
        inside = None if covered is None else covered.intersect(day)
        if inside is not None and inside.end_ms == day.end_ms:
            yield day


@dataclass(slots=True)
class _BacktestedFinding:
    """A finding so far: its last version, the days it was found on, and its waste over all of them."""

    finding: Finding
    days: set[int] = field(default_factory=set)
    board_ms: int = 0
    nano: int | None = 0

    def counted(self, of: int) -> BacktestHit:
        return BacktestHit(self.finding, len(self.days), of, self.board_ms, self.nano)


def _add(seen: dict[str, _BacktestedFinding], finding: Finding, day: Window) -> None:
    """A finding may occur several times on one day, for one stretch after another: that counts as one day."""
    wasted, known = finding.wasted, seen.setdefault(finding.fingerprint, _BacktestedFinding(finding))
    known.finding = finding
    known.days.add(day.start_ms)
    known.board_ms += wasted.board_ms
    known.nano = None if known.nano is None or wasted.nano is None else known.nano + wasted.nano
