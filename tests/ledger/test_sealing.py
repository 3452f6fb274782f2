"""Sealed months: every read is the same before, after, and put back; what was changed is found."""

from __future__ import annotations

import os
import random
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gpucost.attribution.teams import TeamRules
from gpucost.domain.errors import InputError, LedgerDamaged, LedgerError, MonthClosed
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import SealRefused, WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.sealed import seal_schema
from gpucost.ledger.sealed.seal_folder import SealFolder, SealManifest
from gpucost.ledger.sealed.seal_schema import SealColumn
from gpucost.ledger.sealed.sealed_reader import SealedSpan, SealedStore, relation
from gpucost.ledger.usage.coded_sums import rows_of
from gpucost.ledger.usage.job_index import JobQuery
from gpucost.ledger.usage.query import DIMENSIONS
from gpucost.reports.month.inputs import JOB_DIMS
from gpucost.service.reporting.rendering import ReportFormat, render_month
from gpucost.service.wiring.demo_month import DEMO_MONTH, LEDGER, DemoMonth
from gpucost.service.wiring.ledger import build_reporting
from tests.ledger import clones, test_scopes
from tests.ledger.builders import CLUSTER, MONTH, NOW_MS, hour, ingest, line, progress, random_rows
from tests.ledger.tampering import tamper
from tests.ledger.test_folding import assess, close, fill
from tests.support.ledgers import Prepare, new_ledger

DATA = Path(__file__).parent / "data" / "sealed-1"
"""Files of version 1 of the format, as the release that had it wrote them."""
LATER = Month(2026, 11)
TEAMS = ("red", "Red", "blue", "éclair", "_ops", "zebra", "__unallocated__", "nobody")
SCOPES = (
    EVERYTHING,
    Scope(frozenset({"red", "éclair"})),
    Scope(None, frozenset({"beta"})),
    Scope(frozenset({"blue"}), frozenset({CLUSTER})),
)


def filled(url: str) -> None:
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        fill(ledger)
        close(ledger)


def with_a_live_month(url: str) -> None:
    """A closed month, and an open one after it."""
    filled(url)
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        for number in (0, 1, 30):
            window = hour(number, LATER)
            rows = random_rows(9, window, 12)
            ingest(ledger, window, *rows)
            assess(
                ledger, CLUSTER, window, [row for row in rows if row["bucket"] == "held" and row["nano"]][:2]
            )


