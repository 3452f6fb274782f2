"""The waste ledger: every GPU-millisecond of capacity in one bucket, whatever was claimed."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.attribution.sweep import BUCKETS
from gpucost.domain.buckets import (
    ORDER,
    WASTE_WHEN_UNCLAIMED,
    Bucket,
    Waste,
)
from gpucost.domain.errors import InputError, LedgerConflict, MonthClosed
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Window
from gpucost.ledger.db.records import AssessmentCounts, WasteOfWindow
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.usage.query import DIMENSIONS
from gpucost.ledger.waste.waste_reader import WASTE_MEASURES
from gpucost.ledger.waste.waste_writer import WASTE_LINES
from tests.ledger.builders import (
    BATCH_CLUSTER,
    CLUSTER,
    MONTH,
    NOW_MS,
    PRICE,
    attribution,
    hour,
    ingest,
    ingest_batch,
    line,
    random_rows,
)
from tests.support.ledgers import new_ledger

HOURS = 6
WHOLE = Window(hour(0).start_ms, hour(HOURS - 1).end_ms)
NOBODY_LOOKED, STALE = 2, 3
CAPACITY = [str(bucket) for bucket in Bucket if bucket.is_capacity]
KEYS = [name for name in WASTE_LINES.column_names if name not in ("waste", "board_ms", "nano")]


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as opened:
        yield opened


def part(of: dict[str, Any], waste: str, board_ms: int, nano: int | None) -> dict[str, Any]:
    return {name: of[name] for name in KEYS} | {"waste": str(waste), "board_ms": board_ms, "nano": nano}


def frame(*parts: dict[str, Any]) -> pd.DataFrame:
    """Of Python objects: pandas' own strings cannot hold every text that Python has."""
    return pd.DataFrame(list(parts), columns=list(WASTE_LINES.column_names), dtype=object)


def digest_of(ledger: Ledger, window: Window, cluster: str = CLUSTER) -> str:
    [info] = ledger.windows(window, cluster)
    return info.digest


def assess(ledger: Ledger, window: Window, *parts: dict[str, Any], **options: Any) -> bool:
    """Write the waste of a window as final, unless ``options`` say otherwise."""
    final, digest = options.pop("final", True), options.pop("digest", None)
    given = WasteOfWindow(window, digest or digest_of(ledger, window), frame(*parts), final)
    [changed] = ledger.write_waste(CLUSTER, [given], code_version="1", **options)
    return changed


