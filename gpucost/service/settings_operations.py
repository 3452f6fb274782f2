"""Settings of how the service runs: its log, reloading, and how long what is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from gpucost.domain.configfile import wrong
from gpucost.settings.types import DurationOrZero, Group, LogLevel, between


class LogSettings(Group):
    """What the service writes to stderr."""

    format: Literal["text", "json"] = "text"
    """``text`` for people, ``json`` for a log store: one object a line, with time, level, logger and message,
    and for requests their id, route, status, duration and principal.
    """

    level: LogLevel = "info"
    """``debug``, ``info``, ``warning`` or ``error``."""

    requests: bool = True
    """Whether every request of the API is a line: method, route (never its query), status, milliseconds, who
    asked. Probes are left out.
    """


class ReloadSettings(Group):
    """Reading the settings, the price book and the team rules again, without a restart."""

    watch: Annotated[
        DurationOrZero, between(timedelta(0), timedelta(hours=1), "a duration from 0 to 1h; 0 is never")
    ] = timedelta(seconds=30)
    """How often the files are looked at, from 0 to an hour; 0 is never, and SIGHUP still reloads. What is
    wrong is logged, counted and not taken: the service goes on with what it has.
    """


def _kept(least_days: int) -> WrapValidator:
    """For ever, or long enough for whoever looks back."""
    bounds = timedelta(days=least_days), timedelta(days=3650)
    allowed = f"a duration from {least_days}d to 3650d; 0 is for ever"

    def check(value: object, duration: ValidatorFunctionWrapHandler) -> object:
        found = duration(value)
        if found and not bounds[0] <= found <= bounds[1]:
            raise wrong(value, allowed)
        return found

    return WrapValidator(check)


class RetentionSettings(Group):
    """How long what is kept. Totals of closed months never change, whatever is set here."""

    detail: Annotated[DurationOrZero, _kept(100)] = timedelta(days=400)
    """How long after its end a closed month keeps its windows as they were written; then its lines are added
    up by day. 400 days leave a year, and its comparison month, in full detail. The advisor looks back 90 from
    the last window that the ledger has of its cluster, and reads no run times out of days that were added
    up. From 100d to 3650d; 0 is for ever.
    """

    findings: Annotated[DurationOrZero, _kept(30)] = timedelta(days=400)
    """How long a resolved finding, with its events, and what was told of it are kept: from 30d to 3650d; 0 is
    for ever. Messages that were sent go after 30 days, those given up after 90, whatever is set here.
    """
