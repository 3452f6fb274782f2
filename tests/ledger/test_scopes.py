"""Every read of the ledger takes a scope, and sees what a ledger would hold that had nothing else."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpucost
from gpucost.domain.errors import GpuCostError, LedgerError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.time import HOUR_MS, Window
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.api_keys import KeyRing
from gpucost.ledger.stores.notifications import NotificationStore
from gpucost.ledger.stores.sessions import SessionRing
from tests.ledger.builders import MONTH, NOW_MS
from tests.ledger.clones import CLUSTERS, HOURS, TEAMS, WHOLE, fill, windows_of
from tests.support.ledgers import new_ledger

WRITES = "it writes"
OWN = "the service's own, which brings every cluster up to date"
ADMIN = "for who keeps the ledger, on the command line beside the database"
WITHOUT_SCOPE = {
    **dict.fromkeys(("ingest", "write_batch", "settle", "close_month", "adjust", "write_waste"), WRITES),
    **dict.fromkeys(("save_findings", "foretell", "score_foretold", "fold", "forget", "add_up_days"), WRITES),
    **dict.fromkeys(("identify_nodes", "keep_forecasts", "note"), WRITES),
    **dict.fromkeys(("frontier", "unassessed", "live_findings"), OWN),
    "final_waste": "for /metrics, which is bounded where it is answered (gpucost.api.metrics.collector)",
    "rates": "prices by ids that only scoped lines name",
    **dict.fromkeys(("integrity", "verify", "foldable", "folded", "sealable", "free_bytes", "vacuum"), ADMIN),
    **dict.fromkeys(("seal", "unseal", "add_up_days"), WRITES),
    **dict.fromkeys(("sealed", "sealed_months", "verify_sealed"), ADMIN),
    **dict.fromkeys(("open", "close"), "of the connection"),
    "month_charges": "what all teams were charged; charges are of all of them, and cut down to a reader's",
    "month_state": "a digest, to close what was looked at",
    "mark": "whether anything changed, and not what; never part of an answer",
}
OF_OTHERS = {
    NotificationStore: "what is on its way to chats, whose settings say what each may see",
    KeyRing: "keys, which gpucost.api.routes.keys bounds by who keeps them",
    SessionRing: "sessions, which gpucost.api.routes.sessions bounds by whose they are",
}


def public() -> dict[str, Callable[..., Any]]:
    return {
        name: found
        for name, found in inspect.getmembers(Ledger, callable)
        if not name.startswith("_") and inspect.isroutine(found)
    }


def is_scoped(found: Callable[..., Any]) -> bool:
    return "scope" in inspect.signature(found).parameters


@pytest.mark.fault(47)
def test_every_read_takes_a_scope_or_says_why_not() -> None:
    of_others = {name for kind in OF_OTHERS for name in vars(kind)}
    without = {name for name, found in public().items() if not is_scoped(found)}
    assert without - of_others - set(WITHOUT_SCOPE) == set(), (
        "a read without a scope: give it one, or a reason"
    )
    assert not {name for name in WITHOUT_SCOPE if name in public() and is_scoped(public()[name])}


# What answers somebody who asked, and what it may call without handing a scope on.
READERS = ("api", "service/reporting")
SERVED = {
    "api/metrics/collector.py": {"clusters", "waiting_posts", "count_dead_posts"},
    "api/metrics/detectors.py": {"clusters", "extent", "assessed", "final_waste"},
    "api/metrics/recent.py": {"clusters", "extent", "windows", "month", "month_charges"},
    "api/routes/responses.py": {"mark"},
    # Of a cluster that the caller named; and predictions, of which who asks is told those of jobs it sees.
    "api/server/services.py": {"foretold", "frontier"},
    # Charges are computed of all teams; closing a month is of who sees every team and cluster.
    "service/reporting/charge_reports.py": {"rates", "close_month", "month", "month_charges", "month_state"},
    "service/reporting/closed_charges.py": {"month_charges"},
    "service/reporting/commitment_reporting.py": {"month", "month_charges", "rates"},
    # Closing is of all; prices by ids of scoped lines; predictions are looked up by jobs of scoped lines.
    "service/reporting/focus_corrections.py": {"month", "rates"},
    "service/reporting/focus_exports.py": {"foretold", "mark", "month", "month_state", "note", "rates"},
    # Prices by ids of scoped lines.
    "service/reporting/month_forecasts.py": {"keep_forecasts", "rates"},
    # Adjustments are booked by who sees all teams and clusters.
    "service/reporting/invoice_imports.py": {"adjust", "month", "note"},
    "service/reporting/month_closing.py": {"folded", "sealed"},  # told to who sees every cluster
    # How far the clusters of a job reach that the caller sees.
    "service/reporting/report_service.py": {"extent", "rates"},
}


def unscoped_calls(path: Path) -> set[str]:
    """Methods of a ledger that a module calls without a scope."""
    found = set()
    methods = public()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, receiver = node.func.attr, ast.unparse(node.func.value)
        if name not in methods or not receiver.endswith("ledger"):
            continue
        scope = inspect.signature(methods[name]).parameters.get("scope")
        by_place = scope is not None and scope.default is inspect.Parameter.empty
        if not by_place and "scope" not in {keyword.arg for keyword in node.keywords}:
            found.add(name)
    return found


@pytest.mark.fault(47)
def test_what_answers_readers_hands_their_scope_on() -> None:
    root = Path(str(gpucost.__file__)).parent
    paths = [
        path
        for each in READERS
        for path in ((root / each).rglob("*.py") if "." not in each else [root / each])
    ]
    found = {path.relative_to(root).as_posix(): unscoped_calls(path) for path in paths}
    of_keys = {*vars(KeyRing), *vars(SessionRing)}
    assert {name: calls - of_keys for name, calls in found.items() if calls - of_keys} == SERVED


# --- as if the ledger held nothing else -----------------------------------------------------------------


class Worlds:
    """Ledgers by what they hold; one that holds everything."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = folder, dict[Scope, Ledger]()

    def holding(self, scope: Scope) -> Ledger:
        if scope not in self._open:
            url = new_ledger(self._folder / f"{len(self._open)}.db")
            ledger = self._open[scope] = Ledger.open(url, now=lambda: NOW_MS)
            fill(ledger, scope)
        return self._open[scope]

    def close(self) -> None:
        for ledger in self._open.values():
            ledger.close()


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    found = Worlds(tmp_path_factory.mktemp("worlds"))
    yield found
    found.close()


