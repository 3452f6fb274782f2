"""A week of a small cluster in a real Prometheus, and the ledger of who reads it undisturbed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd

from gpucost.attribution.frames import ClusterFrames
from gpucost.attribution.teams import TeamRules
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, MINUTE_MS, Month, Window, iso, parse_instant
from gpucost.ledger.ledger import Ledger
from gpucost.pricing.price_book import PriceBook
from gpucost.reports.digest.week_model import IsoWeek
from gpucost.service.settings.loader import checked
from gpucost.service.settings.model import Settings
from gpucost.service.wiring.detection import build_assessing, build_detecting
from gpucost.service.wiring.pipeline import build_pipeline, build_rules
from gpucost.service.wiring.source import open_source
from gpucost.simulator.cluster import PRICES_NAME, TEAMS_NAME, demo_prices_text, demo_teams_text
from tests.support.chat_server import ROOM, TOKEN, ChatServer
from tests.support.prometheus import create_blocks
from tests.support.simulated import simulated
from tests.support.simulated_metrics.exposition import exposition

CLUSTER = "demo"
WEEK = IsoWeek.of(parse_instant("2026-10-05T00:00:00Z")).window
NOW_MS = parse_instant("2026-10-12T06:16:00Z")
"""Monday: the detectors have seen enough to be sure of Sunday, the next window ends in 44 minutes."""
END_MS = NOW_MS - 16 * MINUTE_MS
"""The end of the last window; every one before is settled by NOW_MS."""
MONTH = Month(2026, 10)
_SCRAPE_MS = 5 * MINUTE_MS
# A node that is drained, one with a broken GPU, and work that comes and goes.
_NODES = ("h100-02", "h100-03", "a100-01", "l4-spot-01")
_IDLE_JOBS = ("train-00025", "train-00026")
"""On a100-01, with all its GPUs: for half of Sunday, and from Monday's first hour until after NOW_MS."""
_IDLE_WATTS = 55.0


def few_nodes(frames: ClusterFrames, names: tuple[str, ...] = _NODES) -> ClusterFrames:
    """What is on the nodes ``names``; what is on no node stays, but for quotas, which are many."""
    cut: dict[str, Any] = {}
    there = frames.allocations[frames.allocations["node"].isin(names)]
    known = {*there["pod_uid"], *there["job_uid"]}
    for each in fields(frames):
        frame = getattr(frames, each.name)
        if isinstance(frame, pd.DataFrame) and each.name != "quotas":
            if "node" in frame:
                frame = frame[frame["node"].isin(names)]
            else:
                key = "pod_uid" if "pod_uid" in frame else "job_uid"
                frame = frame if key not in frame else frame[frame[key].isin(known)]
            cut[each.name] = frame.reset_index(drop=True)
    cut["quotas"] = frames.quotas.iloc[:0]
    problems = tuple(found for found in frames.problems if found.subject in known)
    return ClusterFrames(**cut, problems=problems)


def idle(frames: ClusterFrames, jobs: tuple[str, ...] = _IDLE_JOBS) -> ClusterFrames:
    """The same, but the GPUs of ``jobs`` never do anything, and the cluster was observed all the time: an
    hour of that night without observation would excuse them."""
    of_jobs = frames.allocations[frames.allocations["job"].isin(jobs)]
    uids = of_jobs["pod_uid"]
    activity, signals = frames.activity.copy(), frames.signals.copy()
    theirs = activity["pod_uid"].isin(uids)
    assert theirs.any()
    following = activity[theirs].groupby(["pod_uid", "gpu"], observed=True)["start_ms"].shift(-1)
    activity.loc[following.dropna().index, "end_ms"] = following.dropna().astype("int64")
    length_ms = (activity["end_ms"] - activity["start_ms"]).astype("float64")
    for name in ("held_ms", "observed_ms", "sm_observed_ms"):
        activity.loc[theirs, name] = length_ms
    activity.loc[theirs, ["busy_ms", "sm_active_ms"]] = 0.0
    activity.loc[theirs, "energy_j"] = activity.loc[theirs, "held_ms"] / 1000 * _IDLE_WATTS
    worked = [name for name in signals if name.endswith("active_ms") or name == "busy_ms"]
    signals.loc[signals["pod_uid"].isin(uids), worked] = 0
    progress = frames.progress[~frames.progress["pod_uid"].isin(uids)].reset_index(drop=True)
    observed = frames.observed.groupby("cluster", as_index=False).agg({"start_ms": "min", "end_ms": "max"})
    return replace(frames, activity=activity, signals=signals, progress=progress, observed=observed)


