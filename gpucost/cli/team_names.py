"""Names of teams that a person types: which are known, and which was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from gpucost.domain.holders import HOLDER_OF_BUCKET
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import Month

if TYPE_CHECKING:
    from gpucost.cli.context import Context
    from gpucost.ledger import Ledger


def known_teams(context: Context, ledger: Ledger, month: Month) -> set[str]:
    """The teams of the rules, and those with usage or an adjustment in ``month``."""
    used = set(ledger.aggregate(EVERYTHING, month.window, ("team",))["team"])
    adjusted = {item.team for item in ledger.adjustments(EVERYTHING, month)}
    ruled = {team.name for team in context.teams.teams}
    return (used | adjusted | ruled) - {"", *HOLDER_OF_BUCKET.values()}


def meant(name: str, known: AbstractSet[str]) -> str:
    """``research (did you mean this?), or another of: ``; empty when none is like ``name``."""
    close = difflib.get_close_matches(name, sorted(known), 1)
    return f"{close[0]} (did you mean this?), or another of: " if close else ""


def unknown_teams(context: Context, ledger: Ledger, names: list[str]) -> list[str]:
    """A remark for each name that neither the team rules nor the newest month of the ledger has; none while
    they have no team at all. Raises InputError for wrong team rules."""
    extent = ledger.extent()
    if extent is None:
        return []
    month = Month.of(extent.end_ms - 1)
    known = known_teams(context, ledger, month)
    return [_remark(name, known, month) for name in names if known and name not in known]


def _remark(name: str, known: AbstractSet[str], month: Month) -> str:
    close = ", ".join(difflib.get_close_matches(name, sorted(known), 3))
    did = f"; did you mean {close}?" if close else ""
    return f"the team {name!r} is neither in the team rules nor in {month} of the ledger{did}"
