"""Settings of the HTTP listener: address, keys, limits."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpucost.domain.configfile import Instant, wrong
from gpucost.settings.types import Duration, Group


class Role(StrEnum):
    """What a principal may see: its teams; every team; every team; /metrics and /readyz only; nothing.

    Viewers (of their teams) and admins may answer findings: acknowledge, mute, unmute.
    """

    VIEWER = "viewer"
    FINANCE = "finance"
    ADMIN = "admin"
    METRICS = "metrics"
    ALERTS = "alerts"
    """Alertmanager's: it hands alerts over."""


class ApiKey(Group):
    """One API key, stored as the SHA-256 of its secret (a random secret of 256 bits needs no slow hash)."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    """1 to 32 of a-z, 0-9 and dashes, the public part of the key ``gpc_<id>_<secret>``. It appears in logs.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    """SHA-256 of the secret: 64 lower-case hex digits."""

    role: Role = Role.VIEWER
    """``viewer`` sees its ``teams``, and may acknowledge and mute their findings; ``finance`` sees every team
    and changes nothing; ``admin`` sees every team, and may acknowledge and mute every finding; ``metrics``
    reads /metrics and /readyz only; ``alerts`` is Alertmanager's, which hands alerts over and reads nothing.
    """

    teams: frozenset[str] = frozenset()
    """Teams a viewer may see. Refused for the other roles, which see all or none."""

    expires: Instant | None = None
    """First instant at which the key is no longer accepted (RFC 3339). Never, when it is not set."""

    @model_validator(mode="after")
    def _teams_for_viewers(self) -> Self:
        if (self.role is Role.VIEWER) != bool(self.teams):
            raise wrong(sorted(self.teams), "teams for the role viewer, and none for another role", "teams")
        return self


class ApiSettings(Group):
    """The HTTP listener and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default; give an address on purpose, and keys with it."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """TCP port, 0 to 65535; 0 takes a free one."""

    auth: Literal["keys", "off"] = "keys"
    """``keys`` or ``off``. With keys, every request but /healthz carries an API key; off asks nobody, which
    is allowed on a loopback address only.
    """

    keys: tuple[ApiKey, ...] = ()
    """List of API keys. Make one with ``gpucost key ID``; only its hash is written here."""

    max_body_bytes: Annotated[int, Field(ge=0, le=100_000_000)] = 65_536
    """Largest request body, 0 to 100,000,000 bytes; a larger one is answered with 413. The largest that a
    route has a use for is about 13,000 bytes: a note of 1,000 characters, all of them escaped. But
    ``/v1/advisor/advice`` takes manifests of up to 3 MiB, whatever is set here.
    """

    max_span: Duration = timedelta(days=400)
    """Longest window of one query: a year and its comparison month."""

    max_steps: Annotated[int, Field(ge=1, le=100_000)] = 1_500
    """Most steps of one query, 1 to 100,000. The default is two months by the hour."""

    max_page_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most rows on one page, 1 to 100,000. The default is about 4 MB of JSON."""

    team_idle_sharing: bool = False
    """Whether a viewer, who sees its ``teams`` only, may ask for ``idle=proportional`` and ``by_quota``. Off
    by default, since it tells what others hold: a team's share of the idle time follows from everybody's
    use, so that from its own held time and its two shares of one window it can compute what all teams held
    together.
    """

    metrics_jobs: Annotated[int, Field(ge=0, le=100_000)] = 500
    """Most jobs with a series of their own on /metrics, 0 to 100,000: the costliest of the month. What the
    others cost is one more series per team, with an empty job.
    """

    metrics_findings: Annotated[int, Field(ge=0, le=100_000)] = 500
    """Most findings with a series of their own on /metrics, 0 to 100,000: of those that may raise an alert,
    the dearest. ``gpucost_findings`` counts all.
    """

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.auth == "off" and not is_loopback(self.host):
            raise wrong(
                "off", f"off with a loopback host such as 127.0.0.1; with {self.host} it must be keys", "auth"
            )
        ids = [key.id for key in self.keys]
        if len(set(ids)) < len(ids):
            raise wrong(ids, "ids that are all different", "keys")
        return self


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