@pytest.fixture
def opened(copy_of: Callable[[Prepare], str], tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(copy_of(filled), now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")) as ledger:
        yield ledger


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[Ledger]:
    url = new_ledger(tmp_path / "ledger.db", filled)
    with Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")) as ledger:
        ledger.seal(MONTH, author="ann")
        yield ledger


def shown(frame: pd.DataFrame) -> Any:
    return frame.dtypes.to_dict(), frame.astype(object).where(frame.notna(), None).values.tolist()


def answers(ledger: Ledger) -> dict[str, Any]:
    """What the reads say that take no dimensions, and a few of those that do."""
    whole, found = MONTH.window, dict[str, Any]()
    for name, scope in enumerate(SCOPES):
        for window in (whole, Window(whole.start_ms, whole.start_ms + 4 * HOUR_MS)):
            for dims, step in ((("team", "model"), DAY_MS), (("node", "pod"), HOUR_MS), ((), None)):
                at = f"{name} {window} {dims}"
                found[at] = shown(ledger.aggregate(scope, window, dims, step_ms=step))
                found[f"waste {at}"] = shown(ledger.waste(scope, window, dims, step_ms=step))
            coded = ledger.aggregate(scope, window, ["team", "job"], categories=True)
            found[f"coded {name} {window}"] = shown(coded)
            found[f"problems {name} {window}"] = ledger.problems(scope, window)
            found[f"cells {name} {window}"] = sorted(map(repr, ledger.cells(scope, window)))
        for uid in ("j-0", "job-2", "nobody"):
            found[f"job {name} {uid}"] = ledger.job_window(scope, uid), ledger.job_clusters(scope, uid)
            found[f"progress {name} {uid}"] = shown(ledger.progress(scope, whole, uid))
        found[f"jobs {name}"] = ledger.jobs_named(scope, "train"), ledger.teams(scope)
        found[f"names {name}"] = ledger.find_names(scope, "tra"), ledger.find_names(scope, "re")
    for cluster in (CLUSTER, "beta"):
        found[f"final {cluster}"] = ledger.final_waste(cluster, (), most=100)
    found["windows"] = ledger.windows(whole), ledger.month(MONTH), ledger.assessed(whole)
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


@pytest.mark.slow
def test_reads_are_the_same(opened: Ledger) -> None:
    before = answers(opened)
    done = opened.seal(MONTH, author="ann")
    assert done.lines == 81
    assert opened.seal(MONTH, author="ben") == done
    assert opened.sealed_months() == (MONTH,)
    assert opened.verify() == ()
    assert opened.verify_sealed(MONTH, deep=True) == ()
    assert differing(before, answers(opened)) == []
    assert opened.unseal(MONTH, author="cem").lines == done.lines
    assert opened.unseal(MONTH, author="dan").lines == done.lines
    assert opened.sealed(MONTH) is None
    assert opened.verify() == ()
    assert differing(before, answers(opened)) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_clones_of_a_cluster_are_told_apart(postgres_url: str, tmp_path: Path) -> None:
    """The same uids in several clusters, of other teams: what a reader may see is the same in files."""
    scopes = Scope(frozenset({"red", "blue"}), frozenset({"beta"})), Scope(frozenset({"red"}))
    with Ledger.open(postgres_url, now=lambda: NOW_MS, sealed=str(tmp_path)) as ledger:
        clones.fill(ledger, EVERYTHING)
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="enough")
        before = [test_scopes.readings(ledger, scope) for scope in scopes]
        ledger.seal(MONTH, author="ann")
        after = [test_scopes.readings(ledger, scope) for scope in scopes]
    for one, other in zip(before, after, strict=True):
        # Run times are not read from files.
        assert {name for name in one if one[name] != other[name]} <= {
            f"{what} {cluster}" for what in ("runs", "uses") for cluster in clones.CLUSTERS
        }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, Ledger]]:
    """The same two months: in the database, and the closed one of them in files."""
    folder = tmp_path_factory.mktemp("pair")
    urls = [new_ledger(folder / name, with_a_live_month) for name in ("one.db", "other.db")]
    with (
        Ledger.open(urls[0], now=lambda: NOW_MS) as plain,
        Ledger.open(urls[1], now=lambda: NOW_MS, sealed=str(folder / "sealed")) as moved,
    ):
        moved.seal(MONTH, author="ann")
        yield plain, moved


HOURS = st.sampled_from((0, 1, 5, 24, 48, 31 * 24, 31 * 24 + 24, 60 * 24))
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "team": st.lists(st.sampled_from(TEAMS), max_size=3),
        "cluster": st.lists(st.sampled_from((CLUSTER, "beta", "none")), max_size=2),
        "bucket": st.lists(st.sampled_from(("held", "unallocated", "overcommitted")), max_size=3),
        "node": st.lists(st.sampled_from(("n-0", "node-3")), max_size=2),
        "rate_id": st.lists(st.sampled_from(("", "h100@1")), max_size=2),
    },
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dims=st.lists(st.sampled_from((*DIMENSIONS, "share_num")), unique=True, max_size=5),
    filters=FILTERS,
    hours=st.lists(HOURS, min_size=2, max_size=2, unique=True).map(sorted),
    step=st.sampled_from((None, DAY_MS, HOUR_MS, 6 * HOUR_MS, 7 * DAY_MS)),
    scope=st.sampled_from(SCOPES),
)
def test_every_grouping_and_filter_is_the_same(
    pair: tuple[Ledger, Ledger],
    dims: list[str],
    filters: dict[str, list[str]],
    hours: list[int],
    step: int | None,
    scope: Scope,
) -> None:
    """Also over a span of which a part is in the database and a part in files."""
    start = MONTH.window.start_ms
    window = Window(start + hours[0] * HOUR_MS, start + hours[1] * HOUR_MS)
    for name in ("aggregate", "waste"):
        one, other = (
            told(getattr(ledger, name), scope, window, dims, filters=filters, step_ms=step) for ledger in pair
        )
        assert one == other


