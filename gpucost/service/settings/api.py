"""Settings of the HTTP listener: address, keys, limits."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gpucost.access.keys import KEY_ID, RESERVED, KeyRecord
from gpucost.access.principal import AccessRole
from gpucost.domain.configfile import Instant, wrong
from gpucost.domain.errors import ErrorRemark
from gpucost.settings.types import Duration, DurationOrZero, ExistingFile, SettingsGroup, between


class ApiKey(SettingsGroup):
    """One API key, stored as the SHA-256 of its secret (a random secret of 256 bits needs no slow hash)."""

    id: Annotated[str, Field(pattern=f"^{KEY_ID.pattern}$")]
    """1 to 32 of a-z, 0-9 and dashes, the public part of the key ``gpc_<id>_<secret>``. It appears in logs.
    ``loopback`` and ``gpucost`` are no key's: in the audit trail they are the service's own.
    """

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    """SHA-256 of the secret: 64 lower-case hex digits."""

    role: AccessRole = AccessRole.VIEWER
    """``viewer`` sees its ``teams``; ``team-admin`` may also acknowledge and mute their findings, and keep
    their viewers' keys; ``finance`` sees every team and changes nothing; ``admin`` may do everything;
    ``metrics`` reads /metrics and /readyz only; ``alerts`` is Alertmanager's, which hands alerts over and
    reads nothing.
    """

    teams: frozenset[str] = frozenset()
    """Teams a viewer or team-admin may see. Refused for the other roles, which see all or none."""

    clusters: frozenset[str] = frozenset()
    """Clusters that may be seen. All, when none is given."""

    expires: Instant | None = None
    """First instant at which the key is no longer accepted (RFC 3339). Never, when it is not set."""

    @model_validator(mode="after")
    def _own_id(self) -> Self:
        if self.id in RESERVED:
            raise wrong(self.id, "another id: in the audit trail this one is the service's own", "id")
        return self

    @model_validator(mode="after")
    def _teams_for_viewers(self) -> Self:
        if self.role.has_teams != bool(self.teams):
            allowed = "teams for the roles viewer and team-admin, and none for another role"
            raise wrong(sorted(self.teams), allowed, "teams")
        return self

    def record(self) -> KeyRecord:
        """The key as it is checked."""
        return KeyRecord(
            self.id, self.sha256, self.role, self.teams, self.clusters or None, expires_ms=self.expires
        )


class ApiSettings(SettingsGroup):
    """The HTTP listener and its limits."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default; give an address on purpose, and keys with it."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """TCP port, 0 to 65535; 0 takes a free one."""

    tls_cert_file: ExistingFile | None = None
    """PEM file of the certificate, with its chain. With it and ``tls_key_file`` the listener speaks TLS, 1.2
    or later; without them HTTP, which is for loopback or behind something that speaks TLS. Files that are
    replaced are taken within seconds, without a restart.
    """

    tls_key_file: ExistingFile | None = None
    """PEM file of the certificate's private key, without a passphrase."""

    drain: Annotated[
        DurationOrZero, between(timedelta(0), timedelta(minutes=5), "a duration from 0 to 5m")
    ] = timedelta(0)
    """How long after SIGTERM the listener still takes connections, while /healthz/ready says 503: time for
    Kubernetes to send nobody here any more. 0 to 5m.
    """

    auth: Literal["required", "off"] = "required"
    """``required`` or ``off``. When required, every request but /healthz and /healthz/ready carries an API
    key, or a token that ``access`` says who may have; off asks nobody, which is allowed on a loopback
    address only.
    """

    keys: tuple[ApiKey, ...] = ()
    """List of API keys beside those in the ledger. Make one with ``gpucost key hash ID``; only its hash is
    written here.
    """

    rate: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Most requests a second of one principal, 0 to 100,000; more are answered with 429. 0 is no limit.
    Each KiB of a manifest sent for advice counts as one more. Nobody who reads reports comes near the
    default; a script without a pause does.
    """

    burst: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    """How many requests of a principal may come at once, 1 to 1,000,000, before ``rate`` holds."""

    refused_rate: Annotated[int, Field(ge=0, le=100_000)] = 20
    """Most requests a second without a valid key or token, by client address (of IPv6 by its /64), 0 to
    100,000; more are answered with 429 in place of 401, and no longer logged, and their tokens are asked of
    nobody. 0 is no limit. A minute's worth may come at once.
    """

    replays: Path | None = None
    """Folder with replays that ``gpucost replay MONTH --keep NAME`` has written; pages and ``/v1/months``
    show them to who sees all teams. The service only reads it. Without it there are none.
    """

    heavy: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Reports, allocations and waste that are worked out at the same time, 1 to 1,000. Others wait up to five
    seconds for their turn and get a 503 then: memory and connections of the ledger stay bounded.
    """

    max_body_bytes: Annotated[int, Field(ge=0, le=100_000_000)] = 65_536
    """Largest request body, 0 to 100,000,000 bytes; a larger one is answered with 413. The largest that a
    route has a use for is about 13,000 bytes: a note of 1,000 characters, all of them escaped. But
    ``/v1/advisor/advice`` takes manifests of up to 128 KiB, ``/mcp`` messages with one of up to 160 KiB, and
    ``/v1/alerts/alertmanager`` groups of up to 4 MiB, whatever is set here.
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

    metrics_teams: Annotated[int, Field(ge=0, le=100_000)] = 500
    """Most teams with series of their own on /metrics, 0 to 100,000, besides those that team rules or keys
    name: what a pod's label says is its tenant's to choose. The first that came, of several at once those
    that held most; all others are one, ``__other_teams__``, so that sums stay what they are.
    """

    metrics_findings: Annotated[int, Field(ge=0, le=100_000)] = 500
    """Most findings with a series of their own on /metrics, 0 to 100,000: of those that may raise an alert,
    the dearest. ``gpucost_findings`` counts all.
    """

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if self.auth == "off" and not is_loopback(self.host):
            raise wrong(
                "off",
                f"off with a loopback host such as 127.0.0.1; with {self.host} it must be required",
                "auth",
            )
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            missing = "tls_key_file" if self.tls_key_file is None else "tls_cert_file"
            raise wrong(ErrorRemark("missing"), "tls_cert_file and tls_key_file together", missing)
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
