"""What every command starts from: the settings, the ledger, the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpucost.cli.exits import complain, fields_as
from gpucost.domain.errors import LedgerError, LedgerUnavailable

if TYPE_CHECKING:
    from gpucost.attribution.teams import TeamRules
    from gpucost.ledger import Ledger
    from gpucost.pricing.book import PriceBook
    from gpucost.service.reporting import Reporting
    from gpucost.service.settings import Settings


def now_ms() -> int:
    """The real clock, in ms UTC. It is read here and in no other layer."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Context:
    """Global options, and what follows from them when a command asks."""

    config: Path | None
    debug: bool

    @cached_property
    def settings(self) -> Settings:
        """The settings of this run. Raises ConfigError."""
        from gpucost.service.settings_load import load_settings

        return load_settings(self.config)

    def book(self, settings: Settings) -> PriceBook:
        """The price book of ``settings``; what is stale in it is said on stderr."""
        from gpucost.pricing.check import WarningCode
        from gpucost.service.assemble import load_book

        book = load_book(settings.pricing.book)
        for warning in book.check(datetime.now(UTC).date()):
            if warning.code is WarningCode.STALE:
                complain(f"price book: {warning.detail}; see gpucost prices check")
        return book

    def book_name(self, settings: Settings) -> str:
        """The file of the price book, for messages."""
        return str(settings.pricing.book or "the table that ships with gpucost (pricing.book is not set)")

    def teams_name(self, settings: Settings) -> str:
        """The file of the team rules, for messages."""
        return str(settings.teams.rules or "the team label of pods (teams.rules is not set)")

    @cached_property
    def teams(self) -> TeamRules:
        from gpucost.service.assemble import load_teams

        return load_teams(self.settings.teams.rules)

    @contextmanager
    def ledger(self, *, create: bool = False) -> Iterator[Ledger]:
        """The ledger of the settings, closed at the end; only what fills a ledger may ``create`` it.

        Errors of the database name the setting and the place.
        """
        from gpucost.service.assemble import ledger_place, open_ledger

        try:
            with (
                fields_as({"ledger URL": "ledger.url"}),
                open_ledger(self.settings, now_ms, create=create) as ledger,
            ):
                yield ledger
        except LedgerError as error:
            # Its subclasses are refusals by name (a closed month, a conflict): the place says nothing there.
            if type(error) not in (LedgerError, LedgerUnavailable):
                raise
            raise type(error)(f"ledger.url {ledger_place(self.settings)}: {error}") from error

    @contextmanager
    def reporting(self) -> Iterator[Reporting]:
        """Reports over a ledger that is there."""
        from gpucost.service.assemble import build_reporting

        with self.ledger() as ledger:
            yield build_reporting(ledger, self.teams)


def context_of(ctx: typer.Context) -> Context:
    found = ctx.find_object(Context)
    assert found is not None
    return found
