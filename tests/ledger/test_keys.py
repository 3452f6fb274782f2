"""API keys in the ledger: issue, revocation, last use, and the store that authenticates by them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from gpucost.access.authenticator import AccessDenied, Authenticator, CheckUnavailable
from gpucost.access.grants import GroupGrants
from gpucost.access.keys import KeyRecord, format_key, hash_secret
from gpucost.access.principal import AccessRole
from gpucost.access.sessions import SessionAuthority
from gpucost.domain.errors import InputError, LedgerUnavailable
from gpucost.domain.scope import EVERYTHING
from gpucost.domain.time import HOUR_MS, MINUTE_MS
from gpucost.ledger.ledger import Ledger
from gpucost.ledger.stores.api_keys import BELIEVED_MS, LedgerKeys
from gpucost.ledger.stores.sessions import MOST_VALID
from tests.ledger.builders import NOW_MS
from tests.ledger.tampering import tamper
from tests.service.worlds import Clock

SECRET = "s3cret_of-ada"
ADA = KeyRecord(
    "ada",
    hash_secret(SECRET),
    AccessRole.VIEWER,
    frozenset({"research", "vision"}),
    frozenset({"north"}),
    expires_ms=NOW_MS + HOUR_MS,
    created_ms=NOW_MS,
    created_by="root",
    note="her notebook",
)
BEARER = format_key("ada", SECRET)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW_MS)


@pytest.fixture
def ledger(ledger_url: str, clock: Clock) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, now=clock) as opened:
        yield opened


def test_a_key_is_kept_as_it_was_made_and_the_trail_says_so(ledger: Ledger) -> None:
    ledger.add_key(ADA)
    everywhere = replace(
        ADA, id="root", role=AccessRole.ADMIN, teams=frozenset(), clusters=None, expires_ms=None
    )
    ledger.add_key(everywhere)
    assert ledger.key("ada") == ADA
    assert ledger.api_keys() == (ADA, everywhere)
    issued = [entry for entry in ledger.audit(EVERYTHING) if entry.action == "key issue"]
    assert [(entry.author, entry.subject, entry.reason) for entry in issued] == [
        ("root", "ada", "her notebook"),
        ("root", "root", "her notebook"),
    ]
    assert 'teams ["research", "vision"]; clusters ["north"]' in issued[0].detail
    assert 'clusters "all"; expires "never"' in issued[1].detail
    assert not any(ADA.sha256 in entry.detail for entry in issued)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "A b"}, "id"),
        ({"id": "a_b"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "loopback"}, "id"),
        ({"teams": frozenset()}, "teams"),
        ({"role": AccessRole.FINANCE}, "teams"),
        ({"teams": frozenset({"x\0"})}, "teams"),
        ({"clusters": frozenset()}, "clusters"),
        ({"expires_ms": NOW_MS}, "expires"),
        ({"note": "x" * 1001}, "note"),
        ({"created_by": ""}, "author"),
    ],
)
def test_what_cannot_be_a_key_is_refused(ledger: Ledger, changes: Mapping[str, object], field: str) -> None:
    with pytest.raises(InputError) as refused:
        ledger.add_key(replace(ADA, **changes))  # type: ignore[arg-type]
    assert refused.value.field == field
    assert (ledger.api_keys(), ledger.audit(EVERYTHING)) == ((), ())


@pytest.mark.fault(49)
def test_an_id_is_given_once_also_after_its_revocation(ledger: Ledger) -> None:
    ledger.add_key(ADA)
    revoked = ledger.revoke_key("ada", "root", "left")
    assert (revoked.revoked_ms, revoked.revoked_by) == (NOW_MS, "root")
    with pytest.raises(InputError, match="an id that no key has or had"):
        ledger.add_key(replace(ADA, sha256=hash_secret("another")))
    assert ledger.revoke_key("ada", "eve") == revoked, "a second time changes nothing"
    with pytest.raises(InputError, match="the id of a key"):
        ledger.revoke_key("nobody", "root")
    told = [(entry.action, entry.author, entry.reason) for entry in ledger.audit(EVERYTHING)]
    assert told == [("key issue", "root", "her notebook"), ("key revocation", "root", "left")]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM api_key",
        "UPDATE api_key SET role = 'admin', teams = '[]'",
        "UPDATE api_key SET expires_ms = NULL",
        "UPDATE api_key SET sha256 = 'x'",
        "UPDATE api_key SET revoked_ms = NULL, revoked_by = ''",
    ],
)
def test_the_database_refuses_what_would_undo_it(ledger: Ledger, ledger_url: str, statement: str) -> None:
    ledger.add_key(ADA)
    ledger.revoke_key("ada", "root")
    engine = create_engine(ledger_url)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="gpucost: a "):
        connection.execute(text(statement))
    engine.dispose()


def test_a_key_in_the_ledger_says_who_asks(ledger: Ledger, clock: Clock) -> None:
    authenticator = Authenticator([LedgerKeys(ledger, clock)], [], clock)
    with pytest.raises(AccessDenied):
        authenticator.authenticate(BEARER)
    ledger.add_key(ADA)
    found = authenticator.authenticate(BEARER)
    assert (found.id, found.role, found.scope.teams) == ("ada", AccessRole.VIEWER, ADA.teams)
    assert found.scope.clusters == frozenset({"north"})
    with pytest.raises(AccessDenied):
        authenticator.authenticate(format_key("ada", "wrong"))


@pytest.mark.fault(49)
def test_expired_and_revoked_keys_are_refused_at_once(ledger: Ledger, clock: Clock) -> None:
    ledger.add_key(ADA)
    ledger.add_key(replace(ADA, id="bob"))
    authenticator = Authenticator([LedgerKeys(ledger, clock)], [], clock)
    assert authenticator.authenticate(format_key("bob", SECRET)).id == "bob"
    ledger.revoke_key("bob", "root")
    with pytest.raises(AccessDenied):
        authenticator.authenticate(format_key("bob", SECRET))
    clock.now_ms = NOW_MS + HOUR_MS - 1
    assert authenticator.authenticate(BEARER).id == "ada"
    clock.now_ms += 1
    with pytest.raises(AccessDenied, match="expired"):
        authenticator.authenticate(BEARER)


@pytest.mark.fault(49)
def test_what_another_process_revokes_or_makes_is_known_within_seconds(
    ledger: Ledger, ledger_url: str, clock: Clock
) -> None:
    ledger.add_key(ADA)
    store = LedgerKeys(ledger, clock)
    assert store.find("ada") is not None
    with Ledger.open(ledger_url, now=clock) as other:
        other.revoke_key("ada", "root")
        other.add_key(replace(ADA, id="new"))
    assert store.find("ada") is not None, "believed for a moment"
    clock.now_ms += 1_000
    assert store.find("new", anew=True) is not None, "an unknown id is looked for again after a second"
    assert store.find("ada") is None
    clock.now_ms += BELIEVED_MS
    assert store.find("ada") is None


class Failing:
    """A ledger that cannot be read or written while it is ``down``."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.down, self.reads = ledger, False, 0

    @property
    def key_changes(self) -> int:
        return self.ledger.key_changes

    def unrevoked_keys(self) -> tuple[KeyRecord, ...]:
        self.reads += 1
        self._check()
        return self.ledger.unrevoked_keys()

    def keys_used(self, uses: Mapping[str, int]) -> None:
        self._check()
        self.ledger.keys_used(uses)

    def _check(self) -> None:
        if self.down:
            raise LedgerUnavailable("connection lost")


