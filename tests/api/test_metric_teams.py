"""Families by team on /metrics: bounded whatever names tenants choose, with sums that stay what they are."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

import pytest
from fastapi import FastAPI

from gpucost.api.app import create_app
from gpucost.api.server.metric_families import TeamRows
from gpucost.domain.buckets import OTHER_TEAMS
from gpucost.ledger.ledger import Ledger
from gpucost.service.settings.api import ApiSettings
from tests.api.test_waste import no_parts
from tests.service.worlds import Clock, MemorySource, pipeline
from tests.support.frames import build, hours, node, pod, units
from tests.support.ledgers import new_ledger

FLOOD = 10_000
FAMILIES = {
    "gpucost_team_cost_usd": 1,
    "gpucost_job_cost_usd": 5,
    "gpucost_team_cost_per_hour_usd": 1,
    "gpucost_team_gpus": 1,
    "gpucost_team_last_day_gpu_seconds": 1,
    "gpucost_waste_gpu_seconds_total": 2,
}
"""By name, the position of the team among the labels in the order of their names."""


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """Two teams hold GPUs; in the last hour a tenant starts 10,000 short pods, each of a team of its own."""
    short = 8 / FLOOD
    pods = [pod("train", (21, 24), 4, namespace="research"), pod("detect", (21, 24), 1, namespace="vision")]
    pods += [
        pod(f"p{n}", (23 + n // 8 * short, 23 + (n // 8 + 1) * short), node="n2", namespace=f"flood-{n:05}")
        for n in range(FLOOD)
    ]
    frames = build(pods=pods, nodes=[node("n1"), node("n2")], capacity=[units(name="n1"), units(name="n2")])
    folder, clock, span = tmp_path_factory.mktemp("flood"), Clock(), hours(21, 24)
    with Ledger.open(new_ledger(folder / "ledger.db"), now=clock) as ledger:
        found = pipeline(ledger, MemorySource(frames, extent=span), clock)
        assert found.ingest("c", found.pending("c", span)).ingested == 3
        ledger.write_waste(
            "c", [no_parts(each.window, each.digest) for each in ledger.windows(span, "c")], code_version="1"
        )
        yield ledger


def _scraped(app: FastAPI) -> dict[str, dict[tuple[str, ...], float]]:
    """As the endpoint renders it; the text of 10,000 teams is not parsed again."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in app.state.registry.collect():
        for sample in family.samples:
            found[sample.name][tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return {name: found[name] for name in (*FAMILIES, "gpucost_metrics_other_teams")}


def _app(ledger: Ledger, teams: int, *named: str) -> FastAPI:
    settings = ApiSettings(auth="off", metrics_teams=teams, metrics_jobs=10)
    return create_app(ledger, settings, now=Clock(), named_teams=frozenset(named))


def _without_team(rows: dict[tuple[str, ...], float], at: int) -> dict[tuple[str, ...], float]:
    """Sums over teams; of jobs over jobs as well."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for labels, value in rows.items():
        found[() if at == 5 else labels[:at] + labels[at + 1 :]] += value
    return found


def test_a_flood_of_teams_is_one_series_and_sums_stay(
    flooded: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "gpucost.api")
    whole, app = _scraped(_app(flooded, 100_000)), _app(flooded, 3, "vision")
    assert len(whole["gpucost_team_gpus"]) == FLOOD + 2
    assert whole["gpucost_metrics_other_teams"][()] == 0
    bounded = _scraped(app)
    for name, at in FAMILIES.items():
        teams = {labels[at] for labels in bounded[name]}
        assert {"research", "vision", OTHER_TEAMS} < teams, name
        # Two named or dear ones, two of the flood, the others, and what has no team.
        assert len({team for team in teams if not team.startswith("__")}) == 4, name
        assert _without_team(bounded[name], at) == pytest.approx(_without_team(whole[name], at)), name
    assert bounded["gpucost_metrics_other_teams"][()] == FLOOD - 2
    assert _scraped(app) == bounded, "the same teams at each scrape"
    told = [each for each in caplog.records if OTHER_TEAMS in each.getMessage()]
    assert len(told) == 1, "once"


def test_a_team_gives_way_only_to_one_that_held_much_more() -> None:
    rows = TeamRows({"named"}, 2)

    def shown(*teams: str) -> set[str]:
        return {labels[0] for labels, _ in rows.fold([((team,), 1.0) for team in teams], 0)}

    every = ("a", "b", "c", "named", "__unallocated__")
    rows.weigh({"a": 100, "b": 90, "c": 80, "named": 1})
    assert shown(*every) == {"a", "b", OTHER_TEAMS, "named", "__unallocated__"}
    rows.weigh({"a": 0, "b": 0, "c": 180})
    assert "c" not in shown(*every), "a new month, and not more than twice what b held before"
    rows.weigh({"c": 181})
    assert shown(*every) == {"a", "c", OTHER_TEAMS, "named", "__unallocated__"}
    assert rows.folded == 1
    rows.weigh({"b": 200})
    assert "b" not in shown(*every)


def test_teams_of_the_team_rules_come_first_whoever_came_before() -> None:
    rows = TeamRows({"named"}, 0)
    rows.weigh({f"flood-{n}": 1_000 for n in range(100)})
    found = rows.fold([((f"flood-{n}",), 1.0) for n in range(100)] + [(("named",), 1.0)], 0)
    assert found == [((OTHER_TEAMS,), 100.0), (("named",), 1.0)]
