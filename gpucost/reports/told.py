"""What a finding says to whom: a reader of some teams is not told the names of others."""

from __future__ import annotations

from dataclasses import dataclass

from gpucost.detectors.findings import Action, Draft, Evidence
from gpucost.domain.scope import Scope


@dataclass(frozen=True, slots=True)
class Told:
    """The words of a finding."""

    summary: str
    evidence: tuple[Evidence, ...]
    action: Action


def told(draft: Draft, scope: Scope) -> Told:
    """The words of ``draft`` for who sees ``scope``: those for its team where the rule has such, since its
    own may name what other teams run. Labels are told to nobody."""
    view = None if scope.sees_every_team else draft.team_view
    words = draft if view is None else view
    return Told(words.summary, words.evidence, words.action)
