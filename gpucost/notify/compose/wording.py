"""Money, GPU-hours, shares, instants and owners in the words of messages."""

from __future__ import annotations

import re

from gpucost.domain.buckets import HOLDERS_OF_NONE, NO_TEAM
from gpucost.domain.money import NANO
from gpucost.domain.time import iso
from gpucost.reports.base import display
from gpucost.reports.base.values import CostAmount, CostChange

_CENTS_BELOW = 100 * NANO


def cost(nano: int | None, currency: str) -> str:
    """``USD 8,412``, with cents below a hundred; a dash for what has no price."""
    if nano is None:
        return display.MISSING
    return f"{currency} {display.money(nano, 2 if abs(nano) < _CENTS_BELOW else 0)}"


def gpu_hours(board_ms: int) -> str:
    """``1,234.5 GPU-hours``."""
    return f"{display.hours(board_ms)} GPU-hours"


def amount(found: CostAmount, currency: str, *, of_money: str = "", of_hours: str = "") -> str:
    """``USD 8,412, 1,234.5 GPU-hours``; missing prices are mentioned. ``of_money`` and ``of_hours`` follow
    the one and the other in brackets."""
    hours = f"{gpu_hours(found.board_ms)}{_bracketed(of_hours)}"
    if found.nano is None:
        return f"{hours}, without a price"
    unpriced = found.unpriced_board_ms
    rest = f", {display.hours(unpriced)} of them without a price" if unpriced else ""
    return f"{cost(found.nano, currency)}{_bracketed(of_money)}, {hours}{rest}"


def _bracketed(words: str) -> str:
    return f" ({words})" if words else ""


def instant(instant_ms: int) -> str:
    """``2026-10-12 08:20 UTC``: seconds are left out."""
    return f"{iso(instant_ms)[:16].replace('T', ' ')} UTC"


SENTENCE = 110
"""How long a sentence of a message may be, in characters: three lines of a phone. The page has all of it."""
_SENTENCES = re.compile(r"(?<=[.!?;])\s+")


def brief(words: str, most: int = SENTENCE) -> str:
    """As many of the first sentences as fit into ``most`` characters; of a longer one its beginning, cut
    between two words."""
    told = " ".join(words.split())
    if len(told) <= most:
        return told
    kept = ""
    for part in _SENTENCES.split(told):
        longer = f"{kept} {part}".strip()
        if len(longer) > most:
            break
        kept = longer
    if kept:
        return f"{kept.removesuffix(';')}." if kept.endswith(";") else kept
    cut = told[: most - 2].rsplit(" ", 1)[0] if " " in told[: most - 2] else told[: most - 2]
    return f"{cut.rstrip(' ,:;')} …"


def sentence(words: str) -> str:
    """``words`` with a full stop, where they end in none."""
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."


def change_words(change: CostChange | None, since: str) -> str:
    """``6% more than the week before``; empty where there is nothing to compare. ``since`` names the base."""
    if change is None or change.relative is None or change.nano is None:
        return ""
    if not change.nano:
        return f"as much as {since}"
    return f"{display.percent(abs(change.relative))} {'more' if change.nano > 0 else 'less'} than {since}"


_NOBODY = HOLDERS_OF_NONE | {NO_TEAM}


def owner(team: str) -> str:
    """The team, or empty, which is the platform: for what belongs to no team."""
    return "" if team in _NOBODY else team
