"""Several clusters in one ledger: a service each, or one for all; and clusters that are clones."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest

from gpucost.attribution.frames import ClusterFrames
from gpucost.domain.errors import SourceUnreachable
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import DAY_MS, HOUR_MS, Month, Window
from gpucost.ledger.db.records import CloseRefused
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.reports.base.document import document
from gpucost.service.ingest.loop import IngestLoop
from gpucost.service.ingest.pipeline import Pipeline
from gpucost.service.ingest.status import LoopStatus
from gpucost.service.reporting.rendering import ReportFormat, render_month
from gpucost.service.reporting.report_service import ReportService
from gpucost.service.settings.model import IngestSettings
from gpucost.telemetry.interval_source import IntervalSource
from gpucost.telemetry.recorded_source import RecordedSource, record
from tests.ledger.builders import ingest, line
from tests.service.worlds import DAY, NOW_MS, RULES, Clock, frames
from tests.support.frames import build, node, pod, units
from tests.support.ledgers import new_ledger

MONTH = Month(2026, 10)


def of_cluster(found: ClusterFrames, name: str) -> ClusterFrames:
    """The same frames under another cluster's name: nodes, pods and uids stay as they are."""
    renamed = {
        each.name: frame.assign(cluster=name).astype({"cluster": "str"})
        for each in fields(found)
        if isinstance(frame := getattr(found, each.name), pd.DataFrame) and "cluster" in frame
    }
    return replace(found, **renamed)


def worlds() -> Mapping[str, ClusterFrames]:
    """A cluster, and a clone of it in which other work went on."""
    other = build(
        pods=[
            pod("train", (3, 23), count=6, namespace="vision", user="eve"),
            pod("detect", (0, 20), count=3, namespace="research"),
        ],
        nodes=[node("n1"), node("n2")],
        capacity=[units(name="n1"), units(name="n2")],
        observed=[(0, 24)],
    )
    return {"alpha": of_cluster(frames(), "alpha"), "beta": of_cluster(other, "beta")}


@dataclass
class ByCluster:
    """A source of some clusters; ``is_down`` for all of them."""

    held: Mapping[str, ClusterFrames]
    is_down: bool = False
    name: str = "memory"

    def clusters(self) -> tuple[str, ...]:
        if self.is_down:
            raise SourceUnreachable("connection refused")
        return tuple(sorted(self.held))

    def covered(self, cluster: str) -> Window | None:
        del cluster
        return DAY

    def read(self, cluster: str, window: Window) -> ClusterFrames:
        del window
        return self.held[cluster]

    def history(self, cluster: str, window: Window, only: object = None) -> ClusterFrames:
        del window, only
        return self.held[cluster]


def pipeline(ledger: Ledger, source: IntervalSource, batch_ms: int = 6 * HOUR_MS) -> Pipeline:
    return Pipeline(source, ledger, RULES, HOUR_MS, batch_ms, 15 * 60_000, Clock(), "test")


def bring_up_to_date(url: str, source: IntervalSource, batch_ms: int = 6 * HOUR_MS) -> None:
    with Ledger.open(url, now=Clock()) as ledger:
        for cluster in source.clusters():
            found = pipeline(ledger, source, batch_ms)
            assert not found.ingest(cluster, found.pending(cluster, DAY)).failures


def bill(url: str, scope: Scope) -> dict[str, object]:
    """The month's report; which clusters it is about, and where it was read, is left out."""
    with Ledger.open(url, now=Clock()) as ledger:
        answer = ReportService(ledger, "test", {}).month(scope, MONTH)
        assert answer is not None
        found: dict[str, object] = document(answer.report)  # type: ignore[assignment]
        found.pop("clusters_in_scope")
        found["provenance"].pop("sources")  # type: ignore[attr-defined]
        return found


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The sections that are not the same: a whole report is too long to show the difference of."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.fault(39)
def test_two_services_that_write_at_once_give_the_bills_of_two_ledgers(
    postgres_url: str, tmp_path: Path
) -> None:
    held = worlds()
    together = threading.Barrier(len(held))
    failed: list[BaseException] = []

    def serve(name: str) -> None:
        try:
            together.wait()
            # An hour at a time, so that they meet.
            bring_up_to_date(postgres_url, ByCluster({name: held[name]}), HOUR_MS)
        except BaseException as error:
            failed.append(error)

    services = [threading.Thread(target=serve, args=(name,)) for name in held]
    for service in services:
        service.start()
    for service in services:
        service.join()
    assert not failed
    for name, found in held.items():
        alone = new_ledger(tmp_path / f"{name}.db")
        bring_up_to_date(alone, ByCluster({name: found}))
        assert not differing(bill(postgres_url, Scope(None, frozenset({name}))), bill(alone, EVERYTHING))
    with Ledger.open(postgres_url, now=Clock()) as ledger:
        assert ledger.verify() == ()
        assert ledger.job_clusters(EVERYTHING, "job-train") == ("alpha", "beta")
        assert len(ledger.windows(DAY)) == 48