def told(read: Callable[..., pd.DataFrame], *given: Any, **more: Any) -> Any:
    try:
        return shown(read(*given, **more))
    except InputError as error:
        return str(error)


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), hours=st.sets(st.integers(0, 50), min_size=1, max_size=5))
def test_random_ledgers_go_there_and_back(tmp_path: Path, seed: int, hours: set[int]) -> None:
    folder = tmp_path / uuid4().hex
    folder.mkdir()
    with Ledger.open(
        new_ledger(folder / "ledger.db"), now=lambda: NOW_MS, sealed=str(folder / "sealed")
    ) as ledger:
        for cluster in (CLUSTER, "beta"):
            for number in hours:
                ingest(ledger, hour(number), *random_rows(seed, hour(number), 30, cluster), cluster=cluster)
        close(ledger)
        before = answers(ledger)
        ledger.seal(MONTH, author="ann")
        assert differing(before, answers(ledger)) == []
        assert ledger.verify_sealed(MONTH, deep=True) == ()
        ledger.unseal(MONTH, author="ann")
        assert ledger.verify() == ()
        assert differing(before, answers(ledger)) == []


def test_reports_are_the_same_bytes(tmp_path: Path) -> None:
    url = new_ledger(tmp_path / "ledger.db", with_a_live_month)
    with Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")) as ledger:

        def reports() -> list[Any]:
            reporting = build_reporting(ledger, TeamRules.default(), keeps=False)
            found = [reporting.month(scope, month) for scope in SCOPES[:2] for month in (MONTH, LATER)]
            return [
                render_month(answer.report, ReportFormat.JSON) if answer is not None else None
                for answer in found
            ]

        before = reports()
        ledger.seal(MONTH, author="ann")
        assert reports() == before


@pytest.mark.parametrize("counts", ["in files", "in the database"])
def test_a_job_that_counts_in_one_store_held_in_both(tmp_path: Path, counts: str) -> None:
    """What it held without counting is the cost of nothing, wherever it lies."""
    with Ledger.open(
        new_ledger(tmp_path / "ledger.db"), now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")
    ) as ledger:
        for window in (hour(742), hour(743), hour(0, LATER)):
            is_counted = (counts == "in files") == (window.end_ms <= MONTH.window.end_ms)
            steps = progress(("pod-1", window, "steps", 10.0)) if is_counted else None
            ingest(ledger, window, line(window), progress=steps)
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="enough")
        both = Window(hour(742).start_ms, hour(0, LATER).end_ms)
        before = [shown(ledger.progress(EVERYTHING, both, uid)) for uid in ("job-1", None)]
        ledger.seal(MONTH, author="ann")
        assert [shown(ledger.progress(EVERYTHING, both, uid)) for uid in ("job-1", None)] == before
        assert ledger.progress(EVERYTHING, both)["held_board_ms"].tolist() == [3 * HOUR_MS]


