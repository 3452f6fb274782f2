"""Days that are read once, and kept for the days around them, say what each says that is read for itself."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.cli.application import app
from gpucost.cli.terminal.exit_codes import ExitCode
from gpucost.contract.frames import ACTIVITY, DEMAND, FRAMES, HEALTH, QUOTAS
from gpucost.contract.kube_state import REQUESTS
from gpucost.domain.errors import NotCovered, SourceUnreachable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month, Window
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.base.document import to_json
from gpucost.service.settings.model import PrometheusSettings, Settings
from gpucost.service.wiring.adhoc_month import read_month
from gpucost.service.wiring.inputs import load_book
from gpucost.telemetry import dialect_sources as by_day_module
from gpucost.telemetry.day_cache import CacheFiles, DayCache, DayCounts
from gpucost.telemetry.dialect_sources import CachedCoverageSource, DailyUpstreamSource, joined_days
from gpucost.telemetry.evidence import heartbeat
from gpucost.telemetry.prometheus.api_client import PrometheusClient
from gpucost.telemetry.prometheus.cluster_reader import ClusterReader
from gpucost.telemetry.prometheus.source_settings import PrometheusSourceSettings
from gpucost.telemetry.prometheus_source import PrometheusSource
from gpucost.telemetry.upstream.kube_reader import KubeStateReader, UpstreamSettings
from gpucost.telemetry.upstream.upstream_source import UpstreamSource
from tests.support.existing.kube_series import kube_target
from tests.support.existing.script import scripted
from tests.support.existing.text import Scrapes, Series, Writer
from tests.support.existing.variants import MIXED_RELEASES, Variant, write_second
from tests.support.existing.world import T0, at
from tests.support.prometheus import create_blocks, needs_prometheus, running_prometheus

pytestmark = [needs_prometheus, pytest.mark.prometheus, pytest.mark.slow]

DAYS = 3
GAP = Window(at(46), at(46) + 20 * MINUTE_MS)
VARIANT = Variant(
    scripted((0, 24 * DAYS), name="days"), 4 * MINUTE_MS, MIXED_RELEASES, gaps=(GAP,), lean=True
)
CLUSTER = VARIANT.name
MONTH = Month(2026, 10).window
NOW = at(24 * 40)
SETTINGS = PrometheusSourceSettings()
AFTER_MS = 5 * HOUR_MS


Answer = tuple[int, bytes]


@pytest.fixture(scope="module", autouse=True)
def told_once() -> Iterator[None]:
    """The samples stand: whoever puts a question to the server again, a report too, is told what it said."""
    said: dict[str, Answer] = {}
    send = PrometheusClient._send

    def once(self: PrometheusClient, path: str, form: Mapping[str, Any] | None) -> Answer:
        question = json.dumps([self.url, path, dict(form or {})], sort_keys=True)
        if question not in said:
            said[question] = send(self, path, form)
        return said[question]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PrometheusClient, "_send", once)
        yield


class AskedClient(PrometheusClient):
    """Remembers what it asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[str] = []

    def _send(self, path: str, form: Mapping[str, Any] | None) -> Answer:
        self.asked.append(path)
        return super()._send(path, form)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("days")
    write_second([VARIANT], folder / "blocks")
    with running_prometheus(folder / "blocks") as found:
        yield found


@pytest.fixture
def client(url: str) -> Iterator[AskedClient]:
    with AskedClient(url) as found:
        yield found


def settings_of(url: str, *, waste: bool = False, **source: object) -> Settings:
    """Of this server; nobody looks for ``waste``, unless it says so. ``source`` says where days are kept."""
    found = Settings()
    return found.model_copy(
        update={
            "prometheus": PrometheusSettings(url=url),
            "detectors": found.detectors.model_copy(update={"enabled": waste}),
            "source": found.source.model_copy(update=source),
        }
    )


def by_day(
    client: PrometheusClient,
    settings: PrometheusSourceSettings = SETTINGS,
    ahead: int = 0,
    cache: DayCache | None = None,
) -> DailyUpstreamSource:
    existing = UpstreamSettings()
    return DailyUpstreamSource(
        client, settings, existing, now=lambda: NOW, days=MONTH, ahead=ahead, cache=cache
    )


