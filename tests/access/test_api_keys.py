"""API keys: when one is good, and that stores are asked for new ones only where none is found."""

from __future__ import annotations

import pytest

from gpucost.access.authenticator import AccessDenied, Authenticator, KeyStore
from gpucost.access.keys import KeyRecord, format_key, hash_secret, matches
from gpucost.access.principal import AccessRole
from tests.service.worlds import NOW_MS

SECRET = "s3cret"
KEY = KeyRecord("k1", hash_secret(SECRET), AccessRole.ADMIN)


class NotedStore:
    """Keys by whether they are found at once or ``anew`` only; who asked for what, and what was used."""

    def __init__(self, known: tuple[KeyRecord, ...] = (), new: tuple[KeyRecord, ...] = ()) -> None:
        self._known = {False: known, True: (*known, *new)}
        self.asked: list[bool] = []
        self.uses: list[tuple[str, int]] = []

    def find(self, key_id: str, *, anew: bool = False) -> KeyRecord | None:
        self.asked.append(anew)
        return next((key for key in self._known[anew] if key.id == key_id), None)

    def used(self, key_id: str, now_ms: int) -> None:
        self.uses.append((key_id, now_ms))


def who(*stores: KeyStore, key_id: str = "k1", secret: str = SECRET) -> str:
    return Authenticator(stores, (), lambda: NOW_MS).authenticate(format_key(key_id, secret)).id


@pytest.mark.fault(49)
@pytest.mark.parametrize(
    ("expires_ms", "revoked_ms", "is_valid"),
    [
        (None, None, True),
        (NOW_MS + 1, None, True),
        (NOW_MS, None, False),
        (None, NOW_MS, False),
        (NOW_MS + 1, NOW_MS, False),
    ],
)
def test_a_key_is_good_until_it_expires_or_is_revoked(
    expires_ms: int | None, revoked_ms: int | None, is_valid: bool
) -> None:
    key = KeyRecord("k1", hash_secret(SECRET), AccessRole.ADMIN, expires_ms=expires_ms, revoked_ms=revoked_ms)
    assert key.is_valid(NOW_MS) is is_valid
    store = NotedStore((key,))
    if is_valid:
        assert who(store) == "k1"
        assert store.uses == [("k1", NOW_MS)]
        return
    with pytest.raises(AccessDenied, match="k1 has expired or was revoked"):
        who(store)
    assert store.uses == []


@pytest.mark.fault(49)
def test_only_the_secret_of_a_key_matches_it() -> None:
    assert matches(SECRET, KEY)
    assert not matches(SECRET + "x", KEY)
    assert not matches(SECRET, None)
    assert not matches("", None)


def test_new_keys_are_looked_for_in_all_stores_only_where_none_fits() -> None:
    first, second = NotedStore((KEY,)), NotedStore()
    assert who(first, second) == "k1"
    assert (first.asked, second.asked) == ([False], [])
    first, second = NotedStore(new=(KEY,)), NotedStore()
    assert who(first, second) == "k1"
    assert (first.asked, second.asked) == ([False, True], [False, True])
    for key_id, secret in (("k1", "wrong"), ("nobody", SECRET)):
        store = NotedStore((KEY,))
        with pytest.raises(AccessDenied, match="no such key"):
            who(store, key_id=key_id, secret=secret)
        assert store.asked == [False, True], "its time says nothing about which ids exist"
        assert store.uses == []


def test_nobody_else_is_asked_about_a_key() -> None:
    nobody = Authenticator((), (), lambda: NOW_MS)
    assert not nobody.must_ask(format_key("k1", SECRET))
    assert not nobody.must_ask("a token of nobody's")
