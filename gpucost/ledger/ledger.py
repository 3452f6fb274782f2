"""``Ledger``: the one way in and out of the database of usage, waste, findings, keys and messages.

A facade: each method opens a transaction and makes one call into a wing (``usage``, ``waste``, ``stores``,
``retention``); SQL stands there and in ``sealed``, and nowhere outside ``gpucost.ledger``. Base classes hold
what has a topic of its own: RetentionStore (rollups, pruning), SealingStore (months in files),
NotificationStore (the outbox of messages), KeyRing (API keys), SessionRing (login sessions), NodeIdentities
(machines of nodes), ForecastShelf (past forecasts), JobHistory (runs of jobs), JobIndex, NameSearch (names).

What every method promises:

- Writes are one transaction: a window, a batch or a month is written whole or not at all. The same content
  again changes nothing, so a killed process is simply started again.
- Other content for a window of an open month is its next version; the older one's digest stays, and the audit
  trail says who and why. A closed month never changes: late lines are refused with a proposal (LateLines),
  corrections are adjustments beside it.
- Reads of usage take a Scope: the teams and clusters whose numbers the caller may see.
- LedgerUnavailable means "not now" (disk full, locked, connection lost), and nothing was half-written.
- SQLite and PostgreSQL give the same rows in the same order, hence the same report and the same digests.

Writers of a cluster's windows wait for one another; closing a month waits for all. Time is milliseconds UTC
and comes from ``now``, money whole nano-units.

``gpucost.service.wiring.ledger`` opens one; the pipeline, waste accounting, the detectors, reports, the API
and the commands share it, also between threads. Begin with ``write_batch`` (in) and ``aggregate`` (out).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Self

import pandas as pd

from gpucost.charges.capacity_cells import CapacityCell
from gpucost.domain.errors import DataProblem
from gpucost.domain.rates import Rate
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import Month, Window
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.records import (
    Adjustment,
    AssessmentCounts,
    AuditEntry,
    FindingEvent,
    FindingRecord,
    FindingSum,
    IngestResult,
    MonthCharges,
    MonthInfo,
    WasteOfWindow,
    WindowInfo,
    WindowVersion,
)
from gpucost.ledger.retention.month_sealing import SealingStore
from gpucost.ledger.retention.rollup import RetentionStore
from gpucost.ledger.sealed.sealed_reader import SealedStore
from gpucost.ledger.stores import findings, predictions
from gpucost.ledger.stores.api_keys import KeyRing
from gpucost.ledger.stores.kept_forecasts import ForecastShelf
from gpucost.ledger.stores.node_identities import NodeIdentities
from gpucost.ledger.stores.notifications import NotificationStore
from gpucost.ledger.stores.predictions import MOST_FORETOLD, WaitPrediction
from gpucost.ledger.stores.sessions import SessionRing
from gpucost.ledger.usage import (
    capacity_rows,
    months,
    progress_counts,
    query,
    reader,
    writer,
)
from gpucost.ledger.usage.job_index import JobIndex
from gpucost.ledger.usage.lines import WindowLines
from gpucost.ledger.usage.name_search import NameSearch
from gpucost.ledger.usage.prepared_batch import PreparedBatch, WindowContext, prepare
from gpucost.ledger.usage.run_history import JobHistory
from gpucost.ledger.waste import waste_reader, waste_writer
from gpucost.ledger.waste.waste_reader import FinalWaste


class Ledger(
    RetentionStore,
    SealingStore,
    NotificationStore,
    KeyRing,
    SessionRing,
    NodeIdentities,
    ForecastShelf,
    JobHistory,
    JobIndex,
    NameSearch,
):
    """Usage lines in a database, by window and month. One object may be shared by threads.

    Every method raises LedgerUnavailable when the database cannot be used now (disk full, locked,
    connection lost); nothing was half-written then, and the same call may simply be made again.
    """

    def __init__(self, database: LedgerDatabase, now: Callable[[], int], sealed: str = "") -> None:
        self._database = database
        self._sealed = SealedStore(sealed)
        self._now = now

    @classmethod
    def open(
        cls,
        url: str,
        *,
        now: Callable[[], int],
        wait_ms: int = 10_000,
        create: bool = True,
        sealed: str = "",
    ) -> Self:
        """Open, and create or migrate, the ledger at ``url``.

        ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql+psycopg://…``. ``now`` gives
        the time in ms UTC for what is written; ``wait_ms`` is how long to wait for another writer. Without
        ``create``, a ledger that is not there stays so. ``sealed`` is the folder or URL of sealed months,
        empty where there are none. Raises InputError for another URL, LedgerUnavailable
        when it is not there or cannot be used, LedgerTooNew when a newer gpucost has migrated it.
        """
        return cls(LedgerDatabase.open(url, wait_ms, create=create), now, sealed)

    def close(self) -> None:
        self._sealed.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing -------------------------------------------------------------------------------------

    def ingest(
        self,
        cluster: str,
        window: Window,
        lines: pd.DataFrame,
        *,
        observed_ms: int,
        rates: Mapping[str, Rate],
        source: str,
        code_version: str,
        problems: Iterable[DataProblem] = (),
        progress: pd.DataFrame | None = None,
        settle: bool = False,
        reason: str = "",
        author: str = "gpucost",
    ) -> IngestResult:
        """Write a window: ``lines`` are USAGE_LINES of this cluster and window, all of them.

        The same content again changes nothing. Other content for a window of an open month replaces it as the
        next version, with ``reason`` and ``author`` in the audit trail. ``rates`` holds every rate the lines
        name; ``progress`` is a PROGRESS frame; ``settle`` says that no more lines are expected (a settled
        window stays settled). The first rate fixes the ledger's currency.

        Raises InputError for lines that cannot be right (named), LedgerConflict for a line given twice, a
        window that overlaps another, or a rate_id with two values, LateLines for a closed month.
        """
        found = WindowLines.of_frame(cluster, window, lines, rates)
        prepared = prepare(cluster, found, [WindowContext(observed_ms, problems, progress)])
        settled = {window} if settle else set()
        [result] = self.write_batch(
            prepared, source=source, code_version=code_version, settled=settled, reason=reason, author=author
        )
        return result

    def write_batch(
        self,
        prepared: PreparedBatch,
        *,
        source: str,
        code_version: str,
        settled: Collection[Window] = (),
        reason: str = "",
        author: str = "gpucost",
    ) -> tuple[IngestResult, ...]:
        """Write all windows that ``prepare_batch`` made ready, here or in another process of this version, in
        one transaction: all of them or none.

        The same content as ``ingest`` of each of them, in a fraction of the time. ``settled`` are those for
        which no more lines are expected. Results are in the order of the windows. Raises as ``ingest`` does,
        for the first window that is refused; then none is written.
        """
        origin = writer.IngestOrigin(source, code_version, reason, author, self._now())
        with self._database.write(prepared.cluster) as connection:
            return writer.ingest(connection, prepared, origin, settled)

    def settle(self, cluster: str, window: Window) -> None:
        """open -> settled; nothing when it is settled or closed. Raises InputError for no such window."""
        with self._database.write(cluster) as connection:
            writer.settle(connection, cluster, window)

    def close_month(
        self,
        month: Month,
        *,
        author: str,
        min_coverage: Fraction,
        reason: str | None = None,
        charges: MonthCharges | None = None,
        state: str | None = None,
        more: Sequence[str] = (),
    ) -> MonthInfo:
        """Close a month for good, with a digest over its lines and the month closed before it.

        ``charges`` are kept with it. Raises LedgerConflict where the month is not in the ``state``
        (``month_state``) that they were computed from; CloseRefused, with the list, when a window is missing
        or open, a cluster's coverage is below ``min_coverage``, or the caller knows ``more``, unless there is
        a ``reason``: it goes into the audit trail with the list. Closing again changes nothing.
        """
        with self._database.write() as connection:
            return months.close(
                connection,
                month,
                author=author,
                min_coverage=min_coverage,
                reason=reason,
                now_ms=self._now(),
                charges=charges,
                state=state,
                more=more,
            )

    def adjust(
        self,
        month: Month,
        team: str,
        nano: int,
        board_ms: int,
        reason: str,
        author: str,
        reference: str,
        job_uid: str = "",
    ) -> Adjustment:
        """Correct a closed month by a line of its own. The same again (by reference) changes nothing.

        Raises MonthOpen, InputError when a text is empty, LedgerConflict for a reference with other values.
        """
        with self._database.write() as connection:
            return months.adjust(
                connection,
                month,
                team=team,
                nano=nano,
                board_ms=board_ms,
                reason=reason,
                author=author,
                reference=reference,
                job_uid=job_uid,
                now_ms=self._now(),
            )

    def note(self, author: str, action: str, subject: str, detail: str) -> bool:
        """Add to the audit trail what changes no line of the ledger. What ``author`` did in the same words
        within a day is there once, so that nobody fills the trail by asking again; then False. Texts are cut
        to what a database can store."""
        with self._database.write() as connection:
            return writer.note(connection, author, action, subject, detail, self._now())

    def write_waste(
        self,
        cluster: str,
        assessments: Sequence[WasteOfWindow],
        *,
        code_version: str,
        reason: str = "",
        author: str = "gpucost",
    ) -> tuple[bool, ...]:
        """Write the waste of windows, in one transaction: of all of them or of none.

        Returns whether each changed: the same content again changes nothing. A provisional assessment is
        replaced; a final one stays, unless there is a ``reason``, which goes into the audit trail, and then
        what replaces it is final too. A new version of a window's lines removes its assessment.

        Raises InputError for a window that is not in the ledger, and for parts (named) that are negative or
        of no line of capacity; LinesOutdated for more than their line has, or for parts of a line that the
        ledger does not have of the window; LedgerConflict when a window has other lines than were
        assessed, or other waste that is final; MonthClosed for a change in a closed month.
        """
        origin = waste_writer.AssessmentOrigin(code_version, reason, author, self._now())
        with self._database.write(cluster) as connection:
            return waste_writer.write(connection, cluster, assessments, origin)

    # --- reading what was used -----------------------------------------------------------------------

    def aggregate(
        self,
        scope: Scope,
        window: Window,
        dims: Sequence[str],
        *,
        filters: Mapping[str, Collection[str]] | None = None,
        step_ms: int | None = None,
        categories: bool = False,
    ) -> pd.DataFrame:
        """Sums over the lines of ``window``, one row per value of ``dims`` (any of DIMENSIONS, or none).

        ``team_rule`` is one more of them: the text of the rule that gave the holder its team when the window
        was written, empty where no pod held and where it was not recorded.

        Columns: the dims (str), ``step_start_ms`` when ``step_ms`` is given, then MEASURES. ``nano`` sums
        what has a price and is null when nothing has one; ``unpriced_ms`` is the GPU time without one;
        signals are null where none was observed; ``first_ms`` and ``last_ms`` are the extremes. Sorted by
        dims in code-point order, then by step. A scope with teams sees their held and over-committed lines;
        one with clusters what is of these.

        ``filters`` keep the lines whose dimension has one of the values. With ``categories`` the dims are of
        that type, which is faster where there are many rows. Whole days are read from their sums where steps
        are of days and nothing is asked of nodes or pods. Raises InputError for an unknown dimension, and
        when an edge of ``window`` or of a step cuts a window of the ledger (named).
        """
        with self._reading() as connection:
            return query.aggregate(
                connection, scope, window, dims, filters or {}, step_ms, self._sealed, categories=categories
            )

    def cells(self, scope: Scope, window: Window) -> Iterator[CapacityCell]:
        """All capacity of ``window``, by pool (a cluster's GPUs of one model) and window of the ledger, in
        that order; over-committed time is left out. A scope with teams sees their held time. All is read at
        once; cells are made one by one, since a month of them is large.

        Raises InputError when an edge of ``window`` cuts a window of the ledger (named).
        """
        with self._reading() as connection:
            return capacity_rows.cells(connection, scope, window, self._sealed)

    def waste(
        self,
        scope: Scope,
        window: Window,
        dims: Sequence[str],
        *,
        filters: Mapping[str, Collection[str]] | None = None,
        step_ms: int | None = None,
    ) -> pd.DataFrame:
        """Where the capacity of ``window`` went: one row per value of ``dims`` and bucket of waste.

        Columns: the dims, ``step_start_ms`` when ``step_ms`` is given, ``waste``, then WASTE_MEASURES, as in
        ``aggregate``. Every GPU-millisecond of capacity is in one row: over ``waste``, rows add up to
        what ``aggregate`` says of the same lines, over-committed ones left out. Held and unallocated time of
        windows without an assessment (see ``assessed``) is unknown. Sorted by dims, step, order of Waste. A
        scope with teams sees their held time. Raises InputError as ``aggregate`` does.
        """
        with self._reading() as connection:
            return waste_reader.waste(connection, scope, window, dims, filters or {}, step_ms, self._sealed)

    def job_window(self, scope: Scope, job_uid: str) -> Window | None:
        """From the first to the last ledger window with a line of this job; None when the scope sees none."""
        with self._database.read() as connection:
            return query.job_window(connection, scope, job_uid)

    def job_clusters(self, scope: Scope, job_uid: str) -> tuple[str, ...]:
        """The clusters that have lines of this job, sorted. Several only where one is a clone of another."""
        with self._database.read() as connection:
            return query.job_clusters(connection, scope, job_uid)

    def progress(self, scope: Scope, window: Window, job_uid: str | None = None) -> pd.DataFrame:
        """What jobs counted in ``window``, or one job: a row of COUNT_COLUMNS for each job, team and name.

        ``amount`` (float64) is what its ``pods`` pods counted; ``counted_*`` is what all its pods held in
        the windows in which any did, ``held_board_ms`` what they held in all. Sorted by all of that.
        """
        with self._reading() as connection:
            return progress_counts.progress(connection, scope, window, job_uid, self._sealed)

    def problems(self, scope: Scope, window: Window) -> tuple[DataProblem, ...]:
        """Problems recorded with the windows inside ``window``, each once, their board_ms added, sorted.

        A scope with teams sees those about its own pods and jobs.
        """
        with self._reading() as connection:
            return query.problems(connection, scope, window, self._sealed)

    def adjustments(self, scope: Scope, month: Month) -> tuple[Adjustment, ...]:
        """Adjustments of a month, of the scope's teams, in the order they were made. They belong to no
        cluster: a scope with clusters sees none."""
        with self._database.read() as connection:
            return months.adjustments(connection, scope, month)

    # --- reading the state of the ledger (no team's usage) -------------------------------------------

    @property
    def currency(self) -> str | None:
        """ISO 4217 code of every amount in this ledger; None before the first priced window."""
        with self._database.read() as connection:
            return reader.currency(connection)

    def mark(self) -> str:
        """A text that changes whenever any process has written: while it is the same, so is the result of
        every other read. It may change without a reason."""
        return self._database.mark()

    def clusters(self, *, scope: Scope = EVERYTHING) -> tuple[str, ...]:
        """Names of the clusters that have windows, sorted."""
        with self._database.read() as connection:
            return reader.clusters(connection, scope)

    def extent(self, cluster: str | None = None, *, scope: Scope = EVERYTHING) -> Window | None:
        """From the start of the first window to the end of the last, of one cluster or all; or None."""
        with self._database.read() as connection:
            return reader.extent(connection, scope, cluster)

    def frontier(self, cluster: str) -> int | None:
        """End of the unbroken run of settled windows, in ms: where the service goes on. None without one.

        The run starts at the cluster's first window. A closed month counts as unbroken.
        """
        with self._database.read() as connection:
            return reader.frontier(connection, cluster)

    def windows(
        self, window: Window, cluster: str | None = None, *, scope: Scope = EVERYTHING
    ) -> tuple[WindowInfo, ...]:
        """The ledger's windows that meet ``window``, by cluster and start."""
        with self._database.read() as connection:
            return reader.windows(connection, scope, window, cluster)

    def unassessed(self, cluster: str, span: Window) -> tuple[WindowInfo, ...]:
        """Windows that meet ``span`` and whose waste can still be written and is not final; oldest first.

        Those of closed months are left out: they do not change.
        """
        with self._database.read() as connection:
            return waste_reader.unassessed(connection, cluster, span)

    def assessed(
        self, window: Window, cluster: str | None = None, *, scope: Scope = EVERYTHING
    ) -> AssessmentCounts:
        """How many of the windows that meet ``window`` have waste that fits their lines."""
        with self._database.read() as connection:
            return waste_reader.assessed(connection, scope, window, cluster)

    def final_waste(self, cluster: str, known: Collection[int], *, most: int) -> FinalWaste:
        """Where capacity went in at most ``most`` windows whose waste is final, the oldest first, without
        those that start at ``known`` (ms). For a caller that adds up the time of all teams as windows become
        final.
        """
        with self._reading() as connection:
            return waste_reader.final_waste(connection, cluster, known, most, self._sealed)

    def rates(self, rate_ids: Collection[str]) -> dict[str, Rate]:
        """The rates of these ids, as they were applied; ids that the ledger does not know are left out."""
        with self._database.read() as connection:
            return reader.rates(connection, rate_ids)

    def month(self, month: Month, *, scope: Scope = EVERYTHING) -> MonthInfo:
        """Whether a month is closed, when and by whom. A month is closed for all clusters at once: its digest
        and the reason are of all of them, and hidden from a scope with clusters."""
        with self._database.read() as connection:
            return months.info(connection, month, scope)

    def close_blockers(
        self, month: Month, min_coverage: Fraction, *, scope: Scope = EVERYTHING
    ) -> tuple[str, ...]:
        """The reasons for which ``close_month`` would refuse, one sentence each; empty when the month is
        ready. With the clusters of a scope, the reasons in these clusters."""
        with self._database.read() as connection:
            return months.blockers(connection, month, min_coverage, scope)

    def history(self, scope: Scope, cluster: str, window: Window) -> tuple[WindowVersion, ...]:
        """Every version of a window, oldest first. Raises LedgerError unless the scope sees all teams of its
        cluster."""
        with self._database.read() as connection:
            return reader.history(connection, scope, cluster, window)

    def audit(self, scope: Scope) -> tuple[AuditEntry, ...]:
        """The audit trail, oldest first. Raises LedgerError unless the scope sees everything."""
        with self._database.read() as connection:
            return reader.audit(connection, scope)

    # --- findings ------------------------------------------------------------------------------------

    def live_findings(
        self, cluster: str, *, resolved_since_ms: int | None = None
    ) -> tuple[FindingRecord, ...]:
        """Every finding of a cluster that is not resolved, and those resolved at or after a time; by id."""
        with self._database.read() as connection:
            return findings.live(connection, cluster, resolved_since_ms)

    def save_findings(
        self, cluster: str, records: Sequence[FindingRecord], events: Sequence[FindingEvent] = ()
    ) -> tuple[FindingRecord, ...]:
        """Write what an evaluation found, in one transaction; the records as they stand now, in their order.

        Records without an id are added. Events are of findings by fingerprint and episode, given along or
        already in the ledger. Names are cut to what a database can store. Raises LedgerConflict, and nothing
        is written, when a finding is in the ledger already, or has changed since it was read (by a person, or
        another process that evaluates): the caller reads ``live_findings`` again, and decides again.
        """
        with self._database.write(cluster) as connection:
            return findings.save(connection, cluster, records, events)

    def findings(
        self,
        scope: Scope,
        *,
        cluster: str | None = None,
        states: Collection[str] | None = None,
        patterns: Collection[str] | None = None,
        teams: Collection[str] | None = None,
        severities: Collection[str] | None = None,
        since_ms: int | None = None,
        subject_uid: str | None = None,
        limit: int = 100,
        after: tuple[int | None, int] | None = None,
    ) -> tuple[FindingRecord, ...]:
        """A page of at most ``limit`` (1 to 1,000) findings, the most expensive first, those without a price
        last.

        ``since_ms``: last seen then or later. ``after`` is (nano, id) of the last one of the previous page. A
        scope with teams sees theirs; findings without a team are for those who see everything.
        """
        filters = findings.FindingFilters(cluster, states, patterns, teams, severities, since_ms, subject_uid)
        with self._database.read() as connection:
            return findings.find(connection, scope, filters, limit, after)

    def finding_sums(
        self,
        scope: Scope,
        *,
        cluster: str | None = None,
        states: Collection[str] | None = None,
        patterns: Collection[str] | None = None,
        teams: Collection[str] | None = None,
        since_ms: int | None = None,
    ) -> tuple[FindingSum, ...]:
        """The findings that ``findings`` would list, added up by pattern, team and state, in that order."""
        filters = findings.FindingFilters(cluster, states, patterns, teams, None, since_ms)
        with self._database.read() as connection:
            return findings.sums(connection, scope, filters)

    def finding(self, scope: Scope, finding_id: int) -> FindingRecord | None:
        """The finding; None when the scope sees none with this id."""
        with self._database.read() as connection:
            return findings.get(connection, scope, finding_id)

    def finding_events(self, scope: Scope, finding_id: int) -> tuple[FindingEvent, ...]:
        """The events of a finding, oldest first. Raises InputError when the scope sees no finding with this
        id."""
        with self._database.read() as connection:
            return findings.events(connection, scope, finding_id)

    def acknowledge(self, scope: Scope, finding_id: int, author: str, note: str = "") -> FindingRecord:
        """Record that the author knows of a finding. A muted finding stays muted.

        Raises InputError for an id that the scope does not see, an empty author or a note of more than 1,000
        characters; LedgerConflict when the finding is resolved.
        """
        with self._database.write(self._cluster_of(scope, finding_id)) as connection:
            return findings.acknowledge(connection, scope, finding_id, author, note, self._now())

    def mute(
        self, scope: Scope, finding_id: int, author: str, until_ms: int, reason: str = ""
    ) -> FindingRecord:
        """Send nothing about a finding until then, at most a year. Raises as ``acknowledge`` does."""
        with self._database.write(self._cluster_of(scope, finding_id)) as connection:
            return findings.mute(connection, scope, finding_id, author, until_ms, reason, self._now())

    def unmute(self, scope: Scope, finding_id: int, author: str, reason: str = "") -> FindingRecord:
        """Restore the state before the mute; nothing when it is not muted. Raises InputError as
        ``acknowledge`` does."""
        with self._database.write(self._cluster_of(scope, finding_id)) as connection:
            return findings.unmute(connection, scope, finding_id, author, reason, self._now())

    def _cluster_of(self, scope: Scope, finding_id: int) -> str:
        """The cluster whose writers to wait for. The cluster of a finding never changes."""
        with self._database.read() as connection:
            return findings.require(connection, scope, finding_id).cluster

    # --- wait predictions ----------------------------------------------------------------------------

    def foretell(self, cluster: str, given: Sequence[WaitPrediction]) -> int:
        """Record the first predictions of waits; how many are new. A workload that has one already keeps it.
        Predictions that were asked for more than 90 days ago are deleted. Names are cut to what a database
        can store. Raises InputError for a uid that is empty or not text, and for numbers below 0."""
        with self._database.write(cluster) as connection:
            return predictions.write(connection, cluster, given, self._now())

    def score_foretold(
        self, cluster: str, *, started_ms: Mapping[str, int], gone_ms: Mapping[str, int]
    ) -> int:
        """Record when workloads with a prediction started, by uid, or went without a start. A recorded
        outcome stays. Returns how many changed."""
        with self._database.write(cluster) as connection:
            return predictions.score(connection, cluster, started_ms, gone_ms)

    def foretold(
        self, cluster: str, *, most: int = MOST_FORETOLD, scope: Scope = EVERYTHING
    ) -> tuple[WaitPrediction, ...]:
        """Predictions of all workloads that still wait, and of the others the ``most`` (1 to 5,000) that
        asked last; oldest first. Of the teams in ``scope``."""
        with self._database.read() as connection:
            return predictions.read(connection, scope, cluster, most)
