"""Sealed months that several processes or ledgers are at, and disks that fail: nothing is lost."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpucost.domain.errors import LedgerConflict, LedgerDamaged, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.sealed.seal_folder import SealFolder
from gpucost.ledger.sealed.seal_writer import write_days
from gpucost.ledger.sealed.sealed_reader import SealedSpan
from tests.ledger.builders import MONTH, NOW_MS, hour, ingest, random_rows
from tests.support.ledgers import Prepare, new_ledger

LINES = 36


def close(ledger: Ledger, seed: int) -> None:
    for number in range(3):
        ingest(ledger, hour(number), *random_rows(seed, hour(number), LINES // 3))
    ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="enough")


def filled(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        close(ledger, 1)


@pytest.fixture
def pair(copy_of: Callable[[Prepare], str], tmp_path: Path) -> Iterator[tuple[Ledger, Ledger]]:
    """One ledger, opened by two processes."""
    url, folder = copy_of(filled), str(tmp_path / "sealed")
    with (
        Ledger.open(url, now=lambda: NOW_MS, sealed=folder) as one,
        Ledger.open(url, now=lambda: NOW_MS, sealed=folder) as other,
    ):
        yield one, other


def other_ledger(tmp_path: Path, seed: int) -> Ledger:
    """Another ledger that closed the same month, with the same ``ledger.sealed``."""
    url = new_ledger(tmp_path / f"{seed}.db")
    ledger = Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / "sealed"))
    close(ledger, seed)
    return ledger


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def teams(ledger: Ledger) -> str:
    return ledger.aggregate(EVERYTHING, MONTH.window, ["team"]).to_csv()


@pytest.mark.postgres
def test_a_seal_whose_files_were_removed_meanwhile_moves_nothing(
    pair: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By ``unseal``, which removes what an unseal before could not."""
    one, other = pair
    before = teams(one)
    one.seal(MONTH, author="ann")
    one.unseal(MONTH, author="ann")
    placed = SealFolder.put

    def unsealed_between(folder: SealFolder, draft: Path, path: str) -> None:
        if path.startswith("windows/"):
            monkeypatch.setattr(SealFolder, "put", placed)
            assert other.unseal(MONTH, author="ben").lines == LINES
        placed(folder, draft, path)

    monkeypatch.setattr(SealFolder, "put", unsealed_between)
    with pytest.raises(LedgerConflict, match="2026-10 stays as it is: its files were removed or changed"):
        one.seal(MONTH, author="ann")
    assert (one.sealed(MONTH), teams(one), one.verify()) == (None, before, ())
    assert one.seal(MONTH, author="ann").lines == LINES
    assert (teams(one), one.verify()) == (before, ())


