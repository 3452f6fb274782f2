"""Names of teams: which a reader may know of, and the refusal of any other.

A team of others is refused as one that nobody has: in the same words, and without reading anything. Every
command and route that takes the name of a team refuses it here.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from gpucost.domain.buckets import HOLDERS_OF_NONE, NO_TEAM
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.domain.text import named_first
from gpucost.domain.time import Month
from gpucost.ledger.ledger import Ledger

_MOST_NAMED = 100
_NOBODY = HOLDERS_OF_NONE | {"", NO_TEAM}
"""What stands for no team, where time of nobody can be asked for."""


def known_teams(ledger: Ledger, ruled: Collection[str], month: Month, scope: Scope = EVERYTHING) -> set[str]:
    """The teams ``ruled`` by the team rules, and those with usage or an adjustment in ``month``; of some
    clusters, with usage there: adjustments are of no cluster."""
    used = set(ledger.aggregate(scope, month.window, ("team",))["team"])
    adjusted = {item.team for item in ledger.adjustments(scope, month)} if scope.sees_all else set()
    return {*used, *adjusted, *ruled} - HOLDERS_OF_NONE - {""}


def teams_seen(ledger: Ledger, ruled: Collection[str], scope: Scope) -> frozenset[str]:
    """Every team that ``scope`` may know of, whenever it held anything. Who sees some teams is told these,
    and nothing is read; who sees some clusters, the teams with usage or findings there: rules are of all."""
    if scope.teams is not None:
        return scope.teams
    rules = ruled if scope.clusters is None else ()
    return frozenset({*ledger.teams(scope), *rules}) - _NOBODY


def check_teams(
    ledger: Ledger, ruled: Collection[str], scope: Scope, names: Collection[str], *, nobody: bool = False
) -> None:
    """Raises InputError for the first of ``names`` that ``scope`` may not know of. With ``nobody`` who sees
    every team may also name what stands for no team."""
    asked = {*names} - _NOBODY if nobody and scope.sees_every_team else {*names}
    unknown = sorted(asked - (scope.teams or frozenset()))
    if unknown:
        known = teams_seen(ledger, ruled, scope)
        for name in unknown:
            if name not in known:
                raise unknown_team(name, known)


def unknown_team(
    name: str, known: AbstractSet[str], none: str = "nothing yet: there is no team"
) -> InputError:
    """The refusal of ``name``, with the teams that the reader may see."""
    return InputError("team", name, allowed_teams(name, known) or none)


def allowed_teams(name: str, known: AbstractSet[str]) -> str:
    """The teams in place of ``name``: the one that is meant by it first, if any is similar."""
    names = sorted(known)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{named_first(name, known)}{', '.join(names[:_MOST_NAMED])}{more}"
