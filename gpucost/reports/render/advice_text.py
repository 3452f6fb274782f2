"""The outcome of a job and its cost per hour, in the words that every screen and message uses."""

from __future__ import annotations

from gpucost.advisor.model.answers import JobSuggestion, SchedulingDecision, WaitEstimate, about, bounds
from gpucost.reports.base.display import money, price


def after(suggestion: JobSuggestion, currency: str) -> str:
    """The advisor's prediction for the changed manifest: ``now, USD 98.32/h``."""
    words = outcome(suggestion.decision, suggestion.wait)
    hourly = suggestion.price_per_hour
    return words if hourly is None or not currency else f"{words}, {per_hour(hourly, currency)}"


def outcome(decision: SchedulingDecision, wait: WaitEstimate | None) -> str:
    """``now``, ``waits about 3 h (p90 9 h)``."""
    if decision is not SchedulingDecision.WAITS:
        return decision.value
    return "waits" if wait is None else f"waits {range_of(wait)}"


def range_of(wait: WaitEstimate) -> str:
    """``about 3 h (p10 1 h, p90 9 h)``; beyond the horizon, as longer than that."""
    if wait.p50_ms is None:
        early = "" if wait.p10_ms is None else f" (p10 {about(wait.p10_ms)})"
        return f"longer than {about(wait.horizon_ms)}{early}, which is as far as was simulated"
    return f"about {about(wait.p50_ms)} ({bounds(wait)})"


def per_hour(nano: int, currency: str) -> str:
    """``USD 98.32/h``."""
    return f"{amount(nano, currency)}/h"


def amount(nano: int, currency: str) -> str:
    """Two decimals; more where these would show an amount above 0 as 0."""
    shown = money(nano)
    return f"{currency} {price(nano) if nano and not shown.strip('-0.') else shown}"
