"""Statements, and the summary of all, as flat tables: for CSV, XLSX and Parquet. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucost.domain.time import iso
from gpucost.reports.charges.charge_statements import QUOTA_SUMS, TeamStatement
from gpucost.reports.month.model import StatementSummary
from gpucost.reports.render.tables import Cells, CellType, ReportTable, typed_table

_SUMMARY = {
    **dict.fromkeys(("month", "team", "cost_centre"), CellType.TEXT),
    **dict.fromkeys(("board_ms", "charged_nano", "adjusted_nano", "total_nano"), CellType.INTEGER),
    **dict.fromkeys(("currency", "policy", "state"), CellType.TEXT),
}
KEPT_BY_PLATFORM = "kept by the platform"


def summary_table(found: StatementSummary) -> ReportTable:
    """What every team pays as one flat table, and what the platform keeps: its last row, with an empty
    team."""
    common: Cells = {"month": str(found.month), "currency": found.currency, "state": found.state}
    common["policy"] = found.policy
    rows: list[Cells] = [
        common
        | {
            "team": each.team,
            "cost_centre": each.cost_centre or "",
            "board_ms": each.board_ms,
            "charged_nano": each.charged_nano,
            "adjusted_nano": each.adjusted_nano,
            "total_nano": each.total_nano,
        }
        for each in found.teams
    ]
    if found.proof is not None:
        kept: Cells = {"team": "", "cost_centre": KEPT_BY_PLATFORM, "board_ms": found.proof.kept_board_ms}
        amounts: Cells = dict.fromkeys(("charged_nano", "total_nano"), found.proof.kept_nano)
        rows.append(common | kept | amounts | {"adjusted_nano": 0})
    return typed_table({"month": str(found.month)}, _SUMMARY, rows)


_TABLE = {
    **dict.fromkeys(("month", "team", "cost_centre", "policy", "state", "line"), CellType.TEXT),
    **dict.fromkeys(("board_ms", "nano"), CellType.INTEGER),
    **dict.fromkeys(("currency", "why", "again", "reference"), CellType.TEXT),
}


def statement_table(found: Sequence[TeamStatement]) -> ReportTable:
    """Statements as one flat table: lines, then adjustments, then the total of each."""
    facts = {"month": str(found[0].month)} if found else {}
    return typed_table(facts, _TABLE, (row for each in found for row in _table_rows(each)))


_JOBS = {
    **dict.fromkeys(("month", "team", "namespace", "job", "job_uid", "queue"), CellType.TEXT),
    **dict.fromkeys(("board_ms", "nano"), CellType.INTEGER),
    "currency": CellType.TEXT,
}
_PRICES = {
    **dict.fromkeys(("month", "team", "model", "capacity_type", "rate_id", "start", "end"), CellType.TEXT),
    **dict.fromkeys(("price_nano", "list_price_nano", "board_ms", "nano"), CellType.INTEGER),
    **dict.fromkeys(("currency", "discount", "source"), CellType.TEXT),
}
_RULE_SUMS = ("board_ms", "nano", "unpriced_board_ms")
_RULES = {
    **dict.fromkeys(("month", "team", "rule"), CellType.TEXT),
    **dict.fromkeys(_RULE_SUMS, CellType.INTEGER),
    "currency": CellType.TEXT,
}


_CONTRACT_SUMS = (*("list_nano", "contracted_nano", "effective_nano", "unused_nano", "unpriced_board_ms"),)
_CONTRACT_VIEWS = {
    **dict.fromkeys(("month", "team"), CellType.TEXT),
    **dict.fromkeys(_CONTRACT_SUMS, CellType.INTEGER),
    "currency": CellType.TEXT,
}
_SHARES = {
    **dict.fromkeys(("month", "team", "line", "cluster", "model", "rule"), CellType.TEXT),
    **dict.fromkeys(("parts", "weight_ms", "board_ms", "nano"), CellType.INTEGER),
    **dict.fromkeys(("whole_weight_ms", "whole_board_ms", "whole_nano"), CellType.INTEGER),
    "currency": CellType.TEXT,
}
_COUNTED = ("per_unit_nano", "per_million_nano", "counted_nano")
_UNITS = {
    **dict.fromkeys(("month", "team", "cluster", "namespace", "job", "job_uid", "unit"), CellType.TEXT),
    "amount": CellType.RATIO,
    **dict.fromkeys((*_COUNTED, "pods"), CellType.INTEGER),
    **dict.fromkeys(("coverage", "idle_share"), CellType.RATIO),
    "currency": CellType.TEXT,
}
_QUOTAS = {
    **dict.fromkeys(("month", "team", "cluster", "model", "queue", "cohort"), CellType.TEXT),
    **dict.fromkeys(QUOTA_SUMS, CellType.INTEGER),
    "currency": CellType.TEXT,
}


def statement_sheets(
    found: Sequence[TeamStatement], summary: StatementSummary | None = None
) -> dict[str, ReportTable]:
    """Statements as the sheets of a workbook: what every team pays, where there is a summary; charges and
    adjustments, the dearest jobs, prices, which team rules gave the team what it held, its quotas, its
    shares of time that is nobody's, what contracts made of its use, and what units of its jobs cost."""
    facts = {"month": str(found[0].month)} if found else {}
    jobs: list[Cells] = []
    prices: list[Cells] = []
    rules: list[Cells] = []
    quotas: list[Cells] = []
    contracts: list[Cells] = []
    shares: list[Cells] = []
    units: list[Cells] = []
    for each in found:
        common: Cells = {"month": str(each.month), "team": each.team, "currency": each.currency}
        held: Cells = common | {"currency": each.ledger_currency}
        jobs += [
            common | {name: getattr(job, name) for name in _JOBS if hasattr(job, name)} for job in each.jobs
        ]
        for price in each.prices:
            cells: Cells = {name: getattr(price, name) for name in _PRICES if hasattr(price, name)}
            span: Cells = {"start": iso(price.held.start_ms), "end": iso(price.held.end_ms)}
            prices.append(held | cells | span)
        rules += [
            held | {"rule": rule.rule or ""} | {name: getattr(rule, name) for name in _RULE_SUMS}
            for rule in each.rules
        ]
        if each.contracts is not None:
            contracts.append(held | {name: getattr(each.contracts, name) for name in _CONTRACT_SUMS})
        for quota in each.quotas:
            of_quota: Cells = {name: getattr(quota, name) for name in _QUOTAS if hasattr(quota, name)}
            quotas.append(common | of_quota)
        for share in each.shares:
            of_share: Cells = {name: getattr(share, name) for name in _SHARES if hasattr(share, name)}
            shares.append(common | of_share | {"line": share.kind})
        for unit in each.units:
            names: Cells = {name: getattr(unit, name) for name in _UNITS if hasattr(unit, name)}
            of_unit: Cells = {name: getattr(unit.cost, name) for name in _UNITS if hasattr(unit.cost, name)}
            units.append(held | names | of_unit | {"unit": unit.cost.name})
    first = {} if summary is None else {"Teams": summary_table(summary)}
    return first | {
        "Charges": statement_table(found),
        "Dearest jobs": typed_table(facts, _JOBS, jobs),
        "Prices": typed_table(facts, _PRICES, prices),
        "Why this team": typed_table(facts, _RULES, rules),
        "Quota": typed_table(facts, _QUOTAS, quotas),
        "Shares": typed_table(facts, _SHARES, shares),
        "Contracts": typed_table(facts, _CONTRACT_VIEWS, contracts),
        "Unit costs": typed_table(facts, _UNITS, units),
    }


def _table_rows(found: TeamStatement) -> Iterator[Cells]:
    common: Cells = {
        "month": str(found.month),
        "team": found.team,
        "cost_centre": found.cost_centre or "",
        "policy": found.policy,
        "state": found.state,
        "currency": found.currency,
    }
    for line in found.lines:
        amounts: Cells = {"line": line.kind, "board_ms": line.board_ms, "nano": line.nano}
        yield {**common, **amounts, "why": line.why, "again": line.again}
    for each in found.adjustments:
        amounts = {"line": "adjustment", "board_ms": each.board_ms, "nano": each.nano}
        yield {**common, **amounts, "why": each.reason, "reference": each.reference}
    yield {**common, "line": "total", "board_ms": found.total_board_ms, "nano": found.total_nano}
