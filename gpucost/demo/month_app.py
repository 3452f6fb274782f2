"""The API over the demo's month, as ``gpucost demo`` serves it and tests ask it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from gpucost.api.app import create_app
from gpucost.cluster.objects.kueue import Workload
from gpucost.ledger.stores.predictions import WaitPrediction
from gpucost.service.advisor.advisor_service import AdvisorSnapshot
from gpucost.service.advisor.wait_predictor import WaitPredictor
from gpucost.service.settings.api import ApiSettings
from gpucost.service.wiring.demo_month import REPLAYS, DemoMonth
from gpucost.service.wiring.ledger import accounts_of


@contextmanager
def demo_app(run: DemoMonth, settings: ApiSettings | None = None) -> Iterator[FastAPI]:
    """Without ``settings`` nobody has to log in. The clock stands at the end of the month, and so does the
    cluster that the advisor answers for; it knows past runs, and the findings that are open.
    """
    advising = run.advising()
    advising.learn()
    advising.refresh()
    learning = WaitPredictor(
        advising,
        run.ledger,
        now=run.now,
        seconds=time.monotonic,
        sleep=time.sleep,
        stopped=lambda: False,
        ask=_no_prediction,
    )
    learning.turn()
    advising.refresh()
    advising.start()
    try:
        yield create_app(
            run.ledger,
            settings or ApiSettings(auth="off", replays=run.folder / REPLAYS),
            now=run.now,
            quotas=run.quotas,
            budgets=run.teams.budgets,
            plans=run.teams.budget_plans,
            accounts=accounts_of(run.teams),
            advising=advising,
            named_teams=run.teams.names,
        )
    finally:
        advising.close()


def _no_prediction(workload: Workload, informed: AdvisorSnapshot) -> WaitPrediction | None:
    """The clock stands: no wait would ever end."""
    del workload, informed
    return None