def test_a_folded_month_is_sealed_as_it_is(opened: Ledger) -> None:
    opened.fold(MONTH, author="ann")
    day = Window(MONTH.window.start_ms, MONTH.window.start_ms + 2 * DAY_MS)
    before = shown(opened.aggregate(EVERYTHING, day, ["team", "pod"], step_ms=DAY_MS))
    opened.seal(MONTH, author="ann")
    assert opened.verify() == ()
    assert opened.verify_sealed(MONTH, deep=True) == ()
    assert shown(opened.aggregate(EVERYTHING, day, ["team", "pod"], step_ms=DAY_MS)) == before


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_flipped_bit_in_any_file_is_found(sealed: Ledger, tmp_path: Path) -> None:
    rng = random.Random(5)
    found = files(tmp_path / "sealed")
    tables = {path.name.partition("-")[0] for path in found if path.suffix == ".parquet"}
    assert tables == set(seal_schema.TABLES)
    for path in found:
        whole = path.read_bytes()
        for at in (0, len(whole) - 1, rng.randrange(len(whole))):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            with Ledger.open(
                f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")
            ) as again:
                [finding] = again.verify_sealed(MONTH)
                assert path.name in finding.detail
                assert finding in again.verify(MONTH)
                with pytest.raises((SealRefused, LedgerDamaged), match=path.name):
                    again.unseal(MONTH, author="ann")
        path.write_bytes(whole)
    assert sealed.verify() == ()
    found[0].unlink()
    assert [finding.subject for finding in sealed.verify()] == ["sealed files"]
    assert sealed.sealed(MONTH) is not None


def test_of_a_month_that_is_not_sealed_no_file_is_vouched_for(opened: Ledger) -> None:
    for month in (MONTH, Month(2020, 1)):
        with pytest.raises(InputError, match="a sealed month"):
            opened.verify_sealed(month)
    opened.seal(MONTH, author="ann")
    assert opened.verify_sealed(MONTH) == ()
    opened.unseal(MONTH, author="ann")
    with pytest.raises(InputError, match="a sealed month"):
        opened.verify_sealed(MONTH, deep=True)


def test_a_folder_that_cannot_be_made_is_named_by_its_setting(tmp_path: Path) -> None:
    there = tmp_path / "a-file"
    there.write_text("", encoding="utf-8")
    store = SealFolder(str(there))
    with pytest.raises(LedgerError, match=r"ledger\.sealed: no file can be written in the folder .*a-file"):
        store.drafts(MONTH).__enter__()


@pytest.mark.parametrize(
    ("made", "folder", "file"), [(None, 0o700, 0o600), (0o755, 0o750, 0o640), (0o2770, 0o2750, 0o640)]
)
def test_files_are_for_the_owner_and_the_group_that_the_folder_is_open_to(
    tmp_path: Path, made: int | None, folder: int, file: int
) -> None:
    root = tmp_path / "sealed"
    if made is not None:
        root.mkdir()
        root.chmod(made)
    with Ledger.open(new_ledger(tmp_path / "l.db", filled), now=lambda: NOW_MS, sealed=str(root)) as ledger:
        ledger.seal(MONTH, author="ann")
    found = list(root.rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {folder}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {file}
    assert stat.S_IMODE(root.stat().st_mode) == (made or folder)


def test_what_the_database_keeps_of_a_sealed_month_is_checked(sealed: Ledger, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for statement, refusal in (
        ("DELETE FROM sealed_holder", "no month is being sealed"),
        ("UPDATE month_seal SET manifest = 'x'", "month_seal is append-only"),
    ):
        with pytest.raises(LedgerError, match=refusal), sealed._database.write() as connection:
            connection.execute(text(statement))
    with pytest.raises(MonthClosed), sealed._database.write() as connection:
        connection.execute(
            text(
                "INSERT INTO progress_line (window_id, pod_uid, name, amount) "
                "SELECT id, 'p', 'steps', 1 FROM ledger_window WHERE month = '2026-10' LIMIT 1"
            )
        )
    tamper(url, "UPDATE sealed_holder SET board_ms = board_ms + 1 WHERE bucket = 'held'")
    assert any("holders sum to" in finding.detail for finding in sealed.verify(MONTH))
    tamper(url, "UPDATE month_seal SET lines = 1")
    assert any("seal 1 changed" in finding.detail for finding in sealed.verify(MONTH))
    tamper(url, "DELETE FROM month_seal")
    assert any("month seal" in finding.detail for finding in sealed.verify(MONTH))


def test_a_sealed_month_stays_closed(sealed: Ledger) -> None:
    window = hour(0)
    with pytest.raises(MonthClosed, match="ledger unseal 2026-10"):
        ingest(sealed, window, line(window, nano=1))
    [info] = sealed.windows(window, CLUSTER)
    with pytest.raises(MonthClosed, match="closed and sealed"):
        sealed.write_waste(
            CLUSTER, [WasteOfWindow(window, info.digest, pd.DataFrame(), True)], code_version="1"
        )
    with pytest.raises(InputError, match="this one is sealed"):
        sealed.fold(MONTH, author="ann")
    assert sealed.foldable(NOW_MS) == ()
    assert sealed.runs(EVERYTHING, CLUSTER, MONTH.window) == ()


def test_what_cannot_be_sealed_is_refused(tmp_path: Path) -> None:
    url = new_ledger(tmp_path / "ledger.db", with_a_live_month)
    for place, refusal in (
        ("", r"ledger\.sealed is not set"),
        ("nothing://there", r"ledger\.sealed: "),
        ("simplecache::s3://bucket/there", r"ledger\.sealed: .* allowed: a folder, or one URL"),
    ):
        with (
            Ledger.open(url, now=lambda: NOW_MS, sealed=place) as nowhere,
            pytest.raises((LedgerError, InputError), match=refusal),
        ):
            nowhere.seal(MONTH, author="ann")
    with Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / "sealed")) as ledger:
        with pytest.raises(InputError, match="a closed month"):
            ledger.seal(LATER, author="ann")
        with pytest.raises(InputError, match="a sealed month"):
            ledger.unseal(MONTH, author="ann")
        tamper(url, "UPDATE usage_line SET board_ms = board_ms + 1")
        with pytest.raises(SealRefused, match="ledger verify"):
            ledger.seal(MONTH, author="ann")
        assert files(tmp_path / "sealed") == []


