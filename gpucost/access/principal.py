"""Roles and principals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpucost.domain.scope import EVERYTHING, Scope


class AccessRole(StrEnum):
    """What a principal may do.

    ``viewer`` reads what its teams did. ``team-admin`` also answers their findings (acknowledge, mute,
    unmute) and keeps their viewers' API keys. ``finance`` reads every team and changes nothing. ``admin``
    may do everything. ``metrics`` reads /metrics and /readyz only. ``alerts`` is Alertmanager's: it hands
    alerts over and reads nothing.
    """

    VIEWER = "viewer"
    TEAM_ADMIN = "team-admin"
    FINANCE = "finance"
    ADMIN = "admin"
    METRICS = "metrics"
    ALERTS = "alerts"

    @property
    def has_teams(self) -> bool:
        """Whether it is bound to teams; the others see all of them, or none."""
        return self in (AccessRole.VIEWER, AccessRole.TEAM_ADMIN)


class AuthenticationMethod(StrEnum):
    """How a caller was authenticated."""

    OFF = "off"
    KEY = "key"
    OIDC = "oidc"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. ``id`` is a key's id, or the name that its token gives it; it appears in logs
    and in the audit trail. ``scope`` bounds what it reads, and what it changes."""

    id: str
    role: AccessRole
    scope: Scope
    method: AuthenticationMethod = AuthenticationMethod.KEY

    @property
    def user_names(self) -> tuple[str, ...]:
        """The names under which pods may call the caller their user: the id of a key, the name in a token,
        and of an address what stands before its @ as well, since a label can have no @. None where
        authentication is off: then nothing tells who asks."""
        if self.method is AuthenticationMethod.OFF:
            return ()
        name = self.id
        if self.method is not AuthenticationMethod.KEY:
            name = name.partition(":")[2] or name
        return tuple(dict.fromkeys((name, name.partition("@")[0] or name)))


LOOPBACK = Principal("loopback", AccessRole.ADMIN, EVERYTHING, AuthenticationMethod.OFF)
"""The caller where authentication is off."""


def scope_of(role: AccessRole, teams: frozenset[str], clusters: frozenset[str] | None) -> Scope:
    """What a role with these teams may see. ``clusters`` None is every cluster."""
    return Scope(teams if role.has_teams else None, clusters)
