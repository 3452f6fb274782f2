"""The bill as FOCUS (FinOps Open Cost and Usage Specification), and the bills of clouds read from it.

What lives here: columns by version as data, rows made of lines, files, checks, and the comparison of an
invoice with the ledger. What must not: reading the ledger (gpucost.service.reporting.focus_exports does).
Begin at focus_columns, then charge_rows.
"""