@pytest.mark.postgres
def test_an_unseal_removes_no_file_of_a_seal_that_came_after_it(
    pair: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    before, swept = teams(one), Ledger._swept
    one.seal(MONTH, author="ann")

    def sealed_between(ledger: Ledger, month: Month) -> tuple[str, ...]:
        monkeypatch.setattr(Ledger, "_swept", swept)
        other.seal(month, author="ben")
        return swept(ledger, month)

    monkeypatch.setattr(Ledger, "_swept", sealed_between)
    one.unseal(MONTH, author="ann")
    assert one.sealed(MONTH) is not None
    assert (teams(one), one.verify()) == (before, ())


def test_two_ledgers_with_one_folder_leave_each_other_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sealed"
    with other_ledger(tmp_path, 1) as one, other_ledger(tmp_path, 2) as other:
        before = teams(one)
        one.seal(MONTH, author="ann")
        theirs = files(folder)
        with pytest.raises(LedgerConflict, match=r"ledger\.sealed: another ledger has sealed 2026-10"):
            other.seal(MONTH, author="ben")
        assert files(folder) == theirs
        # As releases left it that did not look: both are there.
        elsewhere = tmp_path / "elsewhere"
        with Ledger(other._database, lambda: NOW_MS, str(elsewhere)) as apart:
            apart.seal(MONTH, author="ben")
        shutil.copytree(elsewhere, folder, dirs_exist_ok=True)
        assert files(folder) == theirs | files(elsewhere)
        assert (one.verify(), other.verify()) == ((), ())
        other.unseal(MONTH, author="ben")
        assert files(folder) == theirs
        assert (teams(one), one.verify()) == (before, ())


def test_files_that_no_list_names_are_found_and_removed(tmp_path: Path) -> None:
    """What a seal left that was killed between its transaction and the removal of files."""
    with other_ledger(tmp_path, 1) as ledger:
        ledger.seal(MONTH, author="ann")
        stray = tmp_path / "sealed" / "lines" / "month=2026-10" / "lines-alpha-0.parquet"
        stray.write_bytes(b"a whole file of before the month was folded")
        [found] = ledger.verify_sealed(MONTH)
        assert found.detail.startswith("lines/month=2026-10/lines-alpha-0.parquet is in no list")
        assert ledger.verify(MONTH) == (found,)
        assert ledger.seal(MONTH, author="ann").left == ()
        assert not stray.exists()
        assert ledger.verify_sealed(MONTH) == ()


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    with other_ledger(tmp_path, 1) as ledger:
        ledger.seal(MONTH, author="ann")
        # A folder in the place of a file is refused to everybody, root too.
        stray = tmp_path / "sealed" / "lines" / "month=2026-10" / "lines-alpha-0.parquet"
        stray.mkdir()
        [left] = ledger.seal(MONTH, author="ann").left
        assert str(stray) in left
        done = ledger.unseal(MONTH, author="ann")
        assert (done.lines, len(done.left)) == (LINES, 1)
        assert files(tmp_path / "sealed") == set()
        stray.rmdir()
        assert ledger.unseal(MONTH, author="ann").left == ()


def test_two_seals_of_a_month_at_once(pair: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second does not touch the drafts of the first, which says that it came too late."""
    one, other = pair
    before, placed = teams(one), SealFolder.put

    def sealed_between(folder: SealFolder, draft: Path, path: str) -> None:
        monkeypatch.setattr(SealFolder, "put", placed)
        other.seal(MONTH, author="ben")
        placed(folder, draft, path)

    monkeypatch.setattr(SealFolder, "put", sealed_between)
    with pytest.raises(LedgerConflict, match="2026-10 was folded or sealed while it was being sealed"):
        one.seal(MONTH, author="ann")
    assert one.seal(MONTH, author="ann").author == "ben"
    assert (teams(one), one.verify()) == (before, ())


def test_drafts_of_a_process_that_was_killed_are_removed(tmp_path: Path) -> None:
    folder = SealFolder(str(tmp_path))
    drafts = [tmp_path / f".gpucost-draft-2026-10-{name}" for name in ("killed", "just-made")]
    for path in drafts:
        path.mkdir()
    (drafts[0] / "lock").touch()
    with folder.drafts(MONTH) as mine:
        assert sorted(tmp_path.iterdir()) == sorted((drafts[1], mine))
        with SealFolder(str(tmp_path)).drafts(MONTH) as others:
            assert sorted(tmp_path.iterdir()) == sorted((drafts[1], mine, others))
    assert list(tmp_path.iterdir()) == [drafts[1]]


@pytest.mark.postgres
def test_a_read_of_a_month_that_is_unsealed_meanwhile_may_be_tried_again(
    pair: tuple[Ledger, Ledger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    before, sums = teams(one), SealedSpan.sums
    one.seal(MONTH, author="ann")

    def unsealed_first(*given: Any) -> Any:
        monkeypatch.setattr(SealedSpan, "sums", sums)
        other.unseal(MONTH, author="ben")
        return sums(*given)

    monkeypatch.setattr(SealedSpan, "sums", unsealed_first)
    with pytest.raises(LedgerUnavailable, match="while it was read; try again"):
        teams(one)
    assert teams(one) == before
    sha256 = SealFolder.sha256
    for verify in (one.verify, lambda: one.verify_sealed(MONTH)):
        one.seal(MONTH, author="ann")

        def unsealed_before(folder: SealFolder, path: str) -> tuple[str, int]:
            monkeypatch.setattr(SealFolder, "sha256", sha256)
            other.unseal(MONTH, author="ben")
            return sha256(folder, path)

        monkeypatch.setattr(SealFolder, "sha256", unsealed_before)
        with pytest.raises(LedgerUnavailable, match="while it was read; try again"):
            verify()
    one.seal(MONTH, author="ann")
    shutil.rmtree(tmp_path / "sealed" / "days")
    with pytest.raises(LedgerDamaged, match="sealed files cannot be read"):
        teams(one)


@contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process cannot grow beyond a thousand bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_by_its_setting(tmp_path: Path) -> None:
    said = rf"ledger\.sealed: no file can be written in the folder {tmp_path}/sealed: File too large"
    with other_ledger(tmp_path, 1) as ledger:
        with pytest.raises(LedgerUnavailable, match=said), full_disk():
            ledger.seal(MONTH, author="ann")
        assert (ledger.sealed(MONTH), files(tmp_path / "sealed")) == (None, set())
        ledger.seal(MONTH, author="ann")
        [lines] = (tmp_path / "sealed" / "lines" / "month=2026-10").iterdir()
        # The sums of days are read and written in one pass: it is the writing that fails.
        with pytest.raises(LedgerUnavailable, match=said), full_disk():
            write_days(ledger._sealed, "days", lines, tmp_path / "days.parquet")
