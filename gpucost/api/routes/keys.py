"""GET /v1/me, and API keys: list, make, revoke."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, FailFast, Field
from pydantic.json_schema import SkipJsonSchema

from gpucost.access.keys import KEY_ID, KeyRecord, format_key, hash_secret, new_secret
from gpucost.access.principal import AccessRole, AuthenticationMethod, Principal
from gpucost.api.routes import requests
from gpucost.api.routes.requests import (
    RequestBody,
    TimeText,
    Words,
    refuse_unknown_parameters,
    require_json,
)
from gpucost.api.server.authentication import Keeper, authenticate
from gpucost.api.server.errors import not_found, responses
from gpucost.api.server.services import ApiServices, KnownServices
from gpucost.domain.errors import ErrorRemark, InputError
from gpucost.domain.time import DAY_MS, iso, parse_day_or_instant
from gpucost.ledger.stores.api_keys import MOST_NAMES

router = APIRouter(dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters)])
changes = APIRouter(
    dependencies=[Depends(authenticate), Depends(refuse_unknown_parameters), Depends(require_json)]
)

_ID = f"^{KEY_ID.pattern}$"
_LONGEST_NAME = 253
LONGEST_FOR_TOKENS_MS = 90 * DAY_MS
"""A token expires within hours, and its grant may be withdrawn: a key made with it would outlive both."""
KeyId = Annotated[str, Path(max_length=_LONGEST_NAME, description="id of a key in the ledger")]
Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
_Role = Literal["viewer", "team-admin", "finance", "admin", "metrics", "alerts"]


class Me(BaseModel):
    """Who asks."""

    id: str = Field(description="of a key, or the name that a token gives")
    role: str
    teams: list[str] | None = Field(description="null for a role that is not bound to teams")
    clusters: list[str] | None = Field(description="null is every cluster")
    method: str = Field(description="key, oidc, kubernetes, or off where nobody is asked")


class KeyRow(BaseModel):
    """A key, without its secret, which nobody has."""

    id: str
    role: str
    teams: list[str] | None = Field(description="null for a role that is not bound to teams")
    clusters: list[str] | None = Field(description="null is every cluster")
    state: str = Field(description="valid, expired or revoked")
    expires: str | None = Field(description="the instant from which it is refused")
    created_at: str
    created_by: str
    revoked_at: str | None
    revoked_by: str | None
    last_used: str | None = Field(description="exact to a minute")
    note: str


class RevokedKey(KeyRow):
    """A key that is refused from now on. The keys that it made are not."""

    made: list[str] = Field(
        description="valid keys that were made in its name and that the caller keeps: revoke them as well"
    )


class KeyList(BaseModel):
    """Keys of the ledger; those of the settings are in the settings."""

    keys: list[KeyRow]


class NewKey(BaseModel):
    """``key`` is told this once."""

    key: str = Field(description="gpc_<id>_<secret>, for the header Authorization: Bearer")
    made: KeyRow


class KeyBody(RequestBody):
    """A key to make."""

    id: Annotated[str, Field(pattern=_ID, description="1 to 32 of a-z, 0-9 and dashes; appears in logs")]
    role: _Role = "viewer"
    teams: Annotated[
        tuple[Name, ...],
        FailFast(),
        Field(max_length=MOST_NAMES, description="of a viewer or team-admin"),
    ] = ()
    clusters: Annotated[
        tuple[Name, ...],
        FailFast(),
        Field(max_length=MOST_NAMES, description="clusters that may be seen; none: as its maker"),
    ] = ()
    expires: Annotated[
        TimeText | SkipJsonSchema[None],
        Field(description="a day (midnight UTC) or an instant in RFC 3339 from which it is refused"),
    ] = None
    note: Annotated[Words, Field(description="what it is for; at most 1,000 characters")] = ""


class RevokeBody(RequestBody):
    """Why."""

    reason: Annotated[Words, Field(description="why; at most 1,000 characters")] = ""


@router.get("/v1/me", responses=responses(400, 401, 503))
def me(principal: Annotated[Principal, Depends(authenticate)]) -> Me:
    """Who the caller is, and what it may see."""
    scope = principal.scope
    return Me(
        id=principal.id,
        role=principal.role,
        teams=_sorted(scope.teams),
        clusters=_sorted(scope.clusters),
        method=principal.method,
    )


@router.get("/v1/keys", responses=responses(400, 401, 403, 503))
def get_keys(principal: Keeper, known: KnownServices) -> KeyList:
    """The keys that the caller keeps, newest first: an admin all, a team-admin those of its viewers."""
    now_ms = known.now()
    return KeyList(keys=[row(key, now_ms) for key in known.ledger.api_keys() if _keeps(principal, key)])


def _change(body: type[RequestBody]) -> dict[str, Any]:
    return {"openapi_extra": requests.described(body)}


@changes.post(
    "/v1/keys",
    status_code=201,
    responses=responses(400, 401, 403, 413, 415, 422, 503),
    **_change(KeyBody),
)
def add_key(
    principal: Keeper, known: KnownServices, body: Annotated[KeyBody, Depends(requests.read(KeyBody))]
) -> NewKey:
    """Make a key, which is told once. It never grants more than its maker has."""
    secret, now_ms = new_secret(), known.now()
    made = KeyRecord(
        body.id,
        hash_secret(secret),
        AccessRole(body.role),
        frozenset(body.teams),
        _clusters(principal, body.clusters),
        _expires(known, principal, body.expires),
        created_ms=now_ms,
        created_by=principal.id,
        note=body.note,
    )
    _refuse_more(principal, made)
    if body.id in {key.id for key in known.settings.keys}:
        raise InputError("id", body.id, "an id that no key has: the settings have one of this name")
    known.ledger.add_key(made)
    return NewKey(key=format_key(body.id, secret), made=row(made, now_ms))


@changes.post(
    "/v1/keys/{id}/revoke",
    responses=responses(400, 401, 403, 404, 413, 415, 422, 503),
    **_change(RevokeBody),
)
def revoke_key(
    principal: Keeper,
    known: KnownServices,
    id: KeyId,
    body: Annotated[RevokeBody, Depends(requests.read(RevokeBody))],
) -> RevokedKey:
    """Refuse a key from now on, for good. A key that the caller does not keep is not found."""
    # All of them are read, as for the list: to look for one would take longer where it is another's.
    if id not in {key.id for key in known.ledger.api_keys() if _keeps(principal, key)}:
        raise not_found("id", id, "no such key", "the id of a key that you keep")
    revoked, now_ms = known.ledger.revoke_key(id, principal.id, body.reason), known.now()
    made = [key.id for key in known.ledger.valid_keys_of(id, now_ms) if _keeps(principal, key)]
    return RevokedKey(**row(revoked, now_ms).model_dump(), made=made)


def row(key: KeyRecord, now_ms: int) -> KeyRow:
    """A key as it is shown."""
    return KeyRow(
        id=key.id,
        role=key.role,
        teams=sorted(key.teams) if key.role.has_teams else None,
        clusters=_sorted(key.clusters),
        state="revoked" if key.revoked_ms is not None else "valid" if key.is_valid(now_ms) else "expired",
        expires=_instant(key.expires_ms),
        created_at=iso(key.created_ms or 0),
        created_by=key.created_by,
        revoked_at=_instant(key.revoked_ms),
        revoked_by=key.revoked_by or None,
        last_used=_instant(key.last_used_ms),
        note=key.note,
    )


def _keeps(principal: Principal, key: KeyRecord) -> bool:
    """Whether the principal may see and revoke a key: one that grants nothing beyond the principal's own
    rights."""
    own, granted = principal.scope, key.principal.scope
    if own.clusters is not None and (granted.clusters is None or not granted.clusters <= own.clusters):
        return False
    if principal.role is AccessRole.ADMIN:
        return True
    if own.teams is None or granted.teams is None:
        return False
    return key.role is AccessRole.VIEWER and granted.teams <= own.teams


def _refuse_more(principal: Principal, key: KeyRecord) -> None:
    """Raises InputError for a key that would grant more than its maker has."""
    own = principal.scope
    if own.clusters is not None and key.clusters is not None and not key.clusters <= own.clusters:
        raise InputError("clusters", ", ".join(sorted(key.clusters)), _some_of(own.clusters))
    if principal.role is AccessRole.ADMIN:
        return
    if key.role is not AccessRole.VIEWER:
        raise InputError("role", str(key.role), f"viewer: you are {principal.role}")
    if own.teams is not None and not key.teams <= own.teams:
        raise InputError("teams", ", ".join(sorted(key.teams)), _some_of(own.teams))


def _clusters(principal: Principal, asked: tuple[str, ...]) -> frozenset[str] | None:
    return frozenset(asked) or principal.scope.clusters


def _expires(known: ApiServices, principal: Principal, text: str | None) -> int | None:
    """When the new key expires: not after its maker's own key does."""
    asked = None if text is None else parse_day_or_instant(text, "expires")
    most, why = _latest_expiry(known, principal)
    if most is None or (asked is not None and asked <= most):
        return asked
    raise InputError(
        "expires", ErrorRemark("missing") if text is None else text, f"at most {iso(most)}, {why}"
    )


def _latest_expiry(known: ApiServices, principal: Principal) -> tuple[int | None, str]:
    """The bound, None for none, and its origin."""
    if principal.method in (AuthenticationMethod.OIDC, AuthenticationMethod.KUBERNETES):
        days = LONGEST_FOR_TOKENS_MS // DAY_MS
        return known.now() + LONGEST_FOR_TOKENS_MS, f"{days} days ahead: you ask with a token"
    if principal.method is AuthenticationMethod.OFF:
        return None, ""
    for key in known.settings.keys:
        if key.id == principal.id:
            return key.expires, "as your key"
    found = known.ledger.key(principal.id)
    return None if found is None else found.expires_ms, "as your key"


def _some_of(names: frozenset[str]) -> str:
    return f"some of yours: {', '.join(sorted(names))}"


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _instant(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)
