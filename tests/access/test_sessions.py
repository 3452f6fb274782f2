"""Login sessions: whose they are, what they may do now, and when they end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gpucost.access.authenticator import AccessDenied, Authenticator, CheckUnavailable, FixedKeys, NotGranted
from gpucost.access.grants import AccessGrant, GroupGrants
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole, AuthenticationMethod
from gpucost.access.sessions import LoginProof, SessionAuthority, csrf_token, hash_token
from gpucost.domain.errors import InputError
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import DAY_MS, HOUR_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.retention.backup import back_up, restore
from gpucost.ledger.stores.sessions import MOST_VALID
from tests.access.conftest import GRANTS
from tests.service.worlds import NOW_MS, Clock
from tests.support.ledgers import new_ledger

ISSUER = "https://dex.example"
KEY = KeyRecord("bot", hash_secret("s3cret"), AccessRole.VIEWER, frozenset({"research"}))
MEMBER = ("gpu-research-members",)


class World:
    """A ledger with the sessions, and authorities over it as processes have them."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger, self.clock = ledger, clock

    def authority(
        self, *keys: KeyRecord, grants: GroupGrants = GRANTS, issuer: str = ISSUER
    ) -> SessionAuthority:
        authenticator = Authenticator([FixedKeys(keys or (KEY,))], (), self.clock)
        return SessionAuthority(self.ledger, authenticator, grants, issuer, 8 * HOUR_MS, self.clock)

    def trail(self) -> list[tuple[str, str, str]]:
        """(author, action, reason) of what the audit trail has of sessions."""
        rows = self.ledger.audit(EVERYTHING)
        return [(each.author, each.action, each.reason) for each in rows if "session" in each.action]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = Clock()
    with Ledger.open(new_ledger(tmp_path / "ledger.db"), now=clock) as ledger:
        yield World(ledger, clock)


def ada(state: str = "state", subject: str = "ada") -> LoginProof:
    return LoginProof(AuthenticationMethod.OIDC, subject, ISSUER, state, MEMBER)


def is_in(authority: SessionAuthority, token: str) -> bool:
    try:
        return authority.authenticate(token)[0].sha256 == hash_token(token)
    except AccessDenied:
        return False


def test_a_session_is_its_owners_and_its_token_is_stored_nowhere(world: World, tmp_path: Path) -> None:
    token, record = world.authority().begin(ada())
    found, principal = world.authority().authenticate(token)
    assert found == record
    assert (principal.id, principal.role, principal.method) == (
        "oidc:ada",
        AccessRole.VIEWER,
        AuthenticationMethod.OIDC,
    )
    assert principal.scope.teams == {"research"}
    assert record.owner == principal.id
    assert len({token, csrf_token(token), record.sha256, record.id}) == 4
    assert token not in repr(record)
    for file in tmp_path.iterdir():
        assert token.encode() not in file.read_bytes()
    assert world.trail() == [("oidc:ada", "session login", "")]


def test_a_session_ends_when_its_time_is_over(world: World) -> None:
    authority = world.authority()
    token, record = authority.begin(ada())
    assert record.expires_ms == NOW_MS + 8 * HOUR_MS
    world.clock.now_ms = record.expires_ms - 1
    assert is_in(authority, token)
    world.clock.now_ms = record.expires_ms
    assert not is_in(authority, token)
    assert world.ledger.sessions() == ()


def test_a_session_of_a_key_ends_with_the_key(world: World) -> None:
    short = replace(KEY, expires_ms=NOW_MS + HOUR_MS)
    token, record = world.authority(short).begin(world.authority(short).by_key(format_key("bot", "s3cret")))
    assert (record.expires_ms, record.owner) == (NOW_MS + HOUR_MS, "bot")
    assert is_in(world.authority(short), token)
    for changed in (
        replace(KEY, revoked_ms=NOW_MS),
        replace(KEY, expires_ms=NOW_MS),
        replace(KEY, sha256=hash_secret("another")),
        replace(KEY, id="other"),
    ):
        assert not is_in(world.authority(changed), token), changed
    wider = replace(KEY, role=AccessRole.FINANCE, teams=frozenset())
    assert world.authority(wider).authenticate(token)[1].role is AccessRole.FINANCE


@pytest.mark.parametrize(
    "wrong", ["", "gpc_bot_wrong", "gpc_bot", "eyJhbGciOi.a.b", "bot", "gpc_b\u00f6t_s3cret"]
)
def test_what_is_no_key_begins_nothing(wrong: str, world: World) -> None:
    with pytest.raises(AccessDenied):
        world.authority().by_key(wrong)


def test_the_rights_are_those_of_the_grants_now(world: World) -> None:
    token, _ = world.authority().begin(ada())
    raised = GroupGrants((AccessGrant(users=("ada",), role=AccessRole.FINANCE),))
    assert world.authority(grants=raised).authenticate(token)[1].role is AccessRole.FINANCE
    with pytest.raises(NotGranted):
        world.authority(grants=GroupGrants()).authenticate(token)
    with pytest.raises(AccessDenied, match="do not name"):
        world.authority(issuer="https://other.example").authenticate(token)
    with pytest.raises(AccessDenied, match="do not name"):
        world.authority(issuer="").authenticate(token)


