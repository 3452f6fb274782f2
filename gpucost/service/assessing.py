"""The waste ledger: windows of the ledger, looked at by the detectors once enough is known around them.

A window needs time on both sides: an idle stretch is one only when it has lasted, which may be hours after
the window is over. Until then its assessment is provisional and made again; then it is final. Like ingest,
this looks for what is missing rather than remembering what it did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from gpucost.attribution.frames import Frames
from gpucost.attribution.result import Attribution
from gpucost.attribution.waste import waste_parts
from gpucost.contract.frames import LINE_MEASURES, USAGE_LINES
from gpucost.detectors.evaluate import Evaluation, evaluate
from gpucost.detectors.facts import Facts, History, Prices
from gpucost.detectors.registry import RuleSettings
from gpucost.domain.errors import GpuCostError, InputError, LedgerConflict
from gpucost.domain.time import Window
from gpucost.ledger import Ledger, WasteOfWindow, WindowInfo
from gpucost.service.pipeline import OnWindow, Rules, attribute_windows, nobody
from gpucost.service.status import Failure
from gpucost.telemetry.source import Source

logger = logging.getLogger(__name__)

Known = tuple[Frames, Window]
_KEY = [name for name in USAGE_LINES.column_names if name not in LINE_MEASURES]


@dataclass(frozen=True)
class Outcome:
    """How many windows were assessed, for good or for now, and what failed; that is tried again."""

    final: int = 0
    provisional: int = 0
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True)
class Assessing:
    """A source, a ledger, the rules of attribution and of the detectors. Lengths are ms.

    ``before_ms`` and ``after_ms`` are how much history a window is looked at with, on either side. ``recent``
    is history that somebody has in memory, which need not be read again.
    """

    source: Source
    ledger: Ledger
    rules: Rules
    detectors: RuleSettings
    before_ms: int
    after_ms: int
    batch_ms: int
    code_version: str
    recent: Callable[[str], Known | None] = lambda cluster: None  # noqa: ARG005  nothing is in memory

    def pending(self, cluster: str, span: Window) -> tuple[WindowInfo, ...]:
        """The windows of ``span`` without a final assessment that the source can still answer for."""
        covered = self.source.covered(cluster)
        if covered is None:
            return ()
        found = self.ledger.unassessed(cluster, span)
        return tuple(info for info in found if covered.intersect(info.window) == info.window)

    def assess(
        self,
        cluster: str,
        windows: Sequence[WindowInfo],
        *,
        on_window: OnWindow = nobody,
        stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        """Assess ``windows``, a batch at a time. Raises LedgerError; what a source refuses is a failure."""
        final = provisional = 0
        failures: list[Failure] = []
        for batch in self._batches(windows):
            if stop():
                break
            try:
                made = self._batch(cluster, batch)
            except (GpuCostError, LedgerConflict, InputError) as error:
                failures.append(Failure.of(cluster, _span(batch), error))
                continue
            final += sum(each.final for each in made)
            provisional += sum(not each.final for each in made)
            for each in made:
                on_window(cluster, each.window)
        return Outcome(final, provisional, tuple(failures))

    def _batch(self, cluster: str, batch: Sequence[WindowInfo]) -> list[WasteOfWindow]:
        frames, history = self._history(cluster, _span(batch))
        found = evaluate(look(cluster, frames, history, self.rules), self.detectors)
        for failure in found.failures:
            logger.error("%s: the detector %s failed", cluster, failure.pattern, exc_info=failure.error)
        lines = attribute_windows(frames, [info.window for info in batch], self.rules)
        parts = _flat_parts(lines, found)
        made = [
            WasteOfWindow(
                info.window,
                info.digest,
                parts[parts["window_start_ms"] == info.window.start_ms].reset_index(drop=True),
                # A rule that failed may not fail the next time.
                final=info.window.end_ms + self.after_ms <= history.end_ms and not found.failures,
            )
            for info in batch
        ]
        self.ledger.write_waste(cluster, made, code_version=self.code_version)
        return made

    def _history(self, cluster: str, span: Window) -> Known:
        """``span`` and what is known around it."""
        covered = self.source.covered(cluster)
        around = Window(span.start_ms - self.before_ms, span.end_ms + self.after_ms)
        wanted = around if covered is None else covered.intersect(around) or span
        recent = self.recent(cluster)
        if recent is not None and recent[1].intersect(wanted) == wanted:
            return recent
        return self.source.history(cluster, wanted), wanted

    def _batches(self, windows: Sequence[WindowInfo]) -> Iterator[list[WindowInfo]]:
        """Runs of windows without a gap, no longer than a batch."""
        batch: list[WindowInfo] = []
        for info in windows:
            fits = batch and batch[-1].window.end_ms == info.window.start_ms
            if batch and not (fits and info.window.end_ms - batch[0].window.start_ms <= self.batch_ms):
                yield batch
                batch = []
            batch.append(info)
        if batch:
            yield batch


def look(cluster: str, frames: Frames, window: Window, rules: Rules) -> Facts:
    """What detectors see of a stretch of history, without the state of now."""
    history = History(frames, window, rules.teams, rules.catalog, rules.basis)
    return Facts(cluster, history, Prices(history, rules.prices))


def _span(batch: Sequence[WindowInfo]) -> Window:
    return Window(batch[0].window.start_ms, batch[-1].window.end_ms)


def _flat_parts(lines: Attribution, found: Evaluation) -> pd.DataFrame:
    """Parts under the natural keys of their lines, as the ledger takes them."""
    parts = waste_parts(lines, found.pieces)
    keys = lines.flat()[_KEY].take(parts["line"].to_numpy()).reset_index(drop=True)
    return keys.assign(waste=parts["waste"], board_ms=parts["board_ms"], nano=parts["nano"])
