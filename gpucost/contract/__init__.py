"""What passes between the parts: the metric contract, and the frames that every source returns.

What may live here: declarations (names, labels, units, columns, help) and their lookup.
What must not: I/O, pandas, or code that computes with the values. Exporters, sources, docs, dashboards,
alerts and tests all read these tables, so a name is declared once.
"""
