"""The price book that ships with gpucost, as text: PriceBook.parse reads it like any other."""

from __future__ import annotations

from importlib.resources import files

DEFAULT_BOOK_FILE = "default_prices.yaml"


def default_book_text() -> str:
    """The YAML of the dated default table. It is package data: no path, no network."""
    return (files(__package__) / DEFAULT_BOOK_FILE).read_text(encoding="utf-8")