def test_a_sealed_month_without_its_folder_or_packages_says_what_is_missing(
    sealed: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", now=lambda: NOW_MS) as lost:
        with pytest.raises(LedgerError, match=r"ledger\.sealed is not set"):
            lost.aggregate(EVERYTHING, MONTH.window, ["team"])
        assert lost.job_window(EVERYTHING, "j-0") == sealed.job_window(EVERYTHING, "j-0")
        assert any("ledger.sealed is not set" in finding.detail for finding in lost.verify())
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(LedgerError, match=r"gpucost\[lake\]"):
        sealed.aggregate(EVERYTHING, MONTH.window, ["team"])


def test_files_of_a_seal_that_was_killed_are_removed_by_the_next(opened: Ledger, tmp_path: Path) -> None:
    stray = [
        tmp_path / "sealed" / place
        for place in ("lines/month=2026-10/lines-x-0.parquet", "manifests/2026-10-0.json")
    ]
    draft, other = (
        tmp_path / "sealed" / place
        for place in (".gpucost-draft-2026-10/lines-0.parquet", "lines/month=2026-09/lines-x-0.parquet")
    )
    for path in (*stray, draft, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half of it")
    os.utime(draft.parent, (0, 0))
    opened.seal(MONTH, author="ann")
    assert not any(path.exists() for path in (*stray, draft))
    assert other.exists()
    opened.unseal(MONTH, author="ann")
    assert files(tmp_path / "sealed") == [other]


@pytest.mark.slow
def test_an_object_store_is_the_same(opened: Ledger, tmp_path: Path) -> None:
    """fsspec's store in memory: it has no folders, no renaming, and no local path."""
    before = answers(opened)
    where = f"memory://{tmp_path.name}-{uuid4().hex}/sealed"
    with Ledger(opened._database, lambda: NOW_MS, where) as ledger:
        done = ledger.seal(MONTH, author="ann")
        assert differing(before, answers(ledger)) == []
        assert ledger.verify() == ()
        assert len(SealFolder(where).of_month(MONTH)) == done.files + 1
        ledger.unseal(MONTH, author="ann")
        assert SealFolder(where).of_month(MONTH) == []
        assert differing(before, answers(ledger)) == []


@pytest.mark.parametrize("place", ["{folder}/[prod]/a*b", "file://{folder}/a?b", "memory://{name}/[p]"])
def test_signs_of_patterns_in_the_name_of_the_folder_are_no_patterns(tmp_path: Path, place: str) -> None:
    """``axb`` would match ``a*b`` and ``a?b``, and ``p`` would ``[p]``."""
    where = place.format(folder=tmp_path, name=uuid4().hex)
    with Ledger.open(new_ledger(tmp_path / "l.db", filled), now=lambda: NOW_MS, sealed=where) as ledger:
        before = shown(ledger.aggregate(EVERYTHING, MONTH.window, ["team", "pod"]))
        ledger.seal(MONTH, author="ann")
        for found in list(tmp_path.glob("**/a[*?]b")):
            shutil.copytree(found, found.with_name("axb"))
        assert shown(ledger.aggregate(EVERYTHING, MONTH.window, ["team", "pod"])) == before
        assert ledger.verify_sealed(MONTH, deep=True) == ()
        assert len(SealFolder(where).of_month(MONTH)) > 1
        ledger.unseal(MONTH, author="ann")
        assert SealFolder(where).of_month(MONTH) == []
        left = [path for path in files(tmp_path) if path.suffix in (".parquet", ".json")]
        assert not [path for path in left if "axb" not in path.parts]


def test_files_are_the_same_out_of_either_database(
    tmp_path: Path, postgres_url: str, sqlite_url: str
) -> None:
    names = []
    for place, url in (("one", postgres_url), ("other", sqlite_url)):
        filled(url)
        with Ledger.open(url, now=lambda: NOW_MS, sealed=str(tmp_path / place)) as ledger:
            ledger.seal(MONTH, author="ann")
        names.append([path.name for path in files(tmp_path / place)])
    # Names have the hash of the content.
    assert names[0] == names[1]


def test_files_of_version_1_are_read_by_version_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version 2, as a program will have it that knows a measure more."""
    manifest = SealManifest.decoded((DATA / "manifest.json").read_bytes(), "manifest.json")
    assert manifest.version == 1
    clock = SealColumn("sm_clock_mhz_s", "integer", nullable=True, since=2)
    for table in ("lines", "days"):
        monkeypatch.setitem(seal_schema.TABLES, table, (*seal_schema.TABLES[table], clock))
    monkeypatch.setattr(seal_schema, "VERSION", 2)
    shutil.copytree(DATA, tmp_path / "sealed")
    store = SealedStore(str(tmp_path / "sealed"))
    old = tmp_path / "sealed" / next(file.path for file in manifest.files if file.table == "days")
    new = tmp_path / "new.parquet"
    store.query(f"COPY (SELECT *, 7::BIGINT AS sm_clock_mhz_s FROM '{old}') TO '{new}' (FORMAT parquet)")
    both = relation("days", "*", {1: [str(old)], 2: [str(new)]})
    [(rows, known, most)] = store.query(
        f"SELECT count(*), count(sm_clock_mhz_s), max(sm_clock_mhz_s) FROM {both}"
    )
    assert (rows, most) == (2 * known, 7)
    span = SealedSpan(store, MONTH.window, tuple((1, file) for file in manifest.files))
    sums = rows_of(span.sums(EVERYTHING, ["team"], {}, None))
    assert [row[:2] for row in sums] == [
        ("", 4_158_000),
        ("__unallocated__", 3_600_000),
        ("red", 13_200_000),
    ]
    later = (DATA / "manifest.json").read_text().replace('"version": 1', '"version": 3')
    with pytest.raises(LedgerError, match="upgrade gpucost"):
        SealManifest.decoded(later.encode(), "manifest.json")


def test_version_1_is_what_it_was() -> None:
    """A column more needs a new version, and a fixture of files beside those of version 1."""
    import pyarrow.parquet as pq

    manifest = SealManifest.decoded((DATA / "manifest.json").read_bytes(), "manifest.json")
    assert seal_schema.VERSION == 1
    for file in manifest.files:
        written = pq.ParquetFile(DATA / file.path).schema_arrow
        assert written.equals(seal_schema.arrow_schema(file.table), check_metadata=True), file.table


def test_others_read_the_files(sealed: Ledger, tmp_path: Path) -> None:
    """As docs/sealed.md says: the folder of a table as one table, with the month from the path."""
    frame = sealed.aggregate(EVERYTHING, MONTH.window, ["team"], filters={"bucket": ["held"]})
    wanted = {team: (int(ms), int(nano)) for team, ms, nano in frame[["team", "board_ms", "nano"]].to_numpy()}
    for table in ("lines", "days"):
        rows = pd.read_parquet(tmp_path / "sealed" / table)
        assert set(rows["month"]) == {"2026-10"}
        sums = rows[rows["bucket"] == "held"].groupby("team")[["board_ms", "nano"]].sum()
        assert {team: (int(ms), int(nano)) for team, ms, nano in sums.itertuples()} == wanted
    page = (Path(__file__).parents[2] / "docs" / "sealed.md").read_text("utf-8")
    statement = page.partition("-- DuckDB; s3:// with its httpfs\n")[2].partition(";")[0]
    found = SealedStore(str(tmp_path)).query(statement.replace("/data/sealed", str(tmp_path / "sealed")))
    assert {team: (hours, cost) for _, team, hours, cost in found} == {
        team: (ms / 3_600_000.0, nano / 1e9) for team, (ms, nano) in wanted.items()
    }


@pytest.mark.slow
def test_the_demo_says_the_same_bytes(tmp_path: Path) -> None:
    """Its month through every report of the command line, with waste and steps of an hour."""
    with DemoMonth.record(tmp_path) as demo:
        demo.ingest(lambda *_: None)
        demo.assess(lambda *_: None)
        demo.detect()
    url, month = f"sqlite:///{tmp_path / LEDGER}", DEMO_MONTH.window
    with Ledger.open(url, now=lambda: month.end_ms, sealed=str(tmp_path / "sealed")) as ledger:
        ledger.close_month(DEMO_MONTH, author="ann", min_coverage=Fraction(0), reason="demo")
        day = Window(month.start_ms + 5 * DAY_MS, month.start_ms + 6 * DAY_MS)
        teams = sorted(ledger.teams(EVERYTHING) - {"__unallocated__", "__unavailable__", "__unknown__"})
        jobs = sorted({each.job_uid for each in ledger.jobs(EVERYTHING, JobQuery(), limit=100)})[:3]

        def said() -> list[Any]:
            found: list[Any] = [shown(ledger.waste(EVERYTHING, day, ["team", "node"], step_ms=HOUR_MS))]
            reporting = build_reporting(ledger, TeamRules.default(), keeps=False)
            for scope in (EVERYTHING, Scope(frozenset(teams[:2]))):
                answer = reporting.month(scope, DEMO_MONTH)
                assert answer is not None
                found += [render_month(answer.report, form) for form in (ReportFormat.JSON, ReportFormat.CSV)]
                for dims in (["team", "user", "queue"], ["node", "pod", "model"]):
                    found.append(shown(ledger.aggregate(scope, month, dims, step_ms=DAY_MS)))
                found += [shown(ledger.waste(scope, month, ["team"])), ledger.problems(scope, month)]
                for uid in jobs:
                    held = ledger.job_window(scope, uid) or day
                    found.append(shown(ledger.aggregate(scope, held, JOB_DIMS, filters={"job_uid": [uid]})))
                    found += [shown(ledger.progress(scope, held, uid)), held]
            return found

        before = said()
        done = ledger.seal(DEMO_MONTH, author="ann")
        assert done.lines > 10_000
        assert said() == before
        assert ledger.verify_sealed(DEMO_MONTH, deep=True) == ()
