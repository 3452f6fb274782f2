"""What every report is made of: amounts and signals as values, their display, documents written and read.

What must not live here: a report, a renderer, or the import of another wing. A unit or a rounding that all
outputs share goes into display. The rules of JSON (nano beside cost, board_ms beside GPU-hours) are in
document. Begin at values.
"""
