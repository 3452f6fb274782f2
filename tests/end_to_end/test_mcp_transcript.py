"""The transcript of docs/mcp.md: ten questions to the tools, over HTTP, on the demo's ledger and cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucost.api.app import create_app
from gpucost.cluster.objects.state import ClusterState
from gpucost.cluster.views.overview import ClusterOverview
from gpucost.domain.gpu import ResourceCatalog
from gpucost.domain.time import parse_instant
from gpucost.service.settings.api import ApiSettings
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.advisor import build_advising
from gpucost.service.wiring.demo_month import DemoMonth
from gpucost.service.wiring.ledger import accounts_of
from gpucost.simulator.state import cluster_state
from tests.api.assistants import called
from tests.end_to_end.assistant_questions import QUESTIONS, transcript

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
AT_MS = parse_instant("2026-10-30T12:00:00Z") - 1
"""A Friday noon, when queues lend to each other."""
_SECTION = re.compile(r"(?<=<!-- transcript -->\n\n).*?(?=\n<!-- /transcript -->)", re.DOTALL)


@dataclass(frozen=True)
class DemoCluster:
    """The demo's cluster, which stands as it did at one instant."""

    state: ClusterState
    catalog: ResourceCatalog
    cluster: str
    version: int = 0
    is_current: bool = True

    def overview(self, cluster: str) -> ClusterOverview | None:
        return ClusterOverview(self.state, self.catalog) if cluster == self.cluster else None


def answers(folder: Path) -> list[Mapping[str, Any]]:
    with DemoMonth.record(folder) as run:
        run.ingest(lambda *_: None)
        run.assess(lambda *_: None)
        run.detect()
        settings = Settings()
        state = cluster_state(run.simulated, AT_MS)
        watched = DemoCluster(state, settings.attribution.catalog(), run.cluster)
        advising = build_advising(settings.advisor, watched, run.book, run.teams, run.ledger)
        advising.refresh()
        app = create_app(
            run.ledger,
            ApiSettings(auth="off"),
            now=run.now,
            quotas=run.quotas,
            budgets=run.teams.budgets,
            accounts=accounts_of(run.teams),
            advising=advising,
            named_teams=run.teams.names,
        )
        found = called(app, {}, [(each.tool, each.arguments) for each in QUESTIONS])
        assert [each.is_error for each in found] == [False] * len(QUESTIONS)
        return [each.structured_content for each in found]


@pytest.mark.slow
def test_the_transcript_is_what_the_tools_answer(tmp_path: Path) -> None:
    """``GPUCOST_UPDATE_GOLDEN=1`` writes it anew."""
    page = PAGE.read_text("utf-8")
    found = transcript(answers(tmp_path))
    if os.environ.get("GPUCOST_UPDATE_GOLDEN"):
        PAGE.write_text(_SECTION.sub(lambda _: found, page), encoding="utf-8")
        return
    assert _SECTION.findall(page) == [found]
