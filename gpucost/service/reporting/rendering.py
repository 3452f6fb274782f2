"""Reports in the requested format: the one list of formats, for the API and the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum

from gpucost.reports.base.document import document, to_json
from gpucost.reports.charges.charge_statements import CHARGE_WORDS, TeamStatement
from gpucost.reports.charges.statement_tables import statement_sheets, statement_table, summary_table
from gpucost.reports.job.job_receipt import JobReceipt
from gpucost.reports.job.job_report import JobReport
from gpucost.reports.month.allocations import Allocations
from gpucost.reports.month.model import MonthReport, StatementSummary
from gpucost.reports.render.files import to_csv, to_parquet, to_xlsx
from gpucost.reports.render.html import MOST_ROWS, render_page, to_html
from gpucost.reports.render.tables import (
    ReportTable,
    allocations_table,
    findings_table,
    job_table,
    month_table,
    waste_table,
)
from gpucost.reports.waste.findings import FindingReport, FindingsReport
from gpucost.reports.waste.waste_report import WasteReport
from gpucost.service.reporting.report_service import LedgerStand, ReportAnswer


class ReportFormat(StrEnum):
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    HTML = "html"
    XLSX = "xlsx"

    @property
    def lists_every_job(self) -> bool:
        """Tables are for machines and hold everything; pages and documents hold the costliest jobs."""
        return self in (ReportFormat.CSV, ReportFormat.PARQUET)


def render_month(report: MonthReport, format_: ReportFormat) -> str | bytes:
    """A month's report as the content of a file."""
    if format_ is ReportFormat.HTML:
        return to_html(report)
    return to_json(report) if format_ is ReportFormat.JSON else _table(month_table(report), format_)


def render_allocations(
    answer: ReportAnswer[Allocations], format_: ReportFormat, page: dict[str, int] | None = None
) -> str | bytes:
    """Allocations as the content of a file; ``page`` adds the position of the rows among all of them."""
    if format_ is ReportFormat.JSON:
        return _with_stand(answer.report, answer.stand, page or {})
    return _table(allocations_table(answer.report), format_)


def render_job(answer: ReportAnswer[JobReport], format_: ReportFormat) -> str | bytes:
    """A job's report as the content of a file."""
    if format_ is ReportFormat.JSON:
        return _with_stand(answer.report, answer.stand, {})
    return _table(job_table(answer.report), format_)


def render_receipt(answer: ReportAnswer[JobReceipt]) -> str:
    """A job's receipt as JSON."""
    return _with_stand(answer.report, answer.stand, {})


def render_waste(answer: ReportAnswer[WasteReport], format_: ReportFormat) -> str | bytes:
    """The waste ledger of a window as the content of a file."""
    if format_ is ReportFormat.JSON:
        return _with_stand(answer.report, answer.stand, {})
    return _table(waste_table(answer.report), format_)


def render_findings(report: FindingsReport, format_: ReportFormat) -> str | bytes:
    """Findings as the content of a file; tables leave out evidence and what was withheld."""
    return to_json(report) if format_ is ReportFormat.JSON else _table(findings_table(report), format_)


def render_statements(
    found: Sequence[TeamStatement],
    format_: ReportFormat,
    *,
    one: bool = False,
    summary: StatementSummary | None = None,
) -> str | bytes:
    """Statements, at least one in a page or workbook, as the content of a file; in JSON a list of them, or of
    ``one`` team that statement itself. Pages and workbooks begin with the ``summary``."""
    match format_:
        case ReportFormat.HTML:
            return _statements_page(found, summary)
        case ReportFormat.XLSX:
            return to_xlsx(statement_sheets(found, summary))
        case ReportFormat.JSON if one:
            return to_json(found[0])
        case ReportFormat.JSON:
            texts = [document(each) for each in found]
            return json.dumps(texts, ensure_ascii=False, sort_keys=True, indent=2) + "\n"
    return _table(statement_table(found), format_)


def render_summary(found: StatementSummary, format_: ReportFormat) -> str | bytes:
    """What every team pays, as the content of a file."""
    match format_:
        case ReportFormat.HTML:
            return _statements_page((), found)
        case ReportFormat.XLSX:
            return to_xlsx({"Teams": summary_table(found)})
        case ReportFormat.JSON:
            return to_json(found)
    return _table(summary_table(found), format_)


def _statements_page(found: Sequence[TeamStatement], summary: StatementSummary | None) -> str:
    month = found[0].month if summary is None else summary.month
    words = {"words": CHARGE_WORDS, "most_rows": MOST_ROWS}
    return render_page("statement.html.j2", found=found, summary=summary, month=month, **words)


def render_finding(report: FindingReport) -> str:
    """One finding as JSON."""
    return to_json(report)


def _table(table: ReportTable, format_: ReportFormat) -> str | bytes:
    return to_parquet(table) if format_ is ReportFormat.PARQUET else to_csv(table)


def _with_stand(report: object, stand: LedgerStand, more: dict[str, int]) -> str:
    ledger = {
        "digest": stand.digest,
        "windows": stand.windows,
        "settled": stand.settled,
        "covered_ms": stand.covered_ms,
        "observed_ms": stand.observed_ms,
        "clusters": list(stand.clusters),
    }
    found = {**document(report), **more, "ledger": ledger}
    return json.dumps(found, ensure_ascii=False, sort_keys=True, indent=2) + "\n"
