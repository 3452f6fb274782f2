"""What a contract commits and costs over time, exactly: any window is the difference of two instants.

Cost up to an instant is a sum of pieces, each an amount that is recognised evenly from one instant to
another and rounded down to a nano-unit; so the windows of any partition add up to the whole, to the
nano-unit. A payment by the calendar month is one piece per month: February costs what January costs, over
fewer hours. Months, days and hours are those of UTC: a local day of 25 hours is 25 hours.

A change in the middle of a contract's life never reaches back: what was recognised before it stays. A new end
spreads what is left of the purchase over the time that is left; an amount is spread from the change on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from gpucost.charges.contract_terms import ContractTerms
from gpucost.domain.configfile import END
from gpucost.domain.money import NANO, round_half_even
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window

_STEP_MS = {"hour": HOUR_MS, "day": DAY_MS}


@dataclass(frozen=True, slots=True)
class CostPiece:
    """``nano`` recognised evenly over ``span``, as far as ``stops_ms``, and due at ``due_ms``."""

    nano: int
    span: Window
    due_ms: int
    stops_ms: int = END

    def until(self, instant_ms: int) -> int:
        """What of it is recognised before ``instant_ms``."""
        passed = min(max(min(instant_ms, self.stops_ms) - self.span.start_ms, 0), self.span.length_ms)
        return self.nano * passed // self.span.length_ms


def months_of(span: Window) -> Iterator[Window]:
    """The calendar months of ``span`` in UTC, the first and the last cut at its edges."""
    month = Month.of(span.start_ms)
    while month.window.start_ms < span.end_ms:
        cut = month.window.intersect(span)
        if cut is not None:
            yield cut
        month = month.next()


@dataclass(frozen=True)
class ContractSchedule:
    """The schedule of one contract, or of a planned one as if its term were ``term``."""

    terms: ContractTerms
    term: Window

    @classmethod
    def of(cls, terms: ContractTerms) -> ContractSchedule:
        return cls(terms, terms.term)

    # --- time ------------------------------------------------------------------------------------------

    def period(self, instant_ms: int) -> Window:
        """The period that ``instant_ms``, which is in the term, belongs to, cut at the edges of the term."""
        whole = self._whole_period(instant_ms)
        return Window(max(whole.start_ms, self.term.start_ms), min(whole.end_ms, self.term.end_ms))

    def _whole_period(self, instant_ms: int) -> Window:
        per = self.terms.per
        if per == "term":
            return self.term
        if per == "month":
            return Month.of(instant_ms).window
        step = _STEP_MS[per]
        start = instant_ms // step * step
        return Window(start, start + step)

    # --- what is committed -----------------------------------------------------------------------------

    def promised(self, period: Window) -> int:
        """The whole quantity of a period: GPU-ms, or nano-units for spend."""
        return sum(self._part(period, segment, value) for segment, value in self._segments)

    def committed(self, period: Window) -> int:
        """What of it is paid used or not: all of it, but for take-or-pay."""
        return self._floor(self.promised(period))

    def _floor(self, promised: int) -> int:
        percent = self.terms.take_or_pay
        return promised if percent is None else promised * percent // (100 * NANO)

    def _part(self, period: Window, segment: Window, value: int) -> int:
        cut = period.intersect(segment)
        if cut is None:
            return 0
        if self.terms.gpus is not None:
            return value * cut.length_ms
        # A period that the term cuts has its part of the quantity; parts of a period add up to it.
        whole = self._whole_period(cut.start_ms)
        start, end = cut.start_ms - whole.start_ms, cut.end_ms - whole.start_ms
        return value * end // whole.length_ms - value * start // whole.length_ms

    @cached_property
    def _segments(self) -> tuple[tuple[Window, int], ...]:
        """From change to change: the number of GPUs, or the quantity of a whole period in GPU-ms or nano."""
        name = self.terms.quantity
        found, value = [(self.term.start_ms, getattr(self.terms, name))], getattr(self.terms, name)
        for change in self.terms.changes:
            changed = getattr(change, name)
            if changed is not None:
                value = changed
                found.append((change.at, value))
        edges = [*(start for start, _ in found), self.term.end_ms]
        scale = HOUR_MS if name == "gpu_hours" else 1
        return tuple(
            (Window(start, end), value * scale // NANO if name == "gpu_hours" else value)
            for (start, end), (_, value) in zip(pairwise(edges), found, strict=True)
            if start < end
        )

    # --- what it costs ---------------------------------------------------------------------------------

    def cost(self, period: Window) -> int:
        """Nano-units that a period, or what ``period`` cuts out of it, costs, used or not."""
        if self._is_priced:
            return self._priced(self.committed(period))
        return self._until(period.end_ms) - self._until(period.start_ms)

    def due(self, window: Window) -> int:
        """Nano-units that fall due in ``window``: what its invoices say. What is paid by the hour or the day
        is due as it goes, a price per GPU-hour at the start of its period."""
        cut = window.intersect(self.term)
        if cut is None:
            return 0
        if self._is_priced:
            return sum(self.cost(period) for period in self.periods(cut) if period.start_ms >= cut.start_ms)
        once = (*self._bought, *self._monthly)
        due = [piece for piece in once if cut.start_ms <= piece.due_ms < cut.end_ms]
        total = sum(self._in_term(piece) for piece in due)
        if cut.start_ms == self.term.start_ms:
            total += self.terms.residual  # paid like the rest, and never written off
        return total + sum(piece.until(cut.end_ms) - piece.until(cut.start_ms) for piece in self._running)

    def periods(self, window: Window) -> Iterator[Window]:
        """The periods that begin in ``window``, and the one that it begins in."""
        at = window.start_ms
        while at < window.end_ms:
            period = self.period(at)
            yield period
            at = period.end_ms

    @property
    def _is_priced(self) -> bool:
        """Whether the quantity itself says what is paid."""
        return not self.terms.has_payments

    def _priced(self, quantity: int) -> int:
        if self.terms.is_spend:
            return quantity
        return round_half_even(quantity * (self.terms.price or 0), HOUR_MS)

    def _until(self, instant_ms: int) -> int:
        return sum(piece.until(instant_ms) for piece in self._recognised)

    def _in_term(self, piece: CostPiece) -> int:
        return piece.until(self.term.end_ms) - piece.until(self.term.start_ms)

    @cached_property
    def _recognised(self) -> tuple[CostPiece, ...]:
        """The pieces as the contract's way of spreading wants them."""
        spread = self.terms.spread
        if spread == "cash":
            bought = (replace(piece, span=self._month(piece.due_ms)) for piece in self._bought)
            return (*bought, *self._monthly, *self._running)
        if spread == "as_paid":
            return (*self._bought, *self._monthly, *self._running)
        changed = {change.at for change in self.terms.changes}
        later = [piece for piece in self._bought if piece.due_ms in changed]
        level = [piece for piece in self._bought if piece.due_ms not in changed]
        total = sum(self._in_term(piece) for piece in (*level, *self._monthly, *self._running))
        return (CostPiece(total, self.term, self.term.start_ms), *later)

    def _month(self, instant_ms: int) -> Window:
        found = Month.of(instant_ms).window.intersect(self.term)
        assert found is not None  # what is due is due in the term
        return found

    @cached_property
    def _bought(self) -> tuple[CostPiece, ...]:
        """What is paid once, from when it is paid to the end."""
        terms, start = self.terms, self.term.start_ms
        end = terms.end if terms.changes else self.term.end_ms
        found = [CostPiece(terms.upfront - terms.residual, Window(start, end), start)]
        for change in terms.changes:
            if change.end is not None:
                if terms.spread == "as_paid":
                    found = [part for piece in found for part in _stretched(piece, change.at, change.end)]
                end = change.end
            if change.amount:
                found.append(CostPiece(change.amount, Window(change.at, end), change.at))
        return tuple(found)

    @cached_property
    def _monthly(self) -> tuple[CostPiece, ...]:
        """An amount for each calendar month; of the first and the last, the term has only its part."""
        return tuple(
            CostPiece(payment.amount, Month.of(month.start_ms).window, month.start_ms)
            for payment in self.terms.recurring
            if payment.every == "month"
            for month in months_of(self.term)
        )

    @cached_property
    def _running(self) -> tuple[CostPiece, ...]:
        """What is paid by the hour or the day: pieces of whole steps, which a change of the end only cuts."""
        found = []
        for payment in self.terms.recurring:
            if payment.every != "month":
                step, start = _STEP_MS[payment.every], self.term.start_ms
                steps = -(-self.term.length_ms // step)
                found.append(CostPiece(payment.amount * steps, Window(start, start + steps * step), start))
        return tuple(found)


def _stretched(piece: CostPiece, at_ms: int, end_ms: int) -> Iterator[CostPiece]:
    """``piece`` with what is left of it at ``at_ms`` spread until ``end_ms``; both parts were due at once."""
    if piece.stops_ms <= at_ms:
        yield piece
    else:
        yield replace(piece, stops_ms=at_ms)
        yield CostPiece(piece.nano - piece.until(at_ms), Window(at_ms, end_ms), piece.due_ms)