def test_one_service_for_all_clusters_gives_the_same_bills(tmp_path: Path) -> None:
    held = worlds()
    record(tmp_path / "one", held["alpha"])
    one, every = new_ledger(tmp_path / "one.db"), new_ledger(tmp_path / "every.db")
    record(tmp_path / "every", joined(held))
    bring_up_to_date(every, RecordedSource(tmp_path / "every"))
    bring_up_to_date(one, RecordedSource(tmp_path / "one"))
    assert not differing(bill(every, Scope(None, frozenset({"alpha"}))), bill(one, EVERYTHING))
    with Ledger.open(every, now=Clock()) as ledger:
        assert ledger.clusters() == ("alpha", "beta")


def joined(held: Mapping[str, ClusterFrames]) -> ClusterFrames:
    """What a source that has every cluster's series would read."""
    first, *others = held.values()
    parts = {
        each.name: pd.concat([frame, *(getattr(other, each.name) for other in others)], ignore_index=True)
        for each in fields(first)
        if isinstance(frame := getattr(first, each.name), pd.DataFrame)
    }
    return replace(first, **parts)


def test_a_month_waits_for_every_cluster(sqlite_url: str) -> None:
    days = list(MONTH.window.split(DAY_MS))
    with Ledger.open(sqlite_url, now=lambda: MONTH.window.end_ms + DAY_MS) as ledger:
        for cluster, held in (("alpha", days), ("beta", days[:-1])):
            for day in held:
                ingest(ledger, day, line(day, cluster=cluster), cluster=cluster)
        missing = (f"beta: no window in {days[-1]}",)
        assert ledger.close_blockers(MONTH, Fraction(1, 2)) == missing
        assert ledger.close_blockers(MONTH, Fraction(1, 2), scope=Scope(None, frozenset({"alpha"}))) == ()
        with pytest.raises(CloseRefused):
            ledger.close_month(MONTH, author="ann", min_coverage=Fraction(1, 2))
        ingest(ledger, days[-1], line(days[-1], cluster="beta"), cluster="beta")
        ledger.close_month(MONTH, author="ann", min_coverage=Fraction(1, 2))


def test_a_month_without_a_cluster_of_the_one_before_is_not_settled(sqlite_url: str) -> None:
    with Ledger.open(sqlite_url, now=lambda: MONTH.window.end_ms + DAY_MS) as ledger:
        for month, clusters in ((MONTH.previous(), ("alpha", "gamma")), (MONTH, ("alpha",))):
            for day in month.window.split(DAY_MS):
                for name in clusters:
                    ingest(ledger, day, line(day, cluster=name), cluster=name)
        reporting = ReportService(ledger, "test", {})
        answer = reporting.month(EVERYTHING, MONTH)
        assert answer is not None
        for format_ in (ReportFormat.JSON, ReportFormat.HTML):
            assert "gamma" in str(render_month(answer.report, format_)), format_
        assert answer.report.provenance.state == "open"
        assert (answer.stand.settled, answer.stand.clusters) == (False, ("alpha",))
        alpha = Scope(None, frozenset({"alpha"}))
        of_alpha = reporting.month(alpha, MONTH)
        assert of_alpha is not None
        assert of_alpha.report.provenance.state == "settled"
        assert [item.cluster for item in of_alpha.report.provenance.clusters] == ["alpha"]
        assert of_alpha.stand.settled
        day = Window(MONTH.window.start_ms, MONTH.window.start_ms + DAY_MS)
        later = Window(day.end_ms, day.end_ms + DAY_MS)
        assert [reporting.stand(EVERYTHING, each).settled for each in (day, later)] == [False, True]
        longer = Window(MONTH.window.start_ms, MONTH.window.end_ms + DAY_MS)
        assert not reporting.stand(alpha, longer).settled, "a day of it is not there"


def loop(ledger: Ledger, source: IntervalSource, status: LoopStatus, expected: str) -> IngestLoop:
    return IngestLoop(
        pipeline(ledger, source),
        IngestSettings(),
        status,
        sleep=lambda _: None,
        stopped=lambda: False,
        rng=random.Random(7),
        expected=expected,
    )


@pytest.mark.fault(23)
def test_a_service_whose_source_is_down_says_nothing_of_the_clusters_of_others(sqlite_url: str) -> None:
    """Also after a restart: the ledger knows clusters that are another service's."""
    held, status = worlds(), LoopStatus()
    source = ByCluster({"alpha": held["alpha"]}, is_down=True)
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        bring_up_to_date(sqlite_url, ByCluster({"beta": held["beta"]}))
        turns = loop(ledger, source, status, "alpha")
        turns.turn()
        assert status.clusters()["beta"].up is False, "which are its own nobody can know yet"
        source.is_down = False
        turns.turn()
        assert status.clusters().keys() == {"alpha"}
        source.is_down = True
        turns.turn()
        again = LoopStatus()
        loop(ledger, source, again, "alpha").turn()
        for found in (status.clusters(), again.clusters()):
            assert {name: each.up for name, each in found.items()} == {"alpha": False}


def test_what_was_foretold_is_of_a_cluster(sqlite_url: str) -> None:
    told = WaitPrediction("uid-1", "ml", "train", "cq", "red", NOW_MS - HOUR_MS, 5, 6, DAY_MS)
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        assert [ledger.foretell(name, [told]) for name in ("alpha", "beta", "alpha")] == [1, 1, 0]
        ledger.score_foretold("alpha", started_ms={"uid-1": NOW_MS}, gone_ms={})
        assert [ledger.foretold(name)[0].started_ms for name in ("alpha", "beta")] == [NOW_MS, None]
