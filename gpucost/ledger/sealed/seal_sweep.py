"""Files that lie in the folder of sealed months, and that no list of the ledger names: whose they are.

A seal that was killed leaves such files, and so does an unseal that could not remove them: whoever adds up
the folder with tools of their own would count them. A folder is of one ledger. Where it has lists of another
one, nothing goes but what a list of ours names and none of theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, select

from gpucost.domain.errors import LedgerConflict, LedgerDamaged, LedgerError
from gpucost.domain.time import Month
from gpucost.ledger.db.tables import MONTH, MONTH_SEAL
from gpucost.ledger.sealed.seal_folder import LISTS, SealedMonth, SealFolder, manifest_path
from gpucost.ledger.sealed.sealed_reader import sealed_months

S = MONTH_SEAL.c


def refuse_others(connection: Connection, folder: SealFolder, month: Month) -> None:
    """Raises LedgerConflict where another ledger has sealed the month into the same folder."""
    _, theirs = _lists(connection, folder, month, folder.of_month(month))
    if theirs:
        raise LedgerConflict(
            f"ledger.sealed: another ledger has sealed {month} into the same folder "
            f"({folder.address(manifest_path(month, theirs[0]))}): a folder is of one ledger, so set another "
            "one, or move those files away"
        )


def unnamed_files(connection: Connection, folder: SealFolder, month: Month) -> tuple[str, ...]:
    """The files of a month that are ours and that no list names now; lists come last, so that it is known
    whose the others are for as long as there are any."""
    found = folder.of_month(month)
    sha256 = sealed_months(connection).get(month)
    kept = set[str]() if sha256 is None else _named(folder, month, sha256)
    ours, theirs = _lists(connection, folder, month, found)
    mine = set(found)
    if theirs:
        mine = {path for each in ours for path in _named(folder, month, each)}
        kept.update(path for each in theirs for path in _named(folder, month, each))
    return tuple(sorted(mine.intersection(found) - kept, key=lambda path: (path.startswith(LISTS), path)))


def swept(connection: Connection, folder: SealFolder, month: Month) -> tuple[str, ...]:
    """Removes the files of a month that no list names; of each that could not be removed, why. The caller
    holds the lock of whoever registers files: what is named here stays so until it ends."""
    try:
        found = unnamed_files(connection, folder, month)
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


def _lists(
    connection: Connection, folder: SealFolder, month: Month, paths: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The hashes of the lists among files of a month: of our own, and of those of other ledgers. One is ours
    where it was registered, or is of the month as it was closed here; what is no whole list is nobody's."""
    registered = set(connection.execute(select(S.manifest).where(S.month == str(month))).scalars())
    closed = connection.execute(select(MONTH.c.digest).where(MONTH.c.month == str(month))).scalar()
    ours, theirs = list[str](), list[str]()
    for path in paths:
        if not path.startswith(LISTS):
            continue
        try:
            content = folder.content(path)
        except LedgerDamaged:  # another process has removed it since
            continue
        sha256 = hashlib.sha256(content).hexdigest()
        if path == manifest_path(month, sha256):
            is_ours = sha256 in registered or json.loads(content).get("month_digest") == closed
            (ours if is_ours else theirs).append(sha256)
    return ours, theirs


def _named(folder: SealFolder, month: Month, sha256: str) -> set[str]:
    """A list, and the files that it names."""
    manifest = SealedMonth(folder, month, sha256).manifest
    return {manifest_path(month, sha256), *(file.path for file in manifest.files)}
