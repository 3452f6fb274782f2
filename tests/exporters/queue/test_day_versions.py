"""The scripted day where Kueue serves only its older API version: the same state after every step."""

from __future__ import annotations

import pytest

from tests.exporters.queue.played import played_day, the_day
from tests.support.cluster.kueue_actor import serve_v1beta1_only

WORKLOADS = "workloads.kueue.x-k8s.io"


@pytest.mark.slow
@pytest.mark.fault(19)
def test_both_versions_of_kueue_give_the_same_state() -> None:
    newer = the_day()
    with played_day(serve_v1beta1_only) as older:
        pass
    assert newer.overviews.keys() == older.overviews.keys()
    compared = 0
    for at_ms, overview in newer.overviews.items():
        state, other = overview.state, older.overviews[at_ms].state
        assert state.collections[WORKLOADS].version == "v1beta2"
        assert other.collections[WORKLOADS].version == "v1beta1"
        if not any(each.problem for each in (*state.collections.values(), *other.collections.values())):
            compared += 1
            assert state == other, at_ms
    assert compared > 80
    assert [scrape.at_ms for scrape in newer.scrapes] == [scrape.at_ms for scrape in older.scrapes]
