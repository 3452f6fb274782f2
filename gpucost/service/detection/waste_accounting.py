"""The waste ledger: windows of the ledger, looked at by the detectors once enough is known around them.

``assess`` takes windows day by day (UTC). Of a day it reads history with ``before_ms`` and ``after_ms``
around it, runs all detectors once (``evaluate``), attributes the same windows again, divides each usage line
among its buckets (``gpucost.attribution.waste``), and writes the parts: GPU milliseconds and nano-units that
add up to the line.

A window needs time on both sides: an idle stretch is one only when it has lasted, which may be hours after
the window is over. Until then its assessment is provisional and made again; then it is final, and stays. By
whole days, so that what is final is the same whether it came hour by hour or a month at once. A provisional
one may use history that the live detectors have in memory (``recent``), which reads nothing twice.

Like ingest, this looks for what is missing rather than remembering what it did: ``pending`` are the windows
without a final assessment that the source can still answer for. A new version of a window's lines takes its
assessment away, and so it is due again. A detector that failed leaves the day provisional, since it may not
fail the next time; what the source or the ledger refuses is a failure that is tried again. A window of which
the source says other lines by now than the ledger has is no failure: it is due once it was read again.

``PastServers`` tells the detectors what servers did before the history, out of the ledger in steps: whether a
server that is idle will be asked again shows only over weeks.

``gpucost.service.wiring.detection`` builds it. ``gpucost.service.detection.loop`` runs it for ``gpucost
serve``, beside the looks; ``gpucost ingest``, the demo and a report without a ledger run it once. The rule
that needs weeks of history (reserved_unused) is no part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.usage_lines import Attribution
from gpucost.attribution.waste import waste_parts
from gpucost.contract.frames import DEMAND, LINE_MEASURES, USAGE_LINES
from gpucost.detectors.engine.evaluation import RuleEvaluation, evaluate
from gpucost.detectors.inputs.activity_table import plausible
from gpucost.detectors.inputs.detector_facts import (
    ClusterHistory,
    DetectorFacts,
    GpuTimePrices,
    PastWork,
)
from gpucost.detectors.rule_settings import RuleSettings
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import (
    InputError,
    LedgerConflict,
    LinesOutdated,
    MonthClosed,
    SourceError,
)
from gpucost.domain.jobs import JobKind, WorkloadClass, workload_class
from gpucost.domain.scope import Scope
from gpucost.domain.time import DAY_MS, Window
from gpucost.ledger.db.records import WasteOfWindow, WindowInfo
from gpucost.ledger.ledger import Ledger
from gpucost.service.ingest.batch_reader import AttributionRules, attribute_windows
from gpucost.service.ingest.pipeline import OnWindow, nobody
from gpucost.service.ingest.status import WindowFailure
from gpucost.telemetry.interval_source import IntervalSource

_SERVES = sorted(kind.value for kind in JobKind if workload_class(kind) is WorkloadClass.SERVING)


@dataclass(frozen=True)
class PastServers:
    """What servers did in the ``length_ms`` before a history, in steps of ``step_ms``, from the ledger."""

    ledger: Ledger
    length_ms: int
    step_ms: int

    def window(self, until_ms: int) -> Window:
        """Whole steps; the one in which ``until_ms`` lies is among them."""
        end_ms = -(-until_ms // self.step_ms) * self.step_ms
        return Window(end_ms - max(self.length_ms // self.step_ms, 1) * self.step_ms, end_ms)

    def read(self, cluster: str, window: Window) -> PastWork | None:
        """None where the ledger cannot be cut there, as within rolled-up days, or holds nothing. Raises
        LedgerError."""
        scope, only = Scope(None, frozenset({cluster})), {"job_kind": _SERVES, "bucket": (Bucket.HELD.value,)}
        try:
            rows = self.ledger.aggregate(
                scope, window, ("namespace", "job_uid"), filters=only, step_ms=self.step_ms
            )
        except InputError:
            return None
        rows = rows[rows["job_uid"] != ""]
        return None if rows.empty else PastWork(self.step_ms, rows)


logger = logging.getLogger(__name__)

KnownFrames = tuple[ClusterFrames, Window]
_KEY = [name for name in USAGE_LINES.column_names if name not in LINE_MEASURES]


@dataclass(frozen=True)
class AssessmentOutcome:
    """How many windows were assessed, finally or provisionally, and what failed; that is tried again.
    ``outdated`` are windows of which the ledger has other lines than the source has by now: they can be
    assessed once the ledger has read them again."""

    final: int = 0
    provisional: int = 0
    failures: tuple[WindowFailure, ...] = ()
    outdated: tuple[WindowFailure, ...] = ()

    @property
    def left_out(self) -> tuple[WindowFailure, ...]:
        """Every window that is not assessed."""
        return *self.failures, *self.outdated


@dataclass(frozen=True)
class WasteAccounting:
    """A source, a ledger, the rules of attribution and of the detectors. Lengths are ms.

    Windows are assessed by the day (UTC), with ``before_ms`` and ``after_ms`` of history on either side of
    it: a final assessment is the same whether the data came hour by hour or a month at once. Until that much
    history is there, a day's windows are assessed provisionally, from what there is; ``recent`` gives history
    that is in memory already.
    """

    source: IntervalSource
    ledger: Ledger
    rules: AttributionRules
    detectors: RuleSettings
    before_ms: int
    after_ms: int
    code_version: str
    past: PastServers
    recent: Callable[[str], KnownFrames | None] = lambda cluster: None  # noqa: ARG005  nothing is in memory

    def pending(self, cluster: str, span: Window) -> tuple[WindowInfo, ...]:
        """The windows of ``span`` without a final assessment that the source can still answer for."""
        covered = self.source.covered(cluster)
        if covered is None:
            return ()
        found = self.ledger.unassessed(cluster, span)
        return tuple(info for info in found if covered.intersect(info.window) == info.window)

    def is_final(self, cluster: str, info: WindowInfo) -> bool:
        """Whether there is enough history around a window for a final assessment."""
        covered = self.source.covered(cluster)
        return covered is not None and _day_of(info).end_ms + self.after_ms <= covered.end_ms

    def assess(
        self,
        cluster: str,
        windows: Sequence[WindowInfo],
        *,
        on_window: OnWindow = nobody,
        stop: Callable[[], bool] = lambda: False,
    ) -> AssessmentOutcome:
        """Assess ``windows``, a day at a time. Raises LedgerError; an error of the source is a failure of the
        outcome."""
        final = provisional = 0
        failures: list[WindowFailure] = []
        outdated: list[WindowFailure] = []
        for _, of_day in groupby(windows, key=_day_of):
            batch = list(of_day)
            if stop():
                break
            try:
                made, refused, older = self._written(cluster, self._day(cluster, batch))
            except (InputError, LedgerConflict, MonthClosed, SourceError) as error:
                failures.append(WindowFailure.of(cluster, _span(batch), error))
                continue
            failures.extend(refused)
            outdated.extend(older)
            final += sum(each.final for each in made)
            provisional += sum(not each.final for each in made)
            for each in made:
                on_window(cluster, each.window)
        return AssessmentOutcome(final, provisional, tuple(failures), tuple(outdated))

    def _day(self, cluster: str, batch: Sequence[WindowInfo]) -> list[WasteOfWindow]:
        is_final = self.is_final(cluster, batch[0])
        frames, history = self._history(cluster, batch, is_final)
        past = self.past.read(cluster, self.past.window(history.start_ms))
        facts = replace(look(cluster, frames, history, self.rules), past=past)
        found = evaluate(facts, self.detectors)
        for failure in found.failures:
            logger.error("%s: the detector %s failed", cluster, failure.pattern, exc_info=failure.error)
        seen = plausible(frames.activity)
        parts = pd.concat(
            [
                _flat_parts(attribute_windows(frames, run, self.rules), found, seen, frames)
                for run in _without_gaps([info.window for info in batch])
            ],
            ignore_index=True,
        )
        return [
            WasteOfWindow(
                info.window,
                info.digest,
                parts[parts["window_start_ms"] == info.window.start_ms].reset_index(drop=True),
                # A rule that failed may succeed the next time.
                final=is_final and not found.failures,
            )
            for info in batch
        ]

    def _written(
        self, cluster: str, made: Sequence[WasteOfWindow]
    ) -> tuple[Sequence[WasteOfWindow], list[WindowFailure], list[WindowFailure]]:
        """Which windows the ledger took, which it refused, and which it refused since the source has learned
        of lines after they were ingested; neither stops the others of its day."""
        with suppress(InputError, LedgerConflict, MonthClosed):
            self.ledger.write_waste(cluster, made, code_version=self.code_version)
            return made, [], []
        taken, refused, outdated = [], [], []
        for each in made:
            try:
                self.ledger.write_waste(cluster, [each], code_version=self.code_version)
            except LinesOutdated as error:
                outdated.append(WindowFailure.of(cluster, each.window, error))
            except (InputError, LedgerConflict, MonthClosed) as error:
                refused.append(WindowFailure.of(cluster, each.window, error))
            else:
                taken.append(each)
        return taken, refused, outdated

    def _history(self, cluster: str, batch: Sequence[WindowInfo], is_final: bool) -> KnownFrames:
        """The day with the history around it; for a provisional assessment, the history in memory where that
        is enough."""
        covered, day, span = self.source.covered(cluster), _day_of(batch[0]), _span(batch)
        around = Window(day.start_ms - self.before_ms, day.end_ms + self.after_ms)
        recent = self.recent(cluster)
        if not is_final and recent is not None and recent[1].intersect(span) == span:
            return recent
        wanted = around if covered is None else covered.intersect(around) or span
        return self.source.history(cluster, wanted), wanted


def look(cluster: str, frames: ClusterFrames, window: Window, rules: AttributionRules) -> DetectorFacts:
    """The detectors' input for a stretch of history, without the current state."""
    history = ClusterHistory(frames, window, rules.teams, rules.catalog, rules.basis)
    return DetectorFacts(cluster, history, GpuTimePrices(history, rules.prices))


def _day_of(info: WindowInfo) -> Window:
    start_ms = info.window.start_ms - info.window.start_ms % DAY_MS
    return Window(start_ms, start_ms + DAY_MS)


def _span(batch: Sequence[WindowInfo]) -> Window:
    return Window(batch[0].window.start_ms, batch[-1].window.end_ms)


def _without_gaps(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Runs of consecutive windows: a day may lack some, or have them assessed already."""
    run: list[Window] = []
    for window in windows:
        if run and run[-1].end_ms != window.start_ms:
            yield run
            run = []
        run.append(window)
    if run:
        yield run


def _flat_parts(
    lines: Attribution, found: RuleEvaluation, activity: pd.DataFrame, frames: ClusterFrames
) -> pd.DataFrame:
    """Parts under the natural keys of their lines, in the form that the ledger takes."""
    parts = waste_parts(lines, found.pieces, activity, demand_known=DEMAND.name not in frames.lacks)
    keys = lines.flat()[_KEY].take(parts["line"].to_numpy()).reset_index(drop=True)
    return keys.assign(waste=parts["waste"], board_ms=parts["board_ms"], nano=parts["nano"])
