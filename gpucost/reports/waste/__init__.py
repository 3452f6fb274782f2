"""Waste and findings as reports: buckets, causes, recommendations, single findings, backtests.

What must not live here: detectors themselves, and anything of a month's cost. What a reader may see of a
finding is decided in one place: recommendations.view_for. waste_table has the words that the terminal, HTML
and chat share. Begin at waste_report.
"""
