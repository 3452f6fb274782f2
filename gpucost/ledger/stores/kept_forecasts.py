"""Forecasts of month's ends, as they were when they were made; ``ForecastShelf`` is the part of the ledger's
facade.

Written once a day for each team, and never changed: what a forecast was worth is said by what the month cost
in the end. Deleted by the writer 400 days after they were made.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace

from sqlalchemy import delete, select

from gpucost.attribution.usage_lines import storable_text
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, Month
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.dimensions import insert_new
from gpucost.ledger.db.store_tables import KEPT_FORECAST
from gpucost.ledger.db.stored_values import check_ms

KEPT_MS = 400 * DAY_MS

K = KEPT_FORECAST.c


@dataclass(frozen=True, slots=True)
class KeptForecast:
    """What ``team`` was expected to have held in ``month`` at its end, in nano-units with the interval, by
    what was known up to ``as_of_ms``, ``days_left`` before it."""

    month: str
    team: str
    as_of_ms: int
    days_left: int
    expected_nano: int
    low_nano: int
    high_nano: int


_COLUMNS = [K[field.name] for field in fields(KeptForecast)]


class ForecastShelf:
    """A part of ``Ledger``."""

    _database: LedgerDatabase

    def keep_forecasts(self, made: Collection[KeptForecast]) -> int:
        """Keep forecasts; how many are new. One of the same month, team and instant stays as it was first.
        Names are cut to what a database can store. Raises InputError for an instant below 0."""
        rows = {(each.month, each.team, each.as_of_ms): each for each in map(_checked, made)}
        if not rows:
            return 0
        newest_ms = max(each.as_of_ms for each in made)
        with self._database.write() as connection:
            connection.execute(delete(KEPT_FORECAST).where(K.as_of_ms < newest_ms - KEPT_MS))
            months = {month for month, _, _ in rows}
            known = select(K.month, K.team, K.as_of_ms).where(K.month.in_(months))
            present = {tuple(row) for row in connection.execute(known)}
            new = [asdict(each) for key, each in rows.items() if key not in present]
            if new:
                connection.execute(insert_new(connection, KEPT_FORECAST), new)
        return len(new)

    def kept_forecasts(
        self, *, scope: Scope = EVERYTHING, month: Month | None = None
    ) -> tuple[KeptForecast, ...]:
        """Of one month or of all, of the scope's teams, by month, instant and team. They are of all clusters:
        a scope with clusters sees none."""
        if scope.clusters is not None:
            return ()
        wanted = select(*_COLUMNS).order_by(K.month, K.as_of_ms, K.team)
        if scope.teams is not None:
            wanted = wanted.where(K.team.in_(scope.teams))
        if month is not None:
            wanted = wanted.where(K.month == str(month))
        with self._database.read() as connection:
            return tuple(KeptForecast(*row) for row in connection.execute(wanted))


def _checked(given: KeptForecast) -> KeptForecast:
    for name in ("as_of_ms", "days_left"):
        check_ms(name, getattr(given, name))
    return replace(given, team=storable_text(given.team))
