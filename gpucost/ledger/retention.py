"""What the ledger does not keep for ever: the hours of old months, and what was over long ago."""

from __future__ import annotations

from collections.abc import Callable

from gpucost.domain.scope import Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger import folded, folded_days, folding, pruning
from gpucost.ledger.database import Database
from gpucost.ledger.records import FoldedMonth, Forgotten

# Who folds waits for whoever closes a month or folds another, and for no writer of windows: these write to no
# closed month. No cluster is called so.
_RETENTION = "(retention)"


class Retention:
    """A part of ``Ledger``. No sum of a day, and nothing that was closed, changes."""

    _database: Database
    _now: Callable[[], int]

    def foldable(self, before_ms: int) -> tuple[FoldedMonth, ...]:
        """Closed months that ended at or before ``before_ms`` and are not folded, the oldest first, with the
        lines that they have now."""
        with self._database.read() as connection:
            return tuple(folding.plan(connection, month) for month in folding.due(connection, before_ms))

    def fold(self, month: Month, *, author: str) -> FoldedMonth:
        """Add up the windows of a closed month by UTC day, in one transaction, after it was verified in it.

        Sums by day, month and anything longer stay as they are to the last unit; the hours are gone. Days
        that a window reaches over the edge of, and those of which a sum would lose something, stay. Folding
        again changes nothing. Raises InputError for a month that is not closed, FoldRefused for one that does
        not verify.
        """
        with self._database.write(_RETENTION) as connection:
            return folding.fold(connection, month, author, self._now())

    def folded(self, month: Month) -> FoldedMonth | None:
        """None for a month that has its windows as they were written."""
        with self._database.read() as connection:
            return folded.of_month(connection, month)

    def folded_days(self, scope: Scope, window: Window) -> tuple[Window, ...]:
        """The UTC days that meet ``window`` and of which the hours are gone, in any of the clusters that
        ``scope`` sees; sorted."""
        with self._database.read() as connection:
            return folded_days.days(connection, window, scope.clusters)

    def forget(self, before_ms: int, *, dry_run: bool = False) -> Forgotten:
        """Delete findings resolved before then, with their events; messages that were sent, given up or
        overtaken before then, conversations that were over; and what Alertmanager sent before then."""
        if dry_run:
            with self._database.read() as connection:
                return pruning.count(connection, before_ms)
        with self._database.write(_RETENTION) as connection:
            return pruning.forget(connection, before_ms)

    def free_bytes(self) -> int | None:
        """Room in the file that new rows will use; None where the database has no file of ours."""
        return self._database.free_bytes()

    def vacuum(self) -> None:
        """Give that room back to the disk. It takes as much again while it runs; nobody writes meanwhile."""
        self._database.vacuum()
