"""The tables of what the service keeps beside usage. No cost is computed from them: rows change.

Findings, which describe the present: they change, and their events, which only grow, record how.
Conversations and their deliveries (what was sent to channels, and what is on its way); alert groups as
Alertmanager sent them, until they are processed; API keys (what each may do, never its secret); login
sessions, until a day after they have ended; wait predictions of the last 90 days; which machines nodes are;
and forecasts of month's ends of the last 400 days.
"""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Float, Index, Integer, Text, UniqueConstraint
from sqlalchemy import text as sql
from sqlmodel import Field

from gpucost.ledger.db.tables import (
    LedgerModel,
    big_int,
    row_id,
    table_of,
)

WAITING = "state = 'waiting'"


class NotifyConversation(LedgerModel, table=True):
    """What one channel was sent about one subject. ``changed_ms`` is the last instant at which something was
    sent."""

    __tablename__ = "notify_conversation"
    __table_args__ = (
        CheckConstraint("posted_ms >= 0 AND changed_ms >= posted_ms", name="instants"),
        Index(None, "changed_ms"),
    )
    channel: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    topic: str
    kind: str
    team: str
    version: str
    posted_ms: int = big_int()
    updated_ms: int | None = big_int()
    escalated_ms: int | None = big_int()
    resolved_ms: int | None = big_int()
    reference: str
    changed_ms: int = big_int()


class NotifyPost(LedgerModel, table=True):
    """One delivery on its way, or how it ended: ``ended_ms`` is when it was sent, given up, or replaced by a
    later one about the same subject (superseded). ``since_ms`` is since when it may be tried: its age. An
    ``urgent`` one goes before others, and so does what waits before it in its conversation.
    """

    __tablename__ = "notify_post"
    __table_args__ = (
        CheckConstraint("state IN ('waiting', 'sent', 'dead', 'superseded')", name="state"),
        CheckConstraint("(state = 'waiting') = (ended_ms IS NULL)", name="ended"),
        CheckConstraint("tries >= 0", name="tries"),
        Index(
            "ix_notify_post_waiting",
            "channel",
            "key",
            "id",
            sqlite_where=sql(WAITING),
            postgresql_where=sql(WAITING),
        ),
        Index(None, "ended_ms"),
    )
    id: int | None = row_id()
    channel: str
    key: str
    kind: str
    act: str
    version: str
    message: str = Field(sa_type=Text)
    created_ms: int = big_int()
    since_ms: int = big_int()
    due_ms: int = big_int()
    tries: int = Field(sa_type=Integer)
    urgent: bool
    trouble: str
    state: str
    ended_ms: int | None = big_int()


NOTIFY_CONVERSATION = table_of(NotifyConversation)
NOTIFY_POST = table_of(NotifyPost)


class AlertGroupRow(LedgerModel, table=True):
    """What Alertmanager sent last of one group. ``key`` is the hash of its ``groupKey``, ``size`` the
    characters of ``content``."""

    __tablename__ = "alert_group"
    __table_args__ = (
        CheckConstraint("received_ms >= 0", name="received"),
        Index(None, "received_ms"),
    )
    key: str = Field(primary_key=True)
    content: str = Field(sa_type=Text)
    firing: bool = Field(sa_type=Boolean)
    size: int = big_int()
    received_ms: int = big_int()


ALERT_GROUP = table_of(AlertGroupRow)


class ApiKeyRow(LedgerModel, table=True):
    """An API key. ``teams`` and ``clusters`` are JSON lists, sorted; without ``clusters`` it is for all of
    them.

    A row is never deleted, so that no id is used twice, and but for its revocation and last use it does not
    change (triggers of revision 0007).
    """

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint("created_ms >= 0", name="created"),
        CheckConstraint("(revoked_ms IS NULL) = (revoked_by = '')", name="revoked"),
    )
    id: str = Field(primary_key=True)
    sha256: str
    role: str
    teams: str = Field(sa_type=Text)
    clusters: str | None = Field(sa_type=Text)
    expires_ms: int | None = big_int()
    created_ms: int = big_int()
    created_by: str
    revoked_ms: int | None = big_int()
    revoked_by: str
    last_used_ms: int | None = big_int()
    note: str


API_KEY = table_of(ApiKeyRow)


class LoginSessionRow(LedgerModel, table=True):
    """A login session of a person: the SHA-256 of its token, who logged in and how, never what they may do.
    ``groups`` is a JSON list. Rows go a day after they have ended."""

    __tablename__ = "login_session"
    __table_args__ = (
        CheckConstraint("created_ms >= 0 AND expires_ms > created_ms", name="instants"),
        CheckConstraint("(revoked_ms IS NULL) = (revoked_by = '')", name="revoked"),
        Index(None, "expires_ms"),
    )
    id: str = Field(primary_key=True)
    sha256: str = Field(unique=True)
    method: str
    subject: str
    credential: str
    groups: str = Field(sa_type=Text)
    created_ms: int = big_int()
    expires_ms: int = big_int()
    login_sha256: str = Field(unique=True)
    revoked_ms: int | None = big_int()
    revoked_by: str