def test_a_ledger_that_is_down_leaves_it_open_after_seconds(ledger: Ledger, clock: Clock) -> None:
    ledger.add_key(ADA)
    failing = Failing(ledger)
    store = LedgerKeys(failing, clock)
    failing.down = True
    for _ in range(3):
        with pytest.raises(CheckUnavailable):
            store.find("ada")
    assert failing.reads == 1, "not asked again within a second"
    failing.down = False
    clock.now_ms += 1_000
    assert store.find("ada") is not None
    failing.down = True
    clock.now_ms += BELIEVED_MS - 1
    assert store.find("ada") is not None, "what was read is believed for seconds"
    assert store.find("nobody") is None
    clock.now_ms += 1
    with pytest.raises(CheckUnavailable):
        store.find("ada")
    clock.now_ms += 1_000
    failing.down = False
    assert store.find("ada") is not None


def test_a_flood_of_unknown_ids_reads_once_a_second(ledger: Ledger, clock: Clock) -> None:
    failing = Failing(ledger)
    store = LedgerKeys(failing, clock)
    assert [store.find(f"id-{n}") for n in range(50)] == [None] * 50
    assert failing.reads == 1


def test_the_last_use_is_noted_once_a_minute_and_never_in_the_way(ledger: Ledger, clock: Clock) -> None:
    ledger.add_key(ADA)
    failing = Failing(ledger)
    store = LedgerKeys(failing, clock)

    def after(at_ms: int) -> int | None:
        store.used("ada", at_ms)
        store.settle()
        found = ledger.key("ada")
        assert found is not None
        return found.last_used_ms

    assert after(NOW_MS + 5) == NOW_MS + 5
    assert after(NOW_MS + 5 + MINUTE_MS - 1) == NOW_MS + 5
    assert after(NOW_MS + 5 + MINUTE_MS) == NOW_MS + 5 + MINUTE_MS
    failing.down = True
    assert after(NOW_MS + HOUR_MS) == NOW_MS + 5 + MINUTE_MS
    failing.down = False
    assert after(NOW_MS + 2 * HOUR_MS) == NOW_MS + 2 * HOUR_MS
    ledger.keys_used({"ada": NOW_MS})
    assert after(NOW_MS + 2 * HOUR_MS + 1) == NOW_MS + 2 * HOUR_MS, "an earlier one changes nothing"


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE api_key SET role = 'admin', teams = '[]' WHERE id = 'ada'", 'role "admin".*role "viewer"'),
        (
            "UPDATE api_key SET revoked_ms = NULL, revoked_by = '' WHERE id = 'bob'",
            "has none, the audit trail",
        ),
        ("DELETE FROM api_key WHERE id = 'ada'", "the ledger has none, the audit trail .*by root"),
        ("DELETE FROM audit WHERE action = 'key issue' AND subject = 'ada'", "the audit trail none"),
        ("DELETE FROM audit WHERE action = 'key revocation'", "key revocation: .*the audit trail none"),
        ("UPDATE api_key SET revoked_by = 'eve' WHERE id = 'bob'", "by eve, the audit trail .*by root"),
    ],
)
def test_keys_are_held_against_the_audit_trail(
    ledger: Ledger, ledger_url: str, statement: str, found: str
) -> None:
    ledger.add_key(ADA)
    ledger.add_key(replace(ADA, id="bob", teams=frozenset({"é; x"}), clusters=None, expires_ms=None, note=""))
    ledger.revoke_key("bob", "root", "left")
    assert ledger.verify() == ()
    tamper(ledger_url, statement)
    [finding] = ledger.verify()
    assert finding.month is None
    assert finding.subject == ("key bob" if "bob" in statement or "revocation" in statement else "key ada")
    assert re.search(found, finding.detail), finding.detail


def test_a_key_that_logs_in_again_and_again_leaves_no_long_table(ledger: Ledger, clock: Clock) -> None:
    """Every four minutes for four hours: what is open, and what has ended within the last hour."""
    ledger.add_key(replace(ADA, expires_ms=None))
    keys = Authenticator([LedgerKeys(ledger, clock)], [], clock)
    sessions = SessionAuthority(ledger, keys, GroupGrants(), "", 8 * HOUR_MS, clock)
    for _ in range(60):
        clock.now_ms += 4 * MINUTE_MS
        sessions.begin(sessions.by_key(BEARER))
    found = ledger.sessions()
    assert sum(each.revoked_ms is None for each in found) == MOST_VALID
    assert len(found) == MOST_VALID + 16
    assert ledger.verify() == ()
