"""Moving closed months into files and back: all of a month's lines or none, proven before they go.

``seal`` verifies the month, writes its files, reads every one again and compares it with the rows to the last
value, and only then, in one transaction, looks at the files once more, registers them and deletes the rows. A
process that is killed before leaves the month as it was, and files that nobody names, which the next seal
removes. Files are removed under the lock of that transaction alone: what it has looked at stays. The rows of
windows, versions and assessments stay in the database, and so do the names: digests, coverage and searches
need no file. ``unseal`` puts the rows back and verifies the month before it commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, case, cast, delete, func, insert, literal, select

from gpucost.domain.errors import InputError, LedgerConflict, LedgerDamaged, LedgerError, LedgerUnavailable
from gpucost.domain.time import Month
from gpucost.ledger.db.audit_trail import SEALS, UNSEALS, seal_detail
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.digest import seal_digest
from gpucost.ledger.db.records import LedgerState, MonthSeal, MonthUnseal, SealRefused, VerifyFinding
from gpucost.ledger.db.stored_values import check_text
from gpucost.ledger.db.tables import (
    DAY_LINE,
    LEDGER_WINDOW,
    MONTH,
    MONTH_FOLD,
    MONTH_SEAL,
    PROGRESS_LINE,
    SEAL_BEGUN,
    SEALED_HOLDER,
    USAGE_DAY,
    USAGE_LINE,
    WASTE_LINE,
    WASTE_WINDOW,
    WINDOW_PROBLEM,
    WINDOW_VERSION,
)
from gpucost.ledger.retention import verification
from gpucost.ledger.sealed.seal_folder import (
    SealedFile,
    SealFolder,
    SealManifest,
    changed_files,
    file_hash,
    file_name,
    is_there,
    manifest_path,
    table_path,
)
from gpucost.ledger.sealed.seal_schema import TABLES
from gpucost.ledger.sealed.sealed_reader import SealedStore, sealed_months
from gpucost.ledger.usage import day_sums, months, reader
from gpucost.ledger.usage.months import SUMS
from gpucost.ledger.usage.writer import record

L, W, V, A, S, H = (
    USAGE_LINE.c,
    LEDGER_WINDOW.c,
    WINDOW_VERSION.c,
    WASTE_WINDOW.c,
    MONTH_SEAL.c,
    SEALED_HOLDER.c,
)
_CONTENT = (USAGE_LINE, PROGRESS_LINE, WINDOW_PROBLEM, WASTE_LINE)
_RETENTION = "(retention)"


def _last(connection: Connection, month: Month) -> Row[Any] | None:
    """The last seal or unseal of a month."""
    statement = select(MONTH_SEAL).where(S.month == str(month)).order_by(S.seq.desc()).limit(1)
    return connection.execute(statement).one_or_none()


def _moves(connection: Connection) -> int:
    """How many seals and unseals there were."""
    return int(connection.execute(select(func.count()).select_from(MONTH_SEAL)).scalar_one())


def seal_of(connection: Connection, month: Month) -> MonthSeal | None:
    """The seal of a month that is in files now."""
    row = _last(connection, month)
    if row is None or row.kind != "seal":
        return None
    sizes = row.lines, row.files, row.size
    return MonthSeal(month, row.digest, row.manifest, row.sealed_at_ms, row.author, *sizes)


def window_rows(connection: Connection, month: Month) -> dict[str, list[Row[Any]]]:
    """The windows of a month by cluster, in the order of their start, with what they summed to and how they
    were assessed."""
    assessed = case((A.version == W.version, A.state), else_="").label("assessed")
    statement = (
        select(W.id, W.cluster, W.start_ms, W.end_ms, W.version, V.digest, V.observed_ms, *SUMS)
        .add_columns(V.source, V.code_version, V.written_at_ms, assessed)
        .add_columns(A.digest.label("waste_digest"))
        .join(WINDOW_VERSION, reader.CURRENT_VERSION)
        .outerjoin(WASTE_WINDOW, A.window_id == W.id)
        .where(W.month == str(month))
    )
    found = defaultdict[str, list[Row[Any]]](list)
    for row in sorted(connection.execute(statement), key=lambda row: (row.cluster, row.start_ms)):
        found[row.cluster].append(row)
    return found


def _state(connection: Connection, month: Month) -> tuple[str, str]:
    """The digests that the month was closed and folded with. Raises InputError for an open month."""
    info = months.info(connection, month)
    if info.state is not LedgerState.CLOSED or info.digest is None:
        raise InputError("month", str(month), "a closed month: only what does not change any more is sealed")
    f = MONTH_FOLD.c
    folded = connection.execute(select(f.digest).where(f.month == str(month))).scalar_one_or_none()
    return info.digest, folded or ""


def _refuse_others(connection: Connection, folder: SealFolder, month: Month) -> None:
    """Raises LedgerConflict where another ledger has sealed the month into the same folder."""
    _, theirs = verification.lists_of(connection, folder, month, folder.of_month(month))
    if theirs:
        raise LedgerConflict(
            f"ledger.sealed: another ledger has sealed {month} into the same folder "
            f"({folder.address(manifest_path(month, theirs[0]))}): a folder is of one ledger, so set another "
            "one, or move those files away"
        )


class _MonthWriter:
    """Writes the files of a month, each proven against the rows that it is of."""

    def __init__(self, connection: Connection, store: SealedStore, drafts: Path, month: Month) -> None:
        self._connection, self._store, self._drafts, self._month = connection, store, drafts, month
        self.files: list[SealedFile] = []
        self.lines = 0

    def cluster(self, cluster: str, windows: Sequence[Row[Any]]) -> None:
        from gpucost.ledger.sealed.seal_writer import MonthRows, differing_run, write_days, write_table

        rows = MonthRows(self._connection, cluster, windows)
        for table, days in (("lines", "days"), ("waste", "waste_days"), ("progress", ""), ("problems", "")):
            draft = self._drafts / f"{table}-{len(self.files)}.parquet"
            count = write_table(draft, table, rows.tables(table))
            if not count:
                continue
            wrong = differing_run(draft, rows.tables(table))
            if wrong:
                raise LedgerError(
                    f"{self._month} {cluster} {table} reads otherwise than it was written: {wrong}"
                )
            self.lines += count if table == "lines" else 0
            if days:
                sums = self._drafts / f"{days}-{len(self.files)}.parquet"
                self._place(days, cluster, sums, write_days(self._store, days, draft, sums))
            self._place(table, cluster, draft, count)
        draft = self._drafts / f"windows-{len(self.files)}.parquet"
        self._place("windows", cluster, draft, write_table(draft, "windows", _windows_table(windows)))

    def _place(self, table: str, cluster: str, draft: Path, rows: int) -> None:
        sha256, size = file_hash(draft)
        path = table_path(self._month, table, file_name(table, cluster, sha256))
        _place(self._store.folder, draft, path, (sha256, size))
        self.files.append(SealedFile(table, cluster, path, sha256, size, rows))


def _windows_table(windows: Sequence[Row[Any]]) -> Iterator[Any]:
    from gpucost.ledger.sealed.seal_writer import rows_table

    renamed = {"window_start_ms": "start_ms", "window_end_ms": "end_ms"}
    names = [renamed.get(column.name, column.name) for column in TABLES["windows"]]
    yield rows_table("windows", [[row._mapping[name] for name in names] for row in windows])


def _place(folder: SealFolder, draft: Path, path: str, proof: tuple[str, int]) -> None:
    """Raises LedgerUnavailable where the store gives back other bytes than it was given."""
    folder.put(draft, path)
    if folder.sha256(path) != proof:
        raise LedgerDamaged(f"{folder.address(path)} reads otherwise than it was written")


def _sealed_files(
    connection: Connection, store: SealedStore, drafts: Path, month: Month, state: tuple[str, str]
) -> tuple[SealManifest, str, int]:
    """Writes all files of a month; the list of them, its hash, and how many lines they have."""
    written = _MonthWriter(connection, store, drafts, month)
    for cluster, windows in window_rows(connection, month).items():
        written.cluster(cluster, windows)
    manifest = SealManifest(month, *state, tuple(written.files))
    draft = drafts / "manifest.json"
    draft.write_bytes(manifest.encoded())
    proof = file_hash(draft)
    _place(store.folder, draft, manifest_path(month, proof[0]), proof)
    return manifest, proof[0], written.lines


def _begin(connection: Connection, month: Month) -> int:
    """Opens the triggers for the month, until ``_register``; the number of the seal."""
    last = connection.execute(select(func.max(S.seq))).scalar_one()
    seq = (last or 0) + 1
    connection.execute(insert(SEAL_BEGUN).values(seq=seq, month=str(month)))
    return int(seq)


def _register(connection: Connection, seq: int, kind: str, month: Month, **values: Any) -> None:
    """The row that ends what was begun, and its entry in the audit trail."""
    previous = connection.execute(select(S.digest).order_by(S.seq.desc()).limit(1)).scalar_one_or_none()
    row = {"seq": seq, "month": str(month), "kind": kind, **values}
    digest = seal_digest(previous or "", row)
    connection.execute(insert(MONTH_SEAL).values(**row, digest=digest))
    record(
        connection,
        at_ms=values["sealed_at_ms"],
        author=values["author"],
        action=(SEALS if kind == "seal" else UNSEALS)[0],
        subject=str(month),
        reason="",
        detail=seal_detail(digest, values["manifest"], values["lines"]),
    )


def _keep_holders(connection: Connection, seq: int, month: Month) -> None:
    """What every holder had, so that jobs are found by name without reading files."""
    keys = (L.holder_id, W.cluster, L.bucket)
    sums = (
        func.min(W.start_ms),
        func.max(W.end_ms),
        cast(func.sum(L.board_ms), BigInteger),
        cast(func.sum(L.nano), BigInteger),
        cast(func.sum(case((L.nano.is_(None), L.board_ms), else_=0)), BigInteger),
    )
    found = (
        select(L.holder_id, W.cluster, literal(seq, BigInteger), L.bucket, *sums)
        .join(LEDGER_WINDOW, W.id == L.window_id)
        .where(W.month == str(month))
        .group_by(*keys)
    )
    names = [column.name for column in SEALED_HOLDER.columns]
    connection.execute(insert(SEALED_HOLDER).from_select(names, found))


def move_in(
    connection: Connection,
    folder: SealFolder,
    manifest: SealManifest,
    sha256: str,
    lines: int,
    author: str,
    now_ms: int,
) -> None:
    """Registers files, and deletes the rows that they are of. Raises LedgerConflict where they are not there
    any more: another process may have removed them since they were written."""
    month = manifest.month
    if _state(connection, month) != (manifest.month_digest, manifest.fold_digest) or seal_of(
        connection, month
    ):
        raise LedgerConflict(f"{month} was folded or sealed while it was being sealed; try again")
    _refuse_others(connection, folder, month)
    listing = SealedFile("", "", manifest_path(month, sha256), sha256, len(manifest.encoded()), 0)
    if not is_there(folder, (listing, *manifest.files)):
        raise LedgerConflict(
            f"{month} stays as it is: its files were removed or changed while it was being sealed; try again"
        )
    seq = _begin(connection, month)
    _keep_holders(connection, seq, month)
    windows = select(W.id).where(W.month == str(month))
    for table in _CONTENT:
        connection.execute(delete(table).where(table.c.window_id.in_(windows)))
    days = select(USAGE_DAY.c.id).where(USAGE_DAY.c.month == str(month))
    connection.execute(delete(DAY_LINE).where(DAY_LINE.c.day_id.in_(days)))
    connection.execute(delete(USAGE_DAY).where(USAGE_DAY.c.month == str(month)))
    _register(
        connection,
        seq,
        "seal",
        month,
        month_digest=manifest.month_digest,
        fold_digest=manifest.fold_digest,
        manifest=sha256,
        sealed_at_ms=now_ms,
        author=author,
        lines=lines,
        files=len(manifest.files),
        size=sum(file.size for file in manifest.files),
    )


def move_out(
    connection: Connection, store: SealedStore, manifest: SealManifest, author: str, now_ms: int
) -> None:
    """Puts the rows of files back, and verifies the month. Raises SealRefused where they are not what was
    sealed."""
    from gpucost.ledger.sealed.seal_restore import put_back

    month = manifest.month
    wrong = list(changed_files(store.folder, manifest.files))
    if wrong:
        raise SealRefused(month, wrong)
    seq = _begin(connection, month)
    lines = put_back(connection, store.folder, manifest, window_rows(connection, month))
    sealed = select(SEAL_BEGUN.c.seq).where(SEAL_BEGUN.c.month == str(month))
    connection.execute(delete(SEALED_HOLDER).where(H.seq.in_(sealed)))
    _register(
        connection,
        seq,
        "unseal",
        month,
        month_digest=manifest.month_digest,
        fold_digest=manifest.fold_digest,
        manifest="",
        sealed_at_ms=now_ms,
        author=author,
        lines=lines,
        files=0,
        size=0,
    )
    for cluster, day in day_sums.pending(connection, month):
        day_sums.add_up(connection, cluster, day)
    found = verification.verify(connection, month)
    if found:
        raise SealRefused(month, [f"{finding.subject}: {finding.detail}" for finding in found])


def _sweep(connection: Connection, folder: SealFolder, month: Month) -> tuple[str, ...]:
    """Removes the files of a month that no list names; of each that could not be removed, why. The caller
    holds the lock of whoever registers files: what is named here stays so until it ends."""
    try:
        found = verification.unnamed_files(connection, folder, month)
    except LedgerError as error:
        return (str(error),)
    return tuple(_removed(folder, found))


def _removed(folder: SealFolder, paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        try:
            folder.remove(path)
        except LedgerDamaged:  # it is gone already
            continue
        except LedgerError as error:
            yield str(error)


class _PutAway(Exception):
    """Undoes a transaction that was only to look."""


class SealingStore:
    """A part of ``Ledger``: what is stored is proven, and closed months are moved into files. No sum and no
    digest changes."""

    _database: LedgerDatabase
    _sealed: SealedStore
    _now: Callable[[], int]

    def verify(self, month: Month | None = None) -> tuple[VerifyFinding, ...]:
        """Recompute every digest of a month, or of all, from the lines themselves; empty when all agree."""
        with self._database.read() as connection:
            found = verification.verify(connection, month, self._sealed)
            if found:
                self._refuse_moved(connection)
            return found

    def integrity(self) -> verification.IntegrityReport:
        """What the database itself finds wrong with its pages and indexes: SQLite's integrity and foreign key
        checks, PostgreSQL's amcheck where it is installed and allowed. Reads everything."""
        try:
            with self._database.read() as connection:
                return verification.integrity(connection)
        except LedgerDamaged as error:
            return verification.IntegrityReport((str(error),))

    def sealed(self, month: Month) -> MonthSeal | None:
        """None for a month whose lines are in the database."""
        with self._database.read() as connection:
            return seal_of(connection, month)

    def sealed_months(self) -> tuple[Month, ...]:
        """The months whose lines are in files, oldest first."""
        with self._database.read() as connection:
            return tuple(sorted(sealed_months(connection)))

    def sealable(self, before_ms: int) -> tuple[Month, ...]:
        """Closed months that ended at or before ``before_ms`` and were never sealed, the oldest first."""
        statement = select(MONTH.c.month).where(MONTH.c.month.not_in(select(S.month)))
        with self._database.read() as connection:
            found = sorted(map(Month.parse, connection.execute(statement).scalars()))
        return tuple(month for month in found if month.window.end_ms <= before_ms)

    def seal(self, month: Month, *, author: str) -> MonthSeal:
        """Move the lines of a closed month into files at ``ledger.sealed``, after it was verified; a month
        that is sealed stays so. Writers of other months go on meanwhile, but for the last step.

        Raises InputError for a month that is not closed, SealRefused for one that does not verify,
        LedgerConflict where another process was quicker; nothing was moved then.
        """
        check_text("author", author, empty=False)
        folder = self._sealed.folder
        written = self._written(month)
        if written is not None:
            with self._database.write(_RETENTION) as connection:
                move_in(connection, folder, *written, author, self._now())
        left = self._swept(month)
        done = self.sealed(month)
        if done is None:
            raise LedgerConflict(f"{month} was unsealed at once by another process")
        return replace(done, left=left)

    def unseal(self, month: Month, *, author: str) -> MonthUnseal:
        """Move the lines of a sealed month back into the database and remove its files. Once more changes
        nothing but what could not be removed before.

        Raises InputError for a month that was never sealed, SealRefused where a file is not what it was.
        """
        check_text("author", author, empty=False)
        with self._database.write(_RETENTION) as connection:
            last = _last(connection, month)
            if last is None or last.kind == "seal":
                manifest = self._manifest(connection, month)
                move_out(connection, self._sealed, manifest, author, self._now())
                last = _last(connection, month)
        assert last is not None
        return MonthUnseal(int(last.lines), self._swept(month))

    def verify_sealed(self, month: Month, *, deep: bool = False) -> tuple[VerifyFinding, ...]:
        """Whether every file of a sealed month is what was sealed, by its hash; with ``deep``, whether its
        rows still give the digests of the month: they are put back in a transaction that is undone. Raises
        InputError for a month that is not sealed."""
        with self._reading() as connection:
            found = tuple(verification.verify_seal(connection, month, self._sealed))
            if found:
                self._refuse_moved(connection)
                return found
            named, manifest = sealed_months(connection).get(month), self._manifest(connection, month)
        if not deep:
            return ()
        try:
            with self._database.write(_RETENTION) as connection:
                if sealed_months(connection).get(month) != named:
                    raise LedgerUnavailable(f"{month} was moved while it was verified; try again")
                move_out(connection, self._sealed, manifest, "gpucost", self._now())
                raise _PutAway
        except _PutAway:
            return ()
        except SealRefused as error:
            return (VerifyFinding(month, str(month), str(error)),)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A read that may need sealed files. Raises LedgerUnavailable where they are gone because a month was
        unsealed since the read began."""
        with self._database.read() as connection:
            try:
                yield connection
            except LedgerDamaged:
                self._refuse_moved(connection)
                raise

    def _refuse_moved(self, connection: Connection) -> None:
        """Raises LedgerUnavailable where a month was moved since ``connection`` began to read: what it missed
        may be where it is now."""
        with self._database.read() as later:
            if _moves(later) != _moves(connection):
                raise LedgerUnavailable("a month was moved into files or back while it was read; try again")

    def _written(self, month: Month) -> tuple[SealManifest, str, int] | None:
        """The files of a month, for ``move_in``; None where it is sealed already."""
        folder = self._sealed.folder
        with self._database.read() as connection:
            state = _state(connection, month)
            if seal_of(connection, month) is not None:
                return None
            wrong = verification.verify(connection, month)
            if wrong:
                raise SealRefused(month, [f"{finding.subject}: {finding.detail}" for finding in wrong])
            _refuse_others(connection, folder, month)
            with folder.drafts(month) as drafts:
                return _sealed_files(connection, self._sealed, drafts, month, state)

    def _swept(self, month: Month) -> tuple[str, ...]:
        """See ``_sweep``: nobody registers files in between. The month was moved, whatever becomes of it."""
        try:
            with self._database.write(_RETENTION) as connection:
                return _sweep(connection, self._sealed.folder, month)
        except LedgerError as error:
            return (str(error),)

    def _manifest(self, connection: Connection, month: Month) -> SealManifest:
        sha256 = sealed_months(connection).get(month)
        if sha256 is None:
            raise InputError("month", str(month), "a sealed month")
        return self._sealed.month(month, sha256).manifest