def random_parts(seed: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some parts of some lines; a few take the whole of a line, some its rest by name."""
    choose = random.Random(f"parts {seed} {rows[0]['window_start_ms']}")
    parts = []
    for row in rows:
        if row["bucket"] not in CAPACITY or choose.random() < 0.4:
            continue
        left_ms, left_nano = row["board_ms"], row["nano"]
        for waste in choose.sample(list(Waste), choose.randint(1, 3)):
            everything = choose.random() < 0.2
            board_ms = left_ms if everything else choose.randint(0, left_ms)
            nano = left_nano if everything or left_nano is None else choose.randint(0, left_nano)
            parts.append(part(row, waste, board_ms, nano))
            left_ms, left_nano = left_ms - board_ms, None if left_nano is None else left_nano - nano
    return parts


def fill(ledger: Ledger, seed: int = 1) -> list[dict[str, Any]]:
    """Hours with waste, one that was not assessed and one whose lines changed since: every part that counts,
    the rest of every line included."""
    counted = []
    for number in range(HOURS):
        window = hour(number)
        rows = random_rows(seed, window)
        parts = random_parts(seed, rows)
        ingest(ledger, window, *rows)
        if number != NOBODY_LOOKED:
            assess(ledger, window, *parts, final=bool(number % 2))
        if number == STALE:
            rows[0]["board_ms"] -= 1
            ingest(ledger, window, *rows, reason="late")
        counted += divided(rows, parts, assessed=number not in (NOBODY_LOOKED, STALE))
    return counted


def divided(
    rows: list[dict[str, Any]], parts: list[dict[str, Any]], *, assessed: bool
) -> list[dict[str, Any]]:
    """Lines as parts, as the waste ledger is defined."""
    by_key = defaultdict(list)
    for one in parts if assessed else ():
        by_key[tuple(one[name] for name in KEYS)].append(one)
    found = []
    for row in rows:
        if row["bucket"] == Bucket.OVERCOMMITTED:
            continue
        claimed = by_key[tuple(row[name] for name in KEYS)]
        rest = WASTE_WHEN_UNCLAIMED[Bucket(row["bucket"])]
        if not assessed and row["bucket"] in (Bucket.HELD, Bucket.UNALLOCATED):
            rest = Waste.UNKNOWN
        nano = None if row["nano"] is None else row["nano"] - sum(one["nano"] for one in claimed)
        left = part(row, rest, row["board_ms"] - sum(one["board_ms"] for one in claimed), nano)
        found += [*claimed, left]
    return found


def expected(parts: list[dict[str, Any]], keys: list[str]) -> list[tuple[Any, ...]]:
    """Sums in plain Python, in the order of the ledger: (keys, waste, board_ms, nano, unpriced_ms)."""
    groups = defaultdict(list)
    for one in parts:
        groups[(*(one[key] for key in keys), one["waste"])].append(one)
    rows = []
    for key in sorted(groups, key=lambda key: (*key[:-1], ORDER[Waste(key[-1])])):
        found = groups[key]
        board_ms = sum(one["board_ms"] for one in found)
        nano = sum(one["nano"] or 0 for one in found)
        unpriced = sum(one["board_ms"] for one in found if one["nano"] is None)
        if board_ms or nano:
            rows.append((*key, board_ms, None if board_ms == unpriced and not nano else nano, unpriced))
    return rows


def rows_of(found: pd.DataFrame) -> list[tuple[Any, ...]]:
    columns = [found[name].astype(object).where(found[name].notna(), None) for name in found.columns]
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ledger, list[dict[str, Any]]]]:
    path = tmp_path_factory.mktemp("waste") / "ledger.db"
    with Ledger.open(new_ledger(path), now=lambda: NOW_MS) as opened:
        yield opened, fill(opened)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dims=st.lists(st.sampled_from(DIMENSIONS), max_size=4, unique=True),
    step_hours=st.sampled_from([None, 1, 2, 24]),
    teams=st.sampled_from([None, ("red",), ("éclair", "Red", "__unallocated__"), ()]),
    models=st.sampled_from([None, ["H100"], ["é-gpu", "A100-80GB"], []]),
)
def test_waste_adds_up_to_the_aggregate_by_any_dimensions(
    filled: tuple[Ledger, list[dict[str, Any]]],
    dims: list[str],
    step_hours: int | None,
    teams: tuple[str, ...] | None,
    models: list[str] | None,
) -> None:
    ledger, _ = filled
    scope = Scope(None if teams is None else frozenset(teams))
    filters = {} if models is None else {"model": models}
    step_ms = None if step_hours is None else step_hours * HOUR_MS
    found = ledger.waste(scope, WHOLE, dims, filters=filters, step_ms=step_ms)
    keys = [*dims, *(["step_start_ms"] if step_ms is not None else [])]
    assert list(found.columns) == [*keys, "waste", *WASTE_MEASURES]
    sums = ledger.aggregate(scope, WHOLE, dims, filters=filters | {"bucket": CAPACITY}, step_ms=step_ms)
    added: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for *key, _waste, board_ms, nano, unpriced in rows_of(found):
        before = added[tuple(key)]
        added[tuple(key)] = [before[0] + board_ms, before[1] + (nano or 0), before[2] + unpriced]
    wanted = {
        tuple(key): [board_ms, nano or 0, unpriced]
        for *key, board_ms, nano, unpriced in rows_of(sums[[*keys, *WASTE_MEASURES]])
        if board_ms or nano
    }
    assert added == wanted


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dims=st.lists(st.sampled_from(DIMENSIONS), max_size=3, unique=True), by_hour=st.booleans())
def test_every_part_is_where_it_was_claimed(
    filled: tuple[Ledger, list[dict[str, Any]]], dims: list[str], by_hour: bool
) -> None:
    ledger, parts = filled
    found = ledger.waste(EVERYTHING, WHOLE, dims, step_ms=HOUR_MS if by_hour else None)
    keys = [*dims, *(["window_start_ms"] if by_hour else [])]
    assert rows_of(found) == expected(parts, keys)


def test_on_both_databases(ledger: Ledger) -> None:
    parts = fill(ledger)
    for keys in (["team", "model"], ["job_uid", "node", "bucket"], []):
        assert rows_of(ledger.waste(EVERYTHING, WHOLE, keys)) == expected(parts, keys)
    assert ledger.assessed(WHOLE) == AssessmentCounts(final=2, provisional=2, missing=2)
    assert ledger.verify() == ()


def test_both_databases_give_the_same_bytes(sqlite_url: str, postgres_url: str) -> None:
    texts = []
    for url in (sqlite_url, postgres_url):
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            fill(ledger)
            scopes = (EVERYTHING, Scope(frozenset({"éclair", "Red"})))
            asked = [(scope, list(dims)) for scope in scopes for dims in (DIMENSIONS, ("team",), ())]
            texts.append([ledger.waste(scope, WHOLE, dims, step_ms=DAY_MS).to_csv() for scope, dims in asked])
    assert texts[0] == texts[1]


def test_a_team_sees_its_own_held_time(ledger: Ledger) -> None:
    parts = fill(ledger)
    own = [one for one in parts if one["team"] == "red"]
    scope = Scope(frozenset({"red", "__unallocated__"}))
    assert rows_of(ledger.waste(scope, WHOLE, ["team"])) == expected(own, ["team"])
    assert ledger.waste(scope, WHOLE, [], filters={"team": ["blue"]}).empty
    assert ledger.waste(scope, WHOLE, [], filters={"bucket": ["unallocated"]}).empty


def test_an_hour_is_unknown_until_somebody_looked(ledger: Ledger) -> None:
    window = hour(0)
    rows = [
        line(window),
        line(window, node="n2", bucket="unallocated"),
        line(window, node="n3", bucket="unavailable"),
        line(window, node="n4", bucket="unknown"),
        line(window, node="n5", bucket="overcommitted"),
    ]
    ingest(ledger, window, *rows)

    def hours() -> dict[str, float]:
        found = ledger.waste(EVERYTHING, window, [])
        return dict(zip(found.waste, found.board_ms / HOUR_MS, strict=True))

    assert hours() == {"unavailable": 1, "unknown": 3}
    assert ledger.assessed(window) == AssessmentCounts(0, 0, 1)
    assert assess(ledger, window, final=False), "nobody wasted anything"
    assert hours() == {"unavailable": 1, "no_demand": 1, "productive": 1, "unknown": 1}
    idle = part(rows[0], Waste.IDLE, HOUR_MS // 4, PRICE // 4)
    assert assess(ledger, window, idle)
    assert hours() == {"unavailable": 1, "idle": 0.25, "no_demand": 1, "productive": 0.75, "unknown": 1}
    assert ledger.assessed(window, CLUSTER) == AssessmentCounts(1, 0, 0)
    assert ledger.assessed(window, "beta") == AssessmentCounts(0, 0, 0)
    ingest(ledger, window, *rows[:4], reason="late")
    assert hours() == {"unavailable": 1, "unknown": 3}
    assert ledger.assessed(window) == AssessmentCounts(0, 0, 1)


def test_what_is_left_to_look_at(ledger: Ledger) -> None:
    for number in range(4):
        ingest(ledger, hour(number), line(hour(number)))
        ingest(ledger, hour(number), line(hour(number), cluster="beta"), cluster="beta")
    assess(ledger, hour(1))
    assess(ledger, hour(2), final=False)
    found = ledger.unassessed(CLUSTER, WHOLE)
    assert [(info.cluster, info.window) for info in found] == [(CLUSTER, hour(n)) for n in (0, 2, 3)]
    assert [info.window for info in ledger.unassessed(CLUSTER, hour(3))] == [hour(3)]
    assert ledger.assessed(hour(2), CLUSTER) == AssessmentCounts(0, 1, 0), (
        "neither the hour before nor the one after"
    )
    assert ledger.unassessed("gamma", WHOLE) == ()


def test_the_same_again_changes_nothing_and_final_stays(ledger: Ledger) -> None:
    window = hour(0)
    row = line(window)
    ingest(ledger, window, row)
    idle, stalled = part(row, Waste.IDLE, 5, 5), part(row, Waste.GANG_STALL, 7, 7)
    rest = part(row, Waste.PRODUCTIVE, 100, 100)
    assert assess(ledger, window, idle, final=False)
    assert not assess(ledger, window, idle, final=False)
    assert not assess(ledger, window, rest, idle, final=False), "the rest goes without saying"
    assert assess(ledger, window, stalled, idle, final=False), "what is provisional is replaced"
    assert assess(ledger, window, stalled, idle), "the same, final now"
    assert not assess(ledger, window, idle, stalled)
    assert not assess(ledger, window, stalled, idle, final=False), "final stays final"
    halves = [part(row, Waste.IDLE, 2, 3), part(row, Waste.IDLE, 3, 2)]
    assert not assess(ledger, window, *halves, stalled), "parts of one bucket are added up"
    with pytest.raises(LedgerConflict, match="is final: other waste needs a reason"):
        assess(ledger, window, idle)
    assert assess(ledger, window, idle, final=False, reason="the threshold was wrong", author="ann")
    assert ledger.assessed(window) == AssessmentCounts(1, 0, 0), "what replaces it is final too"
    told = ledger.audit(EVERYTHING)[-1]
    assert (told.action, told.author, told.reason) == ("waste", "ann", "the threshold was wrong")
    assert ledger.verify() == ()


def test_lines_that_changed_since_are_not_assessed(ledger: Ledger) -> None:
    window = hour(0)
    ingest(ledger, window, line(window))
    before = digest_of(ledger, window)
    ingest(ledger, window, line(window, board_ms=5, nano=5), reason="late")
    with pytest.raises(LedgerConflict, match="has other lines by now"):
        assess(ledger, window, digest=before)
    with pytest.raises(InputError, match="a window of the ledger"):
        assess(ledger, hour(7), digest=before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"board_ms": -1}, r"waste board_ms of the 'held' line of node-1 .*ml/train-0.*-1 is not allowed"),
        ({"nano": -1}, "waste nano of the 'held' line of node-1"),
        ({"nano": None}, "the line has a price"),
        ({"board_ms": HOUR_MS - 9}, "at most 3600000, what the line has"),
        ({"nano": PRICE - 9}, f"at most {PRICE}, what the line has"),
        ({"waste": "lazy"}, "'lazy' is not allowed; allowed: unavailable, gang_stall"),
        ({"node": "node-9"}, r"waste_lines: .*node-9.*parts of lines that the ledger has of alpha"),
        ({"team": "blue"}, "parts of lines that the ledger has of alpha"),
        ({"pod_uid": "\ud800\0"}, "parts of lines that the ledger has of alpha"),
        ({"rate_id": "a100@1"}, "parts of lines that the ledger has of alpha"),
        ({"bucket": "unknown"}, "parts of lines that the ledger has of alpha"),
        ({"cluster": "beta"}, "parts of lines that the ledger has of alpha"),
        ({"window_start_ms": 5}, "parts of lines that the ledger has of alpha"),
        ({"bucket": "overcommitted"}, "lines of capacity"),
    ],
)
def test_parts_that_cannot_be_right_are_refused_and_nothing_is_written(
    ledger: Ledger, change: dict[str, Any], message: str
) -> None:
    first, second = hour(0), hour(1)
    row = line(second)
    over = line(second, bucket="overcommitted")
    ingest(ledger, first, line(first))
    ingest(ledger, second, row, over)
    good = part(line(first), Waste.IDLE, 10, 10)
    parts = [part(row, Waste.OVERSIZED, 10, 10), part(row, Waste.IDLE, 10, 10) | change]
    given = [
        WasteOfWindow(window, digest_of(ledger, window), frame(*rows), True)
        for window, rows in ((first, [good]), (second, parts))
    ]
    with pytest.raises(InputError, match=message):
        ledger.write_waste(CLUSTER, given, code_version="1")
    assert ledger.assessed(WHOLE) == AssessmentCounts(0, 0, 2), "all of them or none"
    good_ones = [given[0], replace(given[1], lines=frame(parts[0]))]
    assert ledger.write_waste(CLUSTER, good_ones, code_version="1") == (True, True)
    assert ledger.write_waste(CLUSTER, good_ones, code_version="2") == (False, False)


def test_a_line_without_a_price_has_parts_without_one(ledger: Ledger) -> None:
    window = hour(0)
    row = line(window, rate_id="", nano=None)
    ingest(ledger, window, row)
    with pytest.raises(InputError, match="null for a line without a price"):
        assess(ledger, window, part(row, Waste.IDLE, 10, 0))
    assess(ledger, window, part(row, Waste.IDLE, 10, None))
    found = rows_of(ledger.waste(EVERYTHING, window, []))
    assert found == [("idle", 10, None, 10), ("productive", HOUR_MS - 10, None, HOUR_MS - 10)]


def test_the_waste_of_an_attribution(ledger: Ledger) -> None:
    found = attribution(0, 6)
    ingest_batch(ledger, found)
    held = found.lines[found.lines["bucket"] == BUCKETS.index(Bucket.HELD)]
    parts = replace(found, lines=held).flat()
    parts = parts.assign(waste=pd.Series(["idle"] * len(parts), dtype="str"))[list(WASTE_LINES.column_names)]
    parts["board_ms"] //= 2
    parts["nano"] //= 3
    given = [
        WasteOfWindow(info.window, info.digest, parts[parts["window_start_ms"] == info.window.start_ms], True)
        for info in ledger.unassessed(BATCH_CLUSTER, WHOLE)
    ]
    assert ledger.write_waste(BATCH_CLUSTER, given, code_version="1") == (True,) * 6
    idle = ledger.waste(EVERYTHING, WHOLE, ["pod"]).query("waste == 'idle'")
    sums = parts.groupby("pod", as_index=False)[["board_ms", "nano"]].sum()
    assert dict(zip(idle["pod"], idle["board_ms"], strict=True)) == dict(
        zip(sums["pod"], sums["board_ms"], strict=True)
    )
    assert idle["nano"].sum() == sums["nano"].sum() > 0
    assert ledger.assessed(WHOLE) == AssessmentCounts(6, 0, 0)
    assert ledger.verify() == ()


def test_an_empty_answer_has_the_same_columns_and_types(ledger: Ledger) -> None:
    empty = ledger.waste(EVERYTHING, WHOLE, ["team"], step_ms=DAY_MS)
    assert empty.empty
    fill(ledger)
    assert empty.dtypes.equals(ledger.waste(EVERYTHING, WHOLE, ["team"], step_ms=DAY_MS).dtypes)
    with pytest.raises(InputError, match="cut: alpha"):
        ledger.waste(EVERYTHING, Window(WHOLE.start_ms + 1, WHOLE.end_ms), [])
    with pytest.raises(InputError, match="'colour'"):
        ledger.waste(EVERYTHING, WHOLE, ["colour"])


def closed(url: str) -> dict[str, Any]:
    window = hour(0)
    row = line(window)
    idle = part(row, Waste.IDLE, 10, 10)
    with Ledger.open(url, now=lambda: NOW_MS) as ledger:
        ingest(ledger, window, row)
        ingest(ledger, hour(1), line(hour(1)))
        assess(ledger, window, idle, final=False)
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="two hours")
    return idle


def test_a_closed_month_keeps_its_waste(ledger_url: str) -> None:
    idle = closed(ledger_url)
    with Ledger.open(ledger_url, now=lambda: NOW_MS) as ledger:
        assert not assess(ledger, hour(0), idle, final=False)
        for final in (True, False):
            with pytest.raises(MonthClosed, match="2026-10 is closed: the waste of alpha"):
                assess(ledger, hour(0), final=final, reason="please")
        with pytest.raises(MonthClosed):
            assess(ledger, hour(1))
        assert ledger.unassessed(CLUSTER, WHOLE) == (), "nobody can write what is left"
        assert ledger.assessed(WHOLE) == AssessmentCounts(0, 1, 1)
        assert ledger.verify() == ()
    engine = create_engine(ledger_url)
    for statement in (
        "UPDATE waste_line SET board_ms = 9",
        "DELETE FROM waste_line",
        "UPDATE waste_window SET state = 'final'",
        "DELETE FROM waste_window",
        "INSERT INTO waste_window SELECT id, 1, 'final', '', 0, '' FROM ledger_window WHERE start_ms = "
        f"{hour(1).start_ms}",
    ):
        with pytest.raises(DBAPIError, match="the month is closed"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE waste_line SET board_ms = 9", "waste changed"),
        ("DELETE FROM waste_line", "waste changed"),
        ("UPDATE waste_line SET waste = 'oversized'", "waste changed"),
        ("UPDATE waste_window SET digest = ''", "waste changed"),
        ("UPDATE waste_window SET version = 7", "waste of version 7, the window has 1"),
        ("DELETE FROM waste_window", "1 waste lines of a window that was not assessed"),
    ],
)
def test_verify_finds_waste_that_was_changed(
    ledger: Ledger, ledger_url: str, statement: str, message: str
) -> None:
    window = hour(0)
    row = line(window)
    ingest(ledger, window, row)
    assess(ledger, window, part(row, Waste.IDLE, 10, 10))
    assert ledger.verify() == ()
    engine = create_engine(ledger_url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
    [finding] = ledger.verify(MONTH)
    assert (finding.month, finding.subject) == (MONTH, f"{CLUSTER} {window}")
    assert message in finding.detail


def test_the_digest_of_waste_is_as_documented(ledger: Ledger, ledger_url: str) -> None:
    window = hour(0)
    row = line(window)
    ingest(ledger, window, row)
    assess(ledger, window, part(row, Waste.IDLE, 10, 11), part(row, Waste.OVERSIZED, 5, 6))
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        keys = [
            connection.execute(text(f"SELECT content_key FROM {table} WHERE id = 1")).scalar_one()
            for table in ("unit", "holder", "rate")
        ]
        recorded = connection.execute(text("SELECT digest FROM waste_window")).scalar_one()
    engine.dispose()
    header = ["gpucost waste 1", CLUSTER, window.start_ms, window.end_ms, digest_of(ledger, window), 2]
    rows = [[*keys, "held", "idle", 10, 11], [*keys, "held", "oversized", 5, 6]]
    written = "".join(json.dumps(values, separators=(",", ":")) + "\n" for values in (header, *rows))
    assert recorded == hashlib.sha256(written.encode()).hexdigest()


def test_the_digest_of_waste_is_of_values_not_of_rows(sqlite_url: str, postgres_url: str) -> None:
    digests = []
    for url, order in ((sqlite_url, (0, 1)), (postgres_url, (1, 0))):
        with Ledger.open(url, now=lambda: NOW_MS) as ledger:
            for number in order:
                ingest(ledger, hour(number), *random_rows(number, hour(number)))
                assess(ledger, hour(number), *random_parts(1, random_rows(number, hour(number))))
        engine = create_engine(url)
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT digest FROM waste_window")).scalars()
            digests.append(set(rows))
        engine.dispose()
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2
