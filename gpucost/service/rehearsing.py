"""Rehearsal: what the detectors would have found on days that are over. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpucost.detectors.evaluate import Evaluation, Failure, evaluate
from gpucost.detectors.findings import Finding
from gpucost.detectors.registry import RULES, RuleSettings
from gpucost.domain.time import DAY_MS, Window
from gpucost.service.assessing import look
from gpucost.service.detecting import SLOW, SLOW_FRAMES
from gpucost.service.pipeline import Rules
from gpucost.telemetry.source import Source


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A finding as it would have been on some days: ``days`` of ``of``, its waste added up over them."""

    finding: Finding
    days: int
    of: int
    board_ms: int
    nano: int | None


@dataclass(frozen=True)
class Rehearsing:
    """A source, and the rules of attribution and detectors. Lengths are ms, as in Detecting."""

    source: Source
    rules: Rules
    detectors: RuleSettings
    history_ms: int
    slow_ms: int

    def rehearse(
        self, cluster: str, days: int, end_ms: int
    ) -> tuple[tuple[Rehearsed, ...], tuple[Failure, ...]]:
        """(what would have been found on each of the last ``days`` whole days before ``end_ms``, costliest
        first; rules that failed on any of them). Raises SourceError."""
        of, seen, failures = 0, dict[str, Rehearsed](), list[Failure]()
        for day in _days(self.source.covered(cluster), days, end_ms):
            of += 1
            for found in self._looks(cluster, day):
                failures += found.failures
                for finding in found.findings:
                    if (finding.draft.ended_ms or day.end_ms) > day.start_ms:
                        _add(seen, finding)
        counted = [replace(each, of=of) for each in seen.values()]
        order = sorted(
            counted, key=lambda each: (-(each.nano or 0), -each.board_ms, each.finding.fingerprint)
        )
        return tuple(order), tuple({failure.pattern: failure for failure in failures}.values())

    def _looks(self, cluster: str, day: Window) -> Iterator[Evaluation]:
        """As the service would have looked in the evening of the day: with all rules, and the slow ones."""
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


def _add(seen: dict[str, Rehearsed], finding: Finding) -> None:
    wasted, before = finding.wasted, seen.get(finding.fingerprint)
    if before is None:
        seen[finding.fingerprint] = Rehearsed(finding, 1, 0, wasted.board_ms, wasted.nano)
        return
    nano = None if before.nano is None or wasted.nano is None else before.nano + wasted.nano
    seen[finding.fingerprint] = Rehearsed(
        finding, before.days + 1, 0, before.board_ms + wasted.board_ms, nano
    )