def test_a_login_is_accepted_once_even_by_another_process(world: World) -> None:
    token, _ = world.authority().begin(ada("one"))
    with pytest.raises(AccessDenied, match="before"):
        world.authority().begin(ada("one"))
    world.authority().end(token)
    world.clock.now_ms += HOUR_MS
    with pytest.raises(AccessDenied, match="before"):
        world.authority().begin(ada("one"))
    assert is_in(world.authority(), world.authority().begin(ada("two"))[0])


def test_a_login_ends_the_session_that_the_browser_had(world: World) -> None:
    authority = world.authority()
    before, _ = authority.begin(ada("one"))
    other, _ = authority.begin(ada("other"))
    after, _ = authority.begin(ada("two"), before)
    assert [is_in(authority, each) for each in (before, other, after)] == [False, True, True]
    planted = "planted-by-somebody-else"
    token, _ = authority.begin(ada("three"), planted)
    assert token != planted
    assert not is_in(authority, planted)
    assert ("oidc:ada", "session end", "logged in anew") in world.trail()


def test_a_log_out_counts_in_every_process_at_once(world: World) -> None:
    here, there = world.authority(), world.authority()
    token, record = here.begin(ada())
    there.end(token)
    assert not is_in(here, token)
    there.end(token)
    there.end("of nobody")
    assert world.trail() == [("oidc:ada", "session login", ""), ("oidc:ada", "session end", "logged out")]
    assert world.ledger.end_session(record.id, "root", "again") == world.ledger.session(record.sha256)
    assert world.ledger.end_session("none", "root") is None
    with pytest.raises(InputError, match="reason"):
        world.ledger.end_session(record.id, "root", "x" * 1_001)
    assert world.ledger.verify() == ()


@pytest.mark.parametrize(
    "token", ["", "x", "x" * 42, "x" * 43, "x" * 44, "x" * 43 + "\n", "\0", "\udcff", "ä"]
)
def test_a_token_of_no_session_is_refused(token: str, world: World) -> None:
    world.authority().begin(ada())
    with pytest.raises(AccessDenied):
        world.authority().authenticate(token)


def test_one_owner_has_so_many_sessions_at_a_time_and_old_rows_go(world: World) -> None:
    authority, tokens = world.authority(), []
    for number in range(MOST_VALID + 1):
        world.clock.now_ms += 1
        tokens.append(authority.begin(ada(f"state {number}"))[0])
    assert [is_in(authority, each) for each in tokens] == [False, *[True] * MOST_VALID]
    bob, _ = authority.begin(ada("of bob", "bob"))
    assert is_in(authority, bob)
    assert is_in(authority, tokens[1])
    world.clock.now_ms += 2 * DAY_MS
    authority.begin(ada("later"))
    assert [each.owner for each in world.ledger.sessions()] == ["oidc:ada"]
    assert world.ledger.session(hash_token(bob)) is None
    assert world.ledger.verify() == ()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE login_session SET revoked_ms = NULL, revoked_by = ''",
        "UPDATE login_session SET revoked_by = 'nobody'",
        "UPDATE login_session SET created_ms = created_ms - 1",
    ],
)
def test_a_session_that_was_opened_again_past_the_ledger_is_found(
    change: str, world: World, tmp_path: Path
) -> None:
    token, record = world.authority().begin(ada())
    world.authority().end(token)
    assert world.ledger.verify() == ()
    engine = create_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    with engine.begin() as connection:
        assert connection.execute(text(change)).rowcount == 1
    engine.dispose()
    assert [each.subject for each in world.ledger.verify()] == [f"session {record.id}"]


def test_nobody_is_logged_in_to_a_restored_ledger(world: World, tmp_path: Path) -> None:
    token, _ = world.authority().begin(ada())
    back_up(tmp_path / "ledger.db", tmp_path / "backup.db", 1_000)
    restore(tmp_path / "backup.db", tmp_path / "restored.db", 1_000)
    with Ledger.open(f"sqlite:///{tmp_path / 'restored.db'}", now=world.clock) as restored:
        assert restored.session(hash_token(token)) is None
        assert restored.verify() == ()
    assert is_in(world.authority(), token)


def test_without_the_ledger_nobody_is_let_in_and_nobody_is_said_to_be_unknown(
    world: World, tmp_path: Path
) -> None:
    token, _ = world.authority().begin(ada())
    engine = create_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE login_session"))
    engine.dispose()
    with pytest.raises(CheckUnavailable, match="holds the sessions"):
        world.authority().authenticate(token)
    with pytest.raises(CheckUnavailable, match="holds the sessions"):
        world.authority().begin(ada("two"))
    for other in ("x", "x" * 42, "x" * 44, "+" * 43):
        with pytest.raises(AccessDenied):  # no session was given it: the ledger is not asked
            world.authority().authenticate(other)
