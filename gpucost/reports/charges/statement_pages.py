"""Statements as one HTML page: no scripts, nothing fetched, every team on sheets of paper of its own.

The template is ``reports/templates/statement.html.j2``; what a statement is: ``charge_statements``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucost.reports.charges.charge_statements import CHARGE_WORDS, TeamStatement
from gpucost.reports.render.html import MOST_ROWS, render_page


def statements_html(found: Sequence[TeamStatement]) -> str:
    """``found``, at least one, as a self-contained page, one after the other; the same bytes for the same
    statements."""
    return render_page(
        "statement.html.j2", found=found, month=found[0].month, words=CHARGE_WORDS, most_rows=MOST_ROWS
    )
