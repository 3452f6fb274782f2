"""Once a day: days of an earlier release are added up, closed months that are old enough are rolled up or
moved into files, rows past their retention are deleted, and what is kept of each day is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpucost.domain.errors import LedgerError
from gpucost.domain.time import DAY_MS, MINUTE_MS, SECOND_MS, Month
from gpucost.ledger.db.records import MonthRollup, MonthSeal, PruningResult
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention.rollup import DayAddedUp
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.settings.model import RetentionSettings
from gpucost.settings.types import milliseconds

logger = logging.getLogger(__name__)

AUTHOR = "gpucost"
# After a start, other loops have more urgent writes.
_FIRST_MS = 10 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class RetentionRun:
    """The retention of one ledger. ``now`` is the clock in ms UTC."""

    ledger: Ledger
    settings: RetentionSettings
    now: Callable[[], int]

    def foldable(self) -> tuple[MonthRollup, ...]:
        """Months that are due, with their number of lines; none where detail is kept for ever."""
        kept_ms = milliseconds(self.settings.detail)
        return self.ledger.foldable(self.now() - kept_ms) if kept_ms else ()

    def fold(self, author: str = AUTHOR) -> Iterator[MonthRollup | LedgerError]:
        """Roll up what is due, the oldest first; a month that fails stays as it is, and the next follows."""
        for plan in self.foldable():
            try:
                yield self.ledger.fold(plan.month, author=author)
            except LedgerError as error:
                yield error

    def sealable(self) -> tuple[Month, ...]:
        """Months that are due to move into files; none where no month is."""
        kept_ms = milliseconds(self.settings.seal)
        return self.ledger.sealable(self.now() - kept_ms) if kept_ms else ()

    def seal(self, author: str = AUTHOR) -> Iterator[MonthSeal | LedgerError]:
        """Move what is due, the oldest first, each month in transactions of its own; a month that fails stays
        as it is, and the next follows."""
        for month in self.sealable():
            try:
                yield self.ledger.seal(month, author=author)
            except LedgerError as error:
                yield error

    def forget(self, *, dry_run: bool = False) -> PruningResult:
        kept_ms = milliseconds(self.settings.findings)
        if not kept_ms:
            return PruningResult(0, 0, 0, 0, 0)
        return self.ledger.forget(self.now() - kept_ms, dry_run=dry_run)


class RetentionLoop:
    """``wait`` pauses for seconds, or less when a stop is requested, and says whether one was. ``daily`` is
    called first, and writes what is kept of each day."""

    def __init__(
        self,
        retaining: RetentionRun,
        status: LoopStatus,
        *,
        wait: Callable[[float], bool],
        daily: Callable[[], object] = lambda: None,
    ) -> None:
        self._daily = daily
        self._retaining = retaining
        self._status = status
        self._wait = wait

    def run(self) -> None:
        """Runs until a stop is requested; a day or month that is being added up is finished first."""
        pause_ms = _FIRST_MS
        while not self._wait(pause_ms / SECOND_MS):
            self.turn()
            pause_ms = DAY_MS

    def turn(self) -> None:
        """Every failure is logged and counted (gpucost_errors_total), and tried again the next day; it holds
        up nothing that comes after it."""
        for step in (self._daily, self._add_up_days, self._fold, self._seal, self._forget):
            self._guarded(step)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except LedgerError as error:
            self._failed(error)
        except Exception as error:
            logger.exception("retention: unexpected error")
            self._status.failed(error)

    def _add_up_days(self) -> None:
        done = 0
        for each in self._retaining.ledger.add_up_days():
            done += each.done
            if not each.done:
                logger.warning("%s", not_added_up(each))
            if self._wait(0):
                break
        if done:
            logger.info("%s", days_added_up(done))

    def _fold(self) -> None:
        for each in self._retaining.fold():
            if isinstance(each, LedgerError):
                self._failed(each)
            else:
                logger.info("%s", fold_message(each))

    def _seal(self) -> None:
        for each in self._retaining.seal():
            if isinstance(each, LedgerError):
                self._failed(each)
            else:
                logger.info("%s", seal_message(each))
                for reason in each.left:
                    logger.warning("%s", left_message(reason))
            if self._wait(0):
                return

    def _forget(self) -> None:
        forgotten = self._retaining.forget()
        if forgotten != PruningResult(0, 0, 0, 0, 0):
            logger.info("forgotten: %s", forgotten_words(forgotten))

    def _failed(self, error: LedgerError) -> None:
        logger.error("retention: %s", error)
        self._status.failed(error)


def days_added_up(count: int) -> str:
    return f"{count:,} days of usage added up: reports of days and longer read the sums"


def not_added_up(day: DayAddedUp) -> str:
    """What becomes of a day that has no sums."""
    return f"the usage of {day.cluster} {day.day} cannot be added up: reports read its lines"


def fold_message(fold: MonthRollup) -> str:
    return (
        f"{fold.month} folded by day: {fold.lines_before:,} usage lines became {fold.lines:,}, "
        f"{fold.waste_before:,} waste lines {fold.waste_lines:,}; digest {fold.digest}"
    )


def seal_message(seal: MonthSeal) -> str:
    files = f"{seal.files:,} file" + "s" * (seal.files != 1)
    lines = f"{seal.lines:,} usage line" + "s" * (seal.lines != 1)
    return f"{seal.month} sealed: {lines} in {files} of {seal.size / 2**20:,.1f} MiB; digest {seal.digest}"


def left_message(reason: str) -> str:
    """What is to be done about a file that no list names and that could not be removed."""
    return f"in no list of sealed months, counted by other programs, and not to be removed now: {reason}"


def planned(fold: MonthRollup) -> str:
    return (
        f"{fold.month} would be folded by day: {fold.lines_before:,} usage lines, "
        f"{fold.waste_before:,} waste lines"
    )


def forgotten_words(forgotten: PruningResult) -> str:
    return (
        f"{forgotten.findings:,} resolved findings with {forgotten.events:,} events, "
        f"{forgotten.posts:,} messages, {forgotten.conversations:,} conversations, "
        f"{forgotten.alert_groups:,} alert groups"
    )
