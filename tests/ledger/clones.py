"""Two clusters of which one is a clone of the other: the same names and uids, and other teams."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gpucost.contract.frames import PROGRESS
from gpucost.domain.buckets import Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.scope import Scope
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.db.records import WasteOfWindow
from gpucost.ledger.ledger import Ledger
from tests.ledger.builders import hour, ingest, line
from tests.ledger.test_ledger_findings import finding
from tests.ledger.test_ledger_waste import frame, part

CLUSTERS, TEAMS = ("alpha", "beta"), ("red", "blue", "green")
HOURS = 4
WHOLE = Window(hour(0).start_ms, hour(HOURS - 1).end_ms)
LENGTH_MS = {"alpha": HOUR_MS, "beta": 2 * HOUR_MS}


def windows_of(cluster: str) -> list[Window]:
    return list(WHOLE.split(LENGTH_MS[cluster]))


def rows_of(cluster: str, window: Window) -> list[dict[str, Any]]:
    """Clones: nodes, pods and jobs have the same names and uids in both clusters, and other teams."""
    rows = []
    for number, bucket in enumerate((*[Bucket.HELD] * 6, *Bucket)):
        values: dict[str, Any] = {"cluster": cluster, "node": f"node-{number}", "bucket": str(bucket)}
        if bucket in (Bucket.HELD, Bucket.OVERCOMMITTED):
            team = TEAMS[(number + CLUSTERS.index(cluster)) % 3]
            uid = f"pod-{number % 6}"
            values |= {"team": team, "pod": uid, "pod_uid": uid, "job": f"j{number // 2}"}
            values |= {"job_uid": f"job-{number // 2}", "namespace": team, "observed_ms": 900, "busy_ms": 500}
            values |= {"memory_observed_ms": 900, "memory_total_mib_s": 81_920, "memory_peak_mib": 7 * number}
            values |= {"sm_observed_ms": 900, "sm_active_ms": 300}
        rows.append(line(window, **values, nano=10**9 + number * 7 + window.start_ms % 97))
    return rows


def sees(scope: Scope, cluster: str, row: dict[str, Any]) -> bool:
    of_team = scope.teams is None or (
        row["bucket"] in ("held", "overcommitted") and row["team"] in scope.teams
    )
    return scope.sees_cluster(cluster) and of_team


def fill(ledger: Ledger, scope: Scope, *, finds: bool = True) -> None:
    """What ``scope`` may see, and nothing else; ``finds``: with findings, whose content cannot be read."""
    for cluster in filter(scope.sees_cluster, CLUSTERS):
        for at, window in enumerate(windows_of(cluster)):
            seen = [row for row in rows_of(cluster, window) if sees(scope, cluster, row)]
            own = {row["pod_uid"] for row in seen if row["pod_uid"]}
            problems = [
                DataProblem(DataProblemCode.END_UNKNOWN, cluster, uid, "its end", 5 + at)
                for uid in (*(f"pod-{n}" for n in range(6)), "node-1")
                if uid in own or scope.teams is None
            ]
            given = [
                (cluster, uid, window.start_ms, window.end_ms, "steps", 10.0 + at) for uid in sorted(own)
            ]
            ingest(
                ledger, window, *seen, cluster=cluster, problems=problems,
                progress=pd.DataFrame(given, columns=list(PROGRESS.column_names)), settle=at > 0,
            )  # fmt: skip
            [info] = ledger.windows(window, cluster)
            parts = [part(row, "idle", row["board_ms"] // 2, row["nano"] // 3) for row in seen if row["team"]]
            held = [each for each in parts if each["bucket"] == "held"]
            if at:
                assessment = WasteOfWindow(window, info.digest, frame(*held), at > 1)
                ledger.write_waste(cluster, [assessment], code_version="1")
        if finds:
            ledger.save_findings(
                cluster,
                [
                    finding(f"f-{team}", cluster=cluster, team=team, nano=number * 5)
                    for number, team in enumerate((*TEAMS, ""))
                    if scope.teams is None or team in scope.teams
                ],
            )