def told(read: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What a read gives, or how it fails, as one comparable value."""
    try:
        found = read(*given, **options)
    except GpuCostError as error:
        return str(error)
    return found.to_csv() if isinstance(found, pd.DataFrame) else found


def readings(ledger: Ledger, scope: Scope) -> dict[str, Any]:
    """Every read of usage and of findings, in every way that matters."""
    odd = Window(WHOLE.start_ms + HOUR_MS, WHOLE.end_ms)  # it cuts a window of beta
    found: dict[str, Any] = {}
    for name, read in (("aggregate", ledger.aggregate), ("waste", ledger.waste)):
        for dims in ((), ("cluster", "team", "bucket"), ("node", "pod_uid"), ("job_uid", "rate_id")):
            for step_ms in (None, 2 * HOUR_MS, HOUR_MS):
                found[f"{name} {dims} {step_ms}"] = told(read, scope, WHOLE, dims, step_ms=step_ms)
        for dim, values in (("cluster", CLUSTERS), ("cluster", ["beta"]), ("team", ["blue"])):
            filters = {dim: values}
            found[f"{name} {filters}"] = told(read, scope, WHOLE, ["team"], filters=filters)
        found[f"{name} odd"] = told(read, scope, odd, ["team"])
    for uid in ("job-0", "job-1", "job-2", "job-3", "none"):
        found[f"job {uid}"] = (ledger.job_window(scope, uid), ledger.job_clusters(scope, uid))
        found[f"progress {uid}"] = told(ledger.progress, scope, WHOLE, uid)
    for cluster in CLUSTERS:
        found[f"runs {cluster}"] = ledger.runs(scope, cluster, WHOLE)
        # Databases divide to the last bit differently.
        found[f"uses {cluster}"] = [
            replace(each, sm_busy=round(each.sm_busy, 9), memory_total_mib=round(each.memory_total_mib, 6))
            for each in ledger.uses(scope, cluster, WHOLE)
        ]
    found["problems"] = ledger.problems(scope, WHOLE)
    records = ledger.findings(scope)
    found["findings"] = [replace(each, id=None) for each in records]
    found["of beta"] = [each.fingerprint for each in ledger.findings(scope, cluster="beta")]
    found["sums"] = ledger.finding_sums(scope)
    found["sums of beta"] = ledger.finding_sums(scope, cluster="beta", since_ms=NOW_MS)
    found["each"] = [ledger.finding(scope, each.id or 0) == each for each in records]
    return found


def stand(ledger: Ledger, scope: Scope) -> dict[str, Any]:
    """Every read of how the ledger stands, in which teams have no part."""
    return {
        "clusters": ledger.clusters(scope=scope),
        "extent": ledger.extent(scope=scope),
        "beta": ledger.extent("beta", scope=scope),
        "windows": ledger.windows(WHOLE, scope=scope),
        "assessed": ledger.assessed(WHOLE, scope=scope),
        "month": ledger.month(MONTH, scope=scope),
        "blockers": ledger.close_blockers(MONTH, Fraction(1, 2), scope=scope),
        "adjustments": ledger.adjustments(scope, MONTH),
        "history": [told(ledger.history, scope, c, windows_of(c)[0]) for c in ledger.clusters(scope=scope)],
    }


TEAM_SCOPES = st.none() | st.frozensets(st.sampled_from(TEAMS))
CLUSTER_SCOPES = st.none() | st.frozensets(st.sampled_from(CLUSTERS))


@pytest.mark.slow
@pytest.mark.fault(47)
@settings(max_examples=8, deadline=None)
@given(teams=TEAM_SCOPES, clusters=CLUSTER_SCOPES)
@example(teams=frozenset({"red", "blue"}), clusters=frozenset({"beta"}))
@example(teams=None, clusters=frozenset({"alpha"}))
@example(teams=frozenset({"green"}), clusters=None)
def test_a_read_is_that_of_a_ledger_that_held_nothing_else(
    worlds: Worlds, teams: frozenset[str] | None, clusters: frozenset[str] | None
) -> None:
    scope = Scope(teams, clusters)
    whole, own = worlds.holding(EVERYTHING), worlds.holding(scope)
    assert readings(whole, scope) == readings(own, EVERYTHING)
    if teams is None:
        assert stand(whole, scope) == stand(own, EVERYTHING)


@pytest.mark.postgres
@pytest.mark.fault(47)
def test_and_on_postgresql(worlds: Worlds, postgres_url: str) -> None:
    scope = Scope(frozenset({"red", "blue"}), frozenset({"beta"}))
    with Ledger.open(postgres_url, now=lambda: NOW_MS) as ledger:
        fill(ledger, EVERYTHING)
        assert readings(ledger, scope) == readings(worlds.holding(scope), EVERYTHING)
        scope = Scope(None, frozenset({"beta"}))
        assert stand(ledger, scope) == stand(worlds.holding(scope), EVERYTHING)


@pytest.mark.fault(47)
def test_nothing_of_a_finding_of_another_cluster_can_be_changed(sqlite_url: str) -> None:
    of_alpha = Scope(None, frozenset({"alpha"}))
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        fill(ledger, EVERYTHING)
        foreign = next(each for each in ledger.findings(EVERYTHING) if each.cluster == "beta")
        assert foreign.id is not None
        assert ledger.finding(of_alpha, foreign.id) is None
        for change in (
            lambda: ledger.acknowledge(of_alpha, foreign.id or 0, "ann"),
            lambda: ledger.mute(of_alpha, foreign.id or 0, "ann", NOW_MS + 1),
            lambda: ledger.unmute(of_alpha, foreign.id or 0, "ann"),
            lambda: ledger.finding_events(of_alpha, foreign.id or 0),
        ):
            with pytest.raises(GpuCostError, match="the id of a finding"):
                change()


def test_a_closed_month_and_its_adjustments_are_of_no_one_cluster(sqlite_url: str) -> None:
    of_alpha = Scope(None, frozenset({"alpha"}))
    with Ledger.open(sqlite_url, now=lambda: NOW_MS) as ledger:
        fill(ledger, EVERYTHING)
        closed = ledger.close_month(MONTH, author="ann", min_coverage=Fraction(0), reason="beta is gone")
        ledger.adjust(MONTH, "red", 5, 0, "why", "ann", "r-1")
        found = ledger.month(MONTH, scope=of_alpha)
        assert (found.state, found.closed_at_ms, found.author) == (closed.state, closed.closed_at_ms, "ann")
        assert (found.digest, found.reason, found.version) == (None, None, HOURS)
        assert ledger.adjustments(of_alpha, MONTH) == ()
        assert len(ledger.adjustments(Scope(frozenset({"red"})), MONTH)) == 1
        for scope in (of_alpha, Scope(frozenset(TEAMS))):
            with pytest.raises(LedgerError, match="every team of every cluster"):
                ledger.audit(scope)