def write_blocks(data: Path, start_ms: int = WEEK.start_ms) -> None:
    """From ``start_ms`` to an hour after now, as Prometheus keeps it."""
    frames = idle(few_nodes(simulated().frames))
    create_blocks(exposition(frames, _SCRAPE_MS, Window(start_ms, NOW_MS + HOUR_MS)), data)


def settings_of(
    folder: Path, ledger_url: str, prometheus_url: str, chat: ChatServer, start_ms: int
) -> dict[str, Any]:
    """Settings of a service that reads hour by hour, and sends the platform's digest and all findings."""
    prices, teams = folder / PRICES_NAME, folder / TEAMS_NAME
    prices.write_text(demo_prices_text(), encoding="utf-8")
    teams.write_text(demo_teams_text(), encoding="utf-8")
    room = {"service": "mattermost", "url": chat.mattermost_api, "token": TOKEN, "room": ROOM}
    room |= {"sees_all": True, "allow_http": True, "allow_private": True}
    return {
        "ledger": {"url": ledger_url},
        "prometheus": {"url": prometheus_url, "cluster": CLUSTER, "timeout": "20s"},
        "pricing": {"book": str(prices)},
        "teams": {"rules": str(teams)},
        "ingest": {
            "window": "1h",
            "batch": "1h",
            "start": iso(start_ms),
            "poll": "1s",
            "retry_min": "200ms",
            "retry_max": "1s",
        },
        "detectors": {"interval": "10s"},
        "api": {"auth": "off"},
        "notify": {
            "channels": [{"name": name, **room} for name in ("digests", "findings", "receipts")],
            "routes": [
                {"channels": ["digests"], "platform": True, "kinds": ["digest"]},
                {"channels": ["findings"], "kinds": ["finding"], "floor": 0},
                {"channels": ["receipts"], "kinds": ["receipt"], "floor": 0},
            ],
            "receipts": "job",
            "weekly": {"hour": 0},
        },
    }


@dataclass(frozen=True)
class Held:
    """What a ledger says of the span: each window's version and digest, sums, waste, the month's digest."""

    windows: tuple[tuple[Window, int, str], ...]
    totals: str
    waste: str
    month_digest: str


def held(url: str, span: Window) -> Held:
    """Read a ledger, verify it, and close its month to have the digest of it."""
    week = Window(span.start_ms, WEEK.end_ms)
    with Ledger.open(url, now=lambda: MONTH.window.end_ms + HOUR_MS) as ledger:
        assert ledger.verify() == ()
        infos = ledger.windows(span, CLUSTER)
        totals = ledger.aggregate(EVERYTHING, span, ["team", "bucket", "node", "job_uid"])
        waste = ledger.waste(EVERYTHING, week, ["team", "bucket", "job_uid"])
        closed = ledger.close_month(
            MONTH, author="replay", reason="a part of a month", min_coverage=Fraction(0)
        )
        assert ledger.verify() == ()
        return Held(
            tuple((info.window, info.version, info.digest) for info in infos),
            totals.to_csv(index=False),
            waste.to_csv(index=False),
            str(closed.digest),
        )


def fill_undisturbed(url: str, given: dict[str, Any], span: Window) -> None:
    """One process, a day at a time, that is not killed."""
    settings = checked(Settings, {**given, "ingest": {**given["ingest"], "batch": "1d"}}, "")
    book = PriceBook.parse(demo_prices_text(), PRICES_NAME)
    rules = build_rules(settings.attribution, book, TeamRules.parse(demo_teams_text(), TEAMS_NAME))
    now = lambda: NOW_MS  # noqa: E731
    with Ledger.open(url, now=now) as ledger:
        pipeline = build_pipeline(settings.ingest, open_source(settings, book, now), ledger, rules, now)
        outcome = pipeline.ingest(CLUSTER, pipeline.pending(CLUSTER, span))
        assert not outcome.failures, outcome.failures
        detecting = build_detecting(settings.detectors, pipeline)
        assessing = build_assessing(settings.detectors, pipeline, detecting)
        found = assessing.assess(CLUSTER, assessing.pending(CLUSTER, span))
        assert not found.failures, found.failures