def alone(client: PrometheusClient, settings: PrometheusSourceSettings = SETTINGS) -> UpstreamSource:
    return UpstreamSource(client, settings, UpstreamSettings(), now=lambda: NOW)


def day(number: int) -> Window:
    return Window(T0 + number * DAY_MS, T0 + (number + 1) * DAY_MS)


def around(number: int, covered: Window) -> Window:
    """What a day is assessed by."""
    found = covered.intersect(Window(day(number).start_ms - DAY_MS, day(number).end_ms + AFTER_MS))
    assert found is not None
    return found


def plain(frames: ClusterFrames, name: str) -> pd.DataFrame:
    """Activity is in the order in which it was read, and a text may be a code; all else is as it is."""
    frame: pd.DataFrame = getattr(frames, name)
    frame = frame.astype({each: "str" for each in frame if frame[each].dtype.name == "category"})
    return frame.sort_values([*frame], ignore_index=True) if name == ACTIVITY.name else frame


def same(found: ClusterFrames, expected: ClusterFrames) -> None:
    for spec in FRAMES:
        pd.testing.assert_frame_equal(
            plain(found, spec.name), plain(expected, spec.name), check_exact=True, obj=spec.name
        )
    assert len(found.activity) > 100
    for name in found.activity.select_dtypes("category"):
        # Whose turn it is among equals goes by the order of codes.
        names = found.activity[name].cat.categories
        assert list(names) == sorted(names), name
    assert [*found.lacks.items()] == [*expected.lacks.items()]


def test_histories_are_those_of_each_day_for_itself(client: AskedClient) -> None:
    source, other = by_day(client), alone(client)
    covered = source.covered(CLUSTER)
    assert covered is not None
    for number in range(DAYS):
        window = around(number, covered)
        same(source.history(CLUSTER, window), other.history(CLUSTER, window))
        read, each = source.read(CLUSTER, day(number)), other.read(CLUSTER, day(number))
        for spec in FRAMES:
            pd.testing.assert_frame_equal(getattr(read, spec.name), getattr(each, spec.name))
        assert read.problems == each.problems


@pytest.mark.parametrize(("step_ms", "after_ms"), [(7 * MINUTE_MS, HOUR_MS), (5 * MINUTE_MS, 33 * MINUTE_MS)])
def test_where_steps_do_not_end_with_the_day_or_the_hour_nothing_is_cut(
    client: AskedClient, step_ms: int, after_ms: int
) -> None:
    settings = PrometheusSourceSettings(activity_step_ms=step_ms)
    window = Window(day(1).end_ms - after_ms, day(1).end_ms + after_ms)
    same(by_day(client, settings).history(CLUSTER, window), alone(client, settings).history(CLUSTER, window))


def test_a_day_is_read_once(client: AskedClient) -> None:
    source = by_day(client)
    covered = source.covered(CLUSTER)
    assert covered is not None
    counts = []
    for number in range(DAYS):
        source.read(CLUSTER, day(number))
        client.asked.clear()
        source.history(CLUSTER, around(number, covered))
        asked = len(client.asked)
        client.asked.clear()
        source.read(CLUSTER, day(number))
        source.covered(CLUSTER)
        assert client.asked == []
        # Asked for again, only how quotas were is looked at anew.
        source.history(CLUSTER, around(number, covered))
        counts.append((asked, len(client.asked)))
    assert all(again < 0.2 * asked for asked, again in counts)
    client.asked.clear()
    alone(client).history(CLUSTER, around(2, covered))
    assert counts[2][0] < 0.65 * len(client.asked)


def test_the_next_days_are_read_meanwhile_and_each_once(client: AskedClient) -> None:
    found = []
    for ahead in (0, 2):
        source = by_day(client, ahead=ahead)
        source.covered(CLUSTER)
        client.asked.clear()
        frames = [source.read(CLUSTER, day(number)) for number in range(DAYS)]
        found.append((frames, sorted(client.asked)))
    (one, asked), (other, again) = found
    assert again == asked
    for first, second in zip(one, other, strict=True):
        for spec in FRAMES:
            pd.testing.assert_frame_equal(getattr(first, spec.name), getattr(second, spec.name))
        assert first.problems == second.problems


