"""The price book: YAML in, validated, looked up by node and time. Pure: it is given text and returns rates.

What may live here: the schema of the book, look-up rules, amortisation, commitments, discounts.
What must not: reading files (the caller hands over text; the shipped table is package data), fetching prices,
attribution.
"""
