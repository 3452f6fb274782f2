"""The start of every command: the settings, the ledger, the clock."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpucost.cli.terminal.exit_codes import complain, fields_as
from gpucost.domain.errors import ErrorRemark, InputError, LedgerDamaged, LedgerError, LedgerUnavailable

if TYPE_CHECKING:
    from gpucost.attribution.teams import TeamRules
    from gpucost.cli.remote.api_client import RemoteApi
    from gpucost.cli.remote.server_target import ServerTarget
    from gpucost.domain.time import Month
    from gpucost.ledger.ledger import Ledger
    from gpucost.pricing.price_book import PriceBook
    from gpucost.service.reporting.report_service import ReportService
    from gpucost.service.settings.model import Settings


def now_ms() -> int:
    """The real clock, in ms UTC. It is read here and in no other layer."""
    return time.time_ns() // 1_000_000


def refuse_later(month: Month) -> None:
    """A month that has not begun has no data. Raises InputError."""
    from gpucost.domain.time import Month

    now = now_ms()
    if month.window.start_ms >= now:
        raise InputError("MONTH", str(month), f"a month that has begun, such as {Month.of(now)}")


@dataclass(frozen=True)
class CommandContext:
    """Global options, and the objects that commands make from them."""

    config: Path | None
    debug: bool
    server: str | None = None

    @cached_property
    def settings(self) -> Settings:
        """The settings of this run. Raises ConfigError."""
        from gpucost.service.settings.loader import load_settings

        return load_settings(self.config)

    @cached_property
    def _target(self) -> ServerTarget | None:
        """The server that is used in place of a ledger: an explicit --config selects a ledger."""
        from gpucost.cli.remote.server_target import find_target

        if self.config is not None and self.server is not None:
            raise InputError(
                "--server", ErrorRemark("so is --config"), "one of the two: a server, or a ledger"
            )
        return None if self.config is not None else find_target(self.server)

    def remote(self, *, quietly: bool = False) -> RemoteApi | None:
        """The API to use in place of a ledger; None where a ledger is used. Raises InputError.

        That it is asked because of a login, which nobody sees in the command, is said once on stderr.
        """
        if self._target is None:
            return None
        if not quietly:
            self._say_login()
        from gpucost.cli.remote.api_client import RemoteApi

        return RemoteApi(self._target)

    def _say_login(self) -> None:
        from gpucost.cli.remote.server_target import SERVER_ENV

        assert self._target is not None
        is_named = self.server is not None or bool(os.environ.get(SERVER_ENV))
        if not is_named and not self._said:
            self._said.append(self._target.url)
            complain(f"as {self._target.url} says, which you are logged in to; --config FILE asks a ledger")

    @cached_property
    def _said(self) -> list[str]:
        return []

    def watching(self, *, is_named: bool, dump_option: str) -> RemoteApi | None:
        """The server that one is logged in to, for what a cluster is like now; None where an option names
        another cluster. Says on stderr that it is asked."""
        remote = None if is_named else self.remote(quietly=True)
        if remote is not None:
            complain(
                f"as {remote.url} knows the cluster; --kubeconfig FILE or {dump_option} DUMP asks another"
            )
        return remote

    def dump(self) -> str:
        """The dump that the settings name in place of a cluster, empty where they name none. Says on stderr
        that it is read."""
        found = self.settings.detectors.dump
        if found is None:
            return ""
        complain(f"of the cluster in {found}, as detectors.dump says; --kubeconfig FILE asks another")
        return str(found)

    @property
    def file(self) -> Path | None:
        """The settings file, where there is one."""
        from gpucost.service.settings.loader import CONFIG_ENV

        named = os.environ.get(CONFIG_ENV)
        return self.config or (Path(named) if named else None)

    def book(self, settings: Settings) -> PriceBook:
        """The price book of ``settings``; its stale rows are reported on stderr."""
        from gpucost.service.wiring.inputs import load_book

        book = load_book(settings.pricing.book)
        say_stale(book)
        return book

    def book_name(self, settings: Settings) -> str:
        """The file of the price book, for messages."""
        return str(settings.pricing.book or "the table that ships with gpucost (pricing.book is not set)")

    def teams_name(self, settings: Settings) -> str:
        """The file of the team rules, for messages."""
        return str(settings.teams.rules or "the team label of pods (teams.rules is not set)")

    def policy_name(self, settings: Settings) -> str:
        """The file of the charge policy, for messages."""
        return str(settings.charges.policy or "by use, idle kept by the platform (charges.policy is not set)")

    @property
    def program(self) -> tuple[str, ...]:
        """The command line that calls gpucost with the same settings."""
        return ("gpucost",) if self.config is None else ("gpucost", "--config", str(self.config))

    def why_not(self, url: str, month: Month, cluster: str | None = None) -> str:
        """The command that shows why nothing of ``month`` could be read."""
        named = () if cluster is None else ("--cluster", cluster)
        return shlex.join((*self.program, "doctor", "--prometheus", url, "--month", str(month), *named))

    def of_prometheus(self, url: str, *, waste: bool = True) -> Settings:
        """The settings, with this Prometheus for their source and OpenCost's prices where the book has none;
        with ``waste`` the detectors' settings too. Raises InputError where another server was named."""
        from gpucost.pricing.opencost_prices import ObservedPriceMode
        from gpucost.service.wiring.inputs import parse_source

        if self.server is not None:
            allowed = "one of the two: a server that has read Prometheus, or Prometheus itself"
            raise InputError("--server", ErrorRemark("so is --prometheus"), allowed)
        found = parse_source(f"prometheus:{url}", self.settings)
        detectors = {"enabled": found.detectors.enabled and waste}
        pricing = (
            {} if "opencost" in found.pricing.model_fields_set else {"opencost": ObservedPriceMode.FALLBACK}
        )
        return found.model_copy(
            update={
                "detectors": found.detectors.model_copy(update=detectors),
                "pricing": found.pricing.model_copy(update=pricing),
            }
        )

    @cached_property
    def teams(self) -> TeamRules:
        from gpucost.service.wiring.inputs import load_teams

        return load_teams(self.settings.teams.rules)

    @contextmanager
    def ledger(self, *, create: bool = False) -> Iterator[Ledger]:
        """The ledger of the settings, closed at the end; only commands that fill a ledger may ``create`` it.

        Errors of the database name the setting and the place.
        """
        from gpucost.service.wiring.ledger import open_ledger

        self.refuse_server(create=create)
        try:
            with (
                fields_as({"ledger URL": "ledger.url"}),
                open_ledger(self.settings, now_ms, create=create) as ledger,
            ):
                yield ledger
        except LedgerError as error:
            if (placed := self.placed(error)) is error:
                raise
            raise placed from error

    def placed(self, error: LedgerError) -> LedgerError:
        """An error of the ledger's database, with the setting and the place. Subclasses are refusals by name
        (a closed month, a conflict): the place adds nothing there."""
        from gpucost.service.wiring.ledger import ledger_place

        if type(error) not in (LedgerError, LedgerDamaged, LedgerUnavailable):
            return error
        return type(error)(f"ledger.url {ledger_place(self.settings)}: {error}")

    def refuse_server(self, *, create: bool = False) -> None:
        """A user who is logged in would take another ledger's answer for the server's. Commands that fill a
        ledger, like the service itself, use no server, logged in or not."""
        if self.server is None and create:
            return
        if self._target is not None:
            allowed = "--config FILE, to go to its ledger; or gpucost logout"
            raise InputError(
                "this command", ErrorRemark(f"cannot ask {self._target.url}: it needs the ledger"), allowed
            )

    @contextmanager
    def reporting(self) -> Iterator[ReportService]:
        """Reports over an existing ledger."""
        from gpucost.service.wiring.inputs import load_policy
        from gpucost.service.wiring.ledger import build_reporting

        policy = load_policy(self.settings.charges.policy, self.teams)
        with self.ledger() as ledger:
            yield build_reporting(ledger, self.teams, policy, keeps=False)


def say_stale(book: PriceBook) -> None:
    """Report the stale rows of a price book on stderr."""
    from gpucost.pricing.price_rows import WarningCode

    for warning in book.check(datetime.now(UTC).date()):
        if warning.code is WarningCode.STALE:
            complain(f"price book: {warning.detail}; see gpucost prices check")


def context_of(ctx: typer.Context) -> CommandContext:
    found = ctx.find_object(CommandContext)
    assert found is not None
    return found