def test_what_cannot_be_read_meanwhile_is_raised_in_its_turn(
    client: AskedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_evidence = heartbeat.read_evidence

    def refused(reader: ClusterReader, asked: Window) -> Any:
        if asked == day(1):
            raise NotCovered("not of that day")
        return read_evidence(reader, asked)

    monkeypatch.setattr(heartbeat, "read_evidence", refused)
    source = by_day(client, ahead=2)
    assert len(source.read(CLUSTER, day(0)).allocations)
    with pytest.raises(NotCovered, match="of that day"):
        source.read(CLUSTER, day(1))
    assert len(source.read(CLUSTER, day(2)).allocations)
    with pytest.raises(NotCovered, match="of that day"):
        source.read(CLUSTER, day(1))


def test_only_days_that_are_near_are_kept(client: AskedClient) -> None:
    source = by_day(client)
    covered = source.covered(CLUSTER)
    assert covered is not None
    first = weakref.ref(source.read(CLUSTER, day(0)))
    for number in range(DAYS):
        assert first() is not None
        source.read(CLUSTER, day(number))
        source.history(CLUSTER, around(number, covered))
    assert first() is None


def test_as_many_days_are_kept_as_are_looked_at_together(
    client: AskedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucost.telemetry.dialect_sources._MOST_DAYS", 1)
    source = by_day(client)
    covered = source.covered(CLUSTER)
    assert covered is not None
    window = covered.intersect(Window(day(0).start_ms, day(2).end_ms))
    assert window is not None
    client.asked.clear()
    source.history(CLUSTER, window)
    first = len(client.asked)
    source.read(CLUSTER, day(1))
    client.asked.clear()
    source.history(CLUSTER, window)
    # Only how quotas were is looked at anew.
    assert len(client.asked) < 0.2 * first


def test_what_cannot_be_read_of_the_next_day_does_not_count_for_this_one(
    client: AskedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(day(1).end_ms - HOUR_MS, day(1).end_ms + HOUR_MS)
    part = Window(day(2).start_ms, window.end_ms)
    read_evidence = heartbeat.read_evidence

    def refused(reader: ClusterReader, asked: Window) -> Any:
        if asked == day(2):
            raise NotCovered("no uids from noon on")
        return read_evidence(reader, asked)

    monkeypatch.setattr(heartbeat, "read_evidence", refused)
    found = by_day(client).history(CLUSTER, window)
    assert found.allocations["end_ms"].max() == part.end_ms
    with pytest.raises(NotCovered, match="from noon"):
        by_day(client).history(CLUSTER, Window(day(1).end_ms - HOUR_MS, day(2).end_ms))


@pytest.mark.parametrize("words", [(), ("--waste",)])
def test_a_report_is_the_same_to_the_byte(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["report", "2026-10", "--prometheus", url, "-f", "json", *words]

    def reported() -> tuple[str, int]:
        asked: list[str] = []
        send = PrometheusClient._send
        with monkeypatch.context() as patched:

            def counting(self: PrometheusClient, path: str, *rest: Any) -> Answer:
                asked.append(path)
                return send(self, path, *rest)

            patched.setattr(PrometheusClient, "_send", counting)
            result = CliRunner().invoke(app, command, env={"COLUMNS": None})
        assert result.exit_code == ExitCode.OK, result.stderr
        return re.sub(r'"made_at": "[^"]*"', "", result.stdout), len(asked)

    found, queries = reported()
    monkeypatch.setattr(by_day_module, "CachedCoverageSource", PrometheusSource)

    class NotByDay:
        """Is asked for in place of the source by day, and makes one that is none."""

        def __new__(cls, client: Any, options: Any, existing: Any, *, now: Any, **_: Any) -> Any:
            return UpstreamSource(client, options, existing, now=now)

    monkeypatch.setattr(by_day_module, "DailyUpstreamSource", NotByDay)
    expected, more = reported()
    assert found == expected
    assert queries < (0.6 if words else 1) * more


def test_what_one_day_tells_is_not_lacking() -> None:
    every = {DEMAND.name: "never", HEALTH.name: "no GPUs"}
    days = [ClusterFrames(lacks=every), ClusterFrames(lacks={DEMAND.name: "never"})]
    assert joined_days(days, day(0)).lacks == {DEMAND.name: "never"}
    assert joined_days(days[:1], day(0)).lacks == every
    assert QUOTAS.name not in joined_days(days, day(0)).lacks


def exactly(found: ClusterFrames, expected: ClusterFrames) -> None:
    """To the dtypes, and the order of categories."""
    for spec in FRAMES:
        one, other = getattr(found, spec.name), getattr(expected, spec.name)
        pd.testing.assert_frame_equal(one, other, check_exact=True, obj=spec.name)
        for name in one.select_dtypes("category"):
            assert one[name].dtype == other[name].dtype
    assert found.problems == expected.problems
    assert [each.at_ms for each in found.problems] == [each.at_ms for each in expected.problems]
    assert [*found.lacks.items()] == [*expected.lacks.items()]
    assert found.source == expected.source


OVER = 2
"""So many of the days are over: the last one's lateness has not passed."""


def test_days_that_are_over_are_read_once(client: AskedClient, tmp_path: Path) -> None:
    cache = DayCache(CacheFiles(tmp_path / "kept", 1 << 30), client.url)
    first, second = by_day(client, cache=cache), by_day(client, cache=cache)
    covered = first.covered(CLUSTER)
    assert covered is not None
    read = [first.read(CLUSTER, day(number)) for number in range(OVER)]
    whole = [first.history(CLUSTER, day(number)) for number in range(OVER)]
    assert second.covered(CLUSTER) == covered
    client.asked.clear()
    for number, frames in enumerate(read):
        exactly(second.read(CLUSTER, day(number)), frames)
    # Which jobs scrape kube-state-metrics, and the counts of all days.
    assert [each.partition("?")[0] for each in client.asked] == ["label/job/values", "query_range"]
    for number, frames in enumerate(whole):
        exactly(second.history(CLUSTER, day(number)), frames)
    third = by_day(client, cache=cache)
    third.covered(CLUSTER)
    client.asked.clear()
    exactly(third.read(CLUSTER, day(OVER)), alone(client).read(CLUSTER, day(OVER)))
    assert len(client.asked) > 20


def test_with_refresh_days_are_read_anew(client: AskedClient, tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "kept", 1 << 30)
    for refreshes in (True, True, False):
        source = by_day(client, cache=DayCache(files, client.url, refreshes=refreshes))
        source.covered(CLUSTER)
        client.asked.clear()
        source.read(CLUSTER, day(0))
        assert (len(client.asked) > 20) is refreshes


def test_what_came_late_is_read(client: AskedClient, tmp_path: Path) -> None:
    """The same server, of which a pod's day was not there before."""
    files = CacheFiles(tmp_path / "kept", 1 << 30)
    by_day(client, cache=DayCache(files, "server")).read(CLUSTER, day(1))
    pod = next(each for each in VARIANT.world.pods if each.bound_ms < at(30) and each.gone_ms > at(42))
    labels = {"uid": "late", "namespace": pod.namespace, "pod": "late", "container": "main"}
    labels |= {"node": pod.node, "resource": pod.resource, "unit": "integer"}
    writer = Writer()
    target = kube_target(VARIANT.world)
    span = Window(at(26), at(46))
    writer.add(target, Scrapes(span, 4 * MINUTE_MS), [Series(REQUESTS, labels, 1.0, at(26), at(46))])
    write_second([VARIANT], tmp_path / "blocks")
    create_blocks(writer.text(), tmp_path / "blocks")
    with running_prometheus(tmp_path / "blocks") as url, AskedClient(url) as later:
        source = by_day(later, cache=DayCache(files, "server"))
        exactly(source.read(CLUSTER, day(1)), alone(later).read(CLUSTER, day(1)))
        again = by_day(later, cache=DayCache(files, "server"))
        again.covered(CLUSTER)
        later.asked.clear()
        again.read(CLUSTER, day(1))
        assert len(later.asked) == 2


@pytest.mark.parametrize("words", [(), ("--waste",), ("--cost-only",)])
def test_a_second_report_is_the_same_to_the_byte(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    found: list[str] = []
    for further in ((), (), ("--refresh",)):
        command = ["report", "2026-10", "--prometheus", url, "-f", "json", *words, *further]
        result = CliRunner().invoke(app, command, env={"COLUMNS": None})
        assert result.exit_code == ExitCode.OK, result.stderr
        found.append(re.sub(r'"made_at": "[^"]*"', "", result.stdout))
    assert len({*found}) == 1
    assert [*(tmp_path / "cache" / "gpucost").iterdir()]


@pytest.mark.parametrize("waste", [False, True])
def test_of_days_that_are_all_over_nothing_is_made_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waste: bool
) -> None:
    """With other prices, the days as they were read are used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = settings_of(url, waste=waste)
    asked: list[str] = []
    send = PrometheusClient._send

    def noting(self: PrometheusClient, path: str, *rest: Any) -> Answer:
        asked.append(path)
        return send(self, path, *rest)

    monkeypatch.setattr(PrometheusClient, "_send", noting)
    book = load_book(None)
    without = tuple(each for each in book.file.prices if "H100" not in repr(each))
    other = PriceBook(book.file.model_copy(update={"prices": without}))
    found: list[tuple[str, int]] = []
    span = Window(day(0).start_ms, day(OVER).start_ms)
    others = [["another"], []]
    for prices, refreshes, clusters in (
        *((book, False, None), (book, False, None), (other, False, None), (book, False, others)),
        *((book, True, None), (book, False, None)),
    ):
        asked.clear()
        if clusters is not None:
            monkeypatch.setattr(DailyUpstreamSource, "_clusters_in", lambda *_: others)
        with read_month(
            *(settings, prices, TeamRules.default(), Month(2026, 10), lambda: NOW),
            only=span,
            refreshes=refreshes,
        ) as read:
            assert not read.failures
            months = read.reporting.month(EVERYTHING, Month(2026, 10), every_job=True)
        assert months is not None
        document = to_json(months.report)
        found.append((re.sub(r'"made_at": "[^"]*"', "", document), len(asked)))
    texts, counts = zip(*found, strict=True)
    assert texts[0] == texts[1] == texts[3] == texts[4] == texts[5]
    assert texts[2] != texts[0]
    # The clusters of both dialects, and the counts of all days.
    assert counts[1] == 3
    assert counts[1] < counts[2] < counts[0]
    # Where there is another cluster, all is found out again: what is covered, and who is believed.
    assert counts[1] < counts[3] < counts[0]
    assert counts[4] > 0.9 * counts[0]
    assert counts[5] == 1, "of the clusters it was told"


def test_a_day_counts_the_same_wherever_the_first_one_is_cut(client: AskedClient) -> None:
    def counted(first_ms: int) -> list[float]:
        span = Window(T0 + first_ms, T0 + DAYS * DAY_MS)
        reader = KubeStateReader(client, SETTINGS, CLUSTER, span, UpstreamSettings())
        return DayCounts(reader, span).of(day(1))

    assert all(counted(0))
    assert counted(9 * HOUR_MS + 17) == counted(0)


ADHOC = "gpucost.service.wiring.adhoc_month"


@pytest.mark.parametrize("cost_only", [False, True])
@pytest.mark.parametrize("first_ms", [0, 9 * HOUR_MS])
def test_a_month_that_processes_read_is_the_same_to_the_byte(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_only: bool, first_ms: int
) -> None:
    """As one of many nodes is, also where its first day is cut; and what each keeps of a day is what the
    other takes."""
    monkeypatch.setattr(f"{ADHOC}._cores", lambda: 2)
    monkeypatch.setattr(f"{ADHOC}._KeptLedger.restore", lambda *_: False)
    asked: list[str] = []
    send = PrometheusClient._send

    def noting(self: PrometheusClient, path: str, *rest: Any) -> Answer:
        asked.append(path)
        return send(self, path, *rest)

    monkeypatch.setattr(PrometheusClient, "_send", noting)

    def read(node_days: int, cache: str) -> tuple[int, str, list[Window], list[object]]:
        monkeypatch.setattr(f"{ADHOC}._NODE_DAYS", node_days)
        settings = settings_of(url, cache=tmp_path / cache)
        asked.clear()
        told: list[Window] = []
        with read_month(
            *(settings, load_book(None), TeamRules.default(), Month(2026, 10), lambda: NOW),
            only=Window(MONTH.start_ms + first_ms, MONTH.end_ms),
            cost_only=cost_only,
            watch=lambda *_: lambda _, window: told.append(window),
        ) as month:
            assert not month.failures
            months = month.reporting.month(EVERYTHING, Month(2026, 10), every_job=True)
            infos = month.ledger.windows(MONTH, CLUSTER)
        assert months is not None
        windows: list[object] = [(each.window, each.digest, each.state, each.source) for each in infos]
        document = re.sub(r'"made_at": "[^"]*"', "", to_json(months.report))
        return len(asked), document, told, windows

    def kept(cache: str) -> dict[str, int]:
        return {each.name: each.stat().st_ino for each in (tmp_path / cache).rglob("*") if each.is_file()}

    alone, beside = 1_000_000, 1
    first = read(alone, "one")
    others = read(beside, "other")
    assert others[1:] == first[1:]
    assert len(first[2]) >= DAYS
    assert others[0] < first[0] / 2, "the others asked"
    of_days = kept("one")
    assert of_days
    assert read(beside, "one")[1:] == first[1:]
    assert read(alone, "other")[1:] == first[1:]
    assert kept("one") == of_days, "read, not written again"
    assert kept("other").keys() == of_days.keys()


def test_days_that_were_not_tried_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a server is gone, no later day is asked for."""
    settings = settings_of(url, cache_mib=0)
    read_day = DailyUpstreamSource._read_day

    def gone(self: DailyUpstreamSource, cluster: str, part: Window) -> Any:
        if part == day(1):
            raise SourceUnreachable("gone")
        return read_day(self, cluster, part)

    monkeypatch.setattr(DailyUpstreamSource, "_read_day", gone)
    with read_month(
        *(settings, load_book(None), TeamRules.default(), Month(2026, 10), lambda: NOW), cost_only=True
    ) as read:
        held = {each.window for each in read.ledger.windows(MONTH, CLUSTER)}
    first, rest = read.failures
    assert (first.window, first.kind) == (day(1), "SourceUnreachable")
    assert rest.window is not None
    assert (rest.window.start_ms, rest.kind) == (day(2).start_ms, "NotTried")
    assert held == {day(0)}
    assert rest.window.end_ms > day(DAYS - 1).start_ms


def test_without_other_processes_one_reads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(url, cache_mib=0)
    monkeypatch.setattr(f"{ADHOC}._cores", lambda: 2)
    monkeypatch.setattr(f"{ADHOC}._NODE_DAYS", 1)
    tried: list[int] = []

    def refused(count: int, _: str) -> Any:
        tried.append(count)
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(f"{ADHOC}.local_processes", refused)
    with read_month(
        *(settings, load_book(None), TeamRules.default(), Month(2026, 10), lambda: NOW), cost_only=True
    ) as read:
        assert not read.failures
        assert len(read.ledger.windows(MONTH, CLUSTER)) >= DAYS
    assert tried == [2]


def test_what_is_covered_by_own_series_is_asked_once(client: AskedClient) -> None:
    source = CachedCoverageSource(client, PrometheusSourceSettings(), now=lambda: NOW)
    assert source.covered(CLUSTER) is None
    client.asked.clear()
    assert source.covered(CLUSTER) is None
    assert client.asked == []
