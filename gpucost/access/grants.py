"""Grants: roles and scopes of token holders, by name and groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal, scope_of
from gpucost.domain.configfile import is_name

TEAM = "{team}"
MOST_GROUPS = 1_000
"""Of one person. Further groups are ignored, so a caller with more gets less, never more."""
_NOBODYS = "__"  # names of the ledger for time without a team begin so: no group names such a team


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """One grant of the settings.

    ``users`` and ``groups`` say who has it (``*`` at the end of a group stands for anything); without both
    all have it to whom ``team_groups``, such as ``gpu-{team}-members``, gives a team. ``clusters`` None is
    every cluster.
    """

    users: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
    team_groups: str = ""
    role: AccessRole = AccessRole.VIEWER
    teams: frozenset[str] = frozenset()
    clusters: frozenset[str] | None = None

    def teams_of(self, groups: Iterable[str]) -> frozenset[str]:
        """Its own teams, and those that the groups name."""
        if not self.team_groups:
            return self.teams
        return self.teams.union(filter(None, (_team(self.team_groups, group) for group in groups)))

    def is_for(self, name: str, groups: Sequence[str]) -> bool:
        if not self.users and not self.groups:
            return True
        return name in self.users or any(_fits(wanted, group) for wanted in self.groups for group in groups)


@dataclass(frozen=True, slots=True)
class GroupGrants:
    """In the order of the settings: the first that fits decides."""

    grants: tuple[AccessGrant, ...] = ()

    def principal(self, name: str, groups: Sequence[str], method: AuthenticationMethod) -> Principal | None:
        """None for a caller whom no grant fits. A grant that is bound to teams and leads to none fits no
        caller.

        The id is ``METHOD:NAME``, as in ``oidc:ada``. No API key has a colon in its id, so the administrator
        of the issuer cannot make a name that passes for a key in the log and in the audit trail.
        """
        for grant in self.grants:
            teams = grant.teams_of(groups)
            if grant.is_for(name, groups) and bool(teams) == grant.role.has_teams:
                return Principal(
                    f"{method}:{name}", grant.role, scope_of(grant.role, teams, grant.clusters), method
                )
        return None


def known_groups(values: object) -> tuple[str, ...]:
    """The groups in a claim: a list, or one as text. Values that cannot name a group are left out."""
    listed = [values] if isinstance(values, str) else values
    if not isinstance(listed, list):
        return ()
    return tuple(each for each in listed[:MOST_GROUPS] if isinstance(each, str) and is_plain(each))


def is_plain(name: str) -> bool:
    """Whether a name may stand in the log and in the audit trail: no invisible characters, and none that the
    ledger cannot store."""
    return is_name(name) and name.isprintable()


def _fits(wanted: str, group: str) -> bool:
    return group.startswith(wanted[:-1]) if wanted.endswith("*") else group == wanted


def _team(pattern: str, group: str) -> str:
    """The team that a group names; empty if it is no group of that kind."""
    before, _, after = pattern.partition(TEAM)
    if len(group) <= len(before) + len(after) or not (group.startswith(before) and group.endswith(after)):
        return ""
    team = group[len(before) : len(group) - len(after)]
    return team if is_plain(team) and not team.startswith(_NOBODYS) else ""
