"""How reports are shown: tables for CSV and Parquet, the HTML page with its charts, the terminal.

What must not live here: computation of numbers; a renderer shows what the report has. rich, Jinja2 and Arrow
are imported here and in the output modules of doctor and opencost only. The templates are in
reports/templates. Begin at tables or terminal_month.
"""