LOGIN_SESSION = table_of(LoginSessionRow)


UNDECIDED = "started_ms IS NULL AND gone_ms IS NULL"


class WaitPredictionRow(LedgerModel, table=True):
    """The advisor's first prediction of a workload's wait, and the outcome.

    ``queue`` is its ClusterQueue. Waits count from ``asked_ms``; null where they lie beyond the horizon.
    ``simulated_*`` are those of the simulation alone; ``gpus`` is null in rows that are older than that
    column.
    """

    __tablename__ = "wait_prediction"
    __table_args__ = (
        CheckConstraint("(p50_ms IS NULL OR p50_ms >= 0) AND (p90_ms IS NULL OR p90_ms >= 0)", name="waits"),
        CheckConstraint("horizon_ms >= 0", name="horizon"),
        Index(None, "cluster", "asked_ms"),
        Index(
            "ix_wait_prediction_undecided",
            "cluster",
            "workload_uid",
            sqlite_where=sql(UNDECIDED),
            postgresql_where=sql(UNDECIDED),
        ),
        {"sqlite_with_rowid": False},
    )
    cluster: str = Field(primary_key=True)
    workload_uid: str = Field(primary_key=True)
    namespace: str
    name: str
    queue: str
    team: str
    asked_ms: int = big_int()
    p50_ms: int | None = big_int()
    p90_ms: int | None = big_int()
    horizon_ms: int = big_int()
    started_ms: int | None = big_int()
    gone_ms: int | None = big_int()
    gpus: int | None = big_int()
    p10_ms: int | None = big_int()
    simulated_p10_ms: int | None = big_int()
    simulated_p50_ms: int | None = big_int()
    simulated_p90_ms: int | None = big_int()


WAIT_PREDICTION = table_of(WaitPredictionRow)


class NodeIdentityRow(LedgerModel, table=True):
    """Which machine of a cloud a node was (``spec.providerID``)."""

    __tablename__ = "node_identity"
    __table_args__ = ({"sqlite_with_rowid": False},)
    cluster: str = Field(primary_key=True)
    node: str = Field(primary_key=True)
    provider_id: str = Field(primary_key=True)


NODE_IDENTITY = table_of(NodeIdentityRow)


class KeptForecastRow(LedgerModel, table=True):
    """What a team was expected to have held at the end of a month, as it was said first."""

    __tablename__ = "kept_forecast"
    __table_args__ = (
        CheckConstraint("low_nano <= expected_nano AND expected_nano <= high_nano", name="interval"),
        {"sqlite_with_rowid": False},
    )
    month: str = Field(primary_key=True)
    team: str = Field(primary_key=True)
    as_of_ms: int = big_int(primary_key=True)
    days_left: int = big_int()
    expected_nano: int = big_int()
    low_nano: int = big_int()
    high_nano: int = big_int()


KEPT_FORECAST = table_of(KeptForecastRow)


UNRESOLVED = "state <> 'resolved'"


class FindingRow(LedgerModel, table=True):
    """An episode of an anti-pattern. ``revision`` grows with every change of the row."""

    __tablename__ = "finding"
    __table_args__ = (
        UniqueConstraint("cluster", "fingerprint", "episode"),
        CheckConstraint("state IN ('open', 'acknowledged', 'muted', 'resolved')", name="state"),
        Index(
            "ix_finding_unresolved",
            "cluster",
            "fingerprint",
            unique=True,
            sqlite_where=sql(UNRESOLVED),
            postgresql_where=sql(UNRESOLVED),
        ),
        Index(None, "cluster", "closed_at_ms"),
        Index(None, "team"),
    )
    id: int | None = row_id()
    revision: int = Field(sa_type=Integer)
    fingerprint: str
    episode: int = Field(sa_type=Integer)
    cluster: str
    pattern: str
    variant: str
    subject_kind: str
    subject_name: str
    subject_namespace: str
    subject_uid: str
    team: str
    queue: str
    severity: str
    state: str
    opened_at_ms: int = big_int()
    since_ms: int = big_int()
    last_seen_ms: int = big_int()
    closed_at_ms: int | None = big_int()
    clean_evaluations: int = Field(sa_type=Integer)
    rehearsal: bool
    exempt_until_ms: int | None = big_int()
    muted_until_ms: int | None = big_int()
    acknowledged_by: str | None
    acknowledged_at_ms: int | None = big_int()
    acknowledged_note: str | None
    content: str
    board_ms: int = big_int()
    nano: int | None = big_int()
    counted: bool
    boards_now: float = Field(sa_type=Float(53))


class FindingEventRow(LedgerModel, table=True):
    """Who did what to a finding, when."""

    __tablename__ = "finding_event"
    __table_args__ = (Index(None, "finding_id"),)
    id: int | None = row_id()
    finding_id: int = big_int(foreign_key="finding.id")
    at_ms: int = big_int()
    author: str
    action: str
    detail: str


FINDING = table_of(FindingRow)
FINDING_EVENT = table_of(FindingEventRow)
