"""What the Secret holds, and what follows from it. Pure.

``tls.crt`` and ``tls.key`` are the newest certificate; ``ca.crt`` is the ``caBundle``: its authority, then
all that another replica may still show. While not every API server may know the newest authority yet,
``previous.crt`` and ``previous.key`` are there for a replica that starts.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpucost.kube.certificates.pair import (
    Facts,
    Pair,
    Unusable,
    authorities_in,
    bundle_of,
    facts_of,
    make_pair,
)

MINUTE_MS = 60_000
TRUSTED_SINCE = "gpucost.io/authority-trusted-since-ms"
"""Annotation of the Secret: since when the webhook's configuration has had the newest authority."""

_MANY_NAMES = 16
_MANY_AUTHORITIES = 8
_FILES = ("tls.crt", "tls.key", "ca.crt", "previous.crt", "previous.key")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be kept, and how. A changed configuration counts as known to every API server after
    ``spreads_ms``; who was replaced is trusted for ``overlap_ms`` more, while replicas look once in a while.
    """

    names: frozenset[str]
    lifetime_ms: int
    renew_before_ms: int
    spreads_ms: int = 2 * MINUTE_MS
    overlap_ms: int = 60 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of the Secret. ``authorities`` is what the API server shall trust, the newest's first."""

    newest: Pair
    authorities: tuple[str, ...]
    previous: Pair | None = None
    trusted_since_ms: int | None = None

    @property
    def bundle(self) -> str:
        return bundle_of(self.authorities)

    def data(self) -> dict[str, str]:
        """As ``data`` of a Secret."""
        texts = {"tls.crt": self.newest.certificate, "tls.key": self.newest.key, "ca.crt": self.bundle}
        if self.previous is not None:
            texts |= {"previous.crt": self.previous.certificate, "previous.key": self.previous.key}
        return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}

    def annotations(self) -> dict[str, str | None]:
        """None for one that is not to be there."""
        return {TRUSTED_SINCE: None if self.trusted_since_ms is None else str(self.trusted_since_ms)}


def kept_in(secret: Mapping[str, Any], now_ms: int) -> Kept:
    """What ``secret`` holds. Raises Unusable where the newest certificate cannot be used now."""
    texts = {name: _text(secret, name) for name in _FILES}
    authorities = authorities_in(texts["ca.crt"], now_ms)
    newest = _signed(texts["tls.crt"], texts["tls.key"], authorities, now_ms)
    if newest is None:
        facts_of(Pair(texts["tls.crt"], texts["tls.key"], next(iter(authorities), "")), now_ms)
        raise Unusable("its authority is not in ca.crt")
    previous = _signed(texts["previous.crt"], texts["previous.key"], authorities, now_ms)
    others = tuple(each for each in authorities if each != newest.authority)
    annotations = secret.get("metadata", {}).get("annotations") or {}
    since = str(annotations.get(TRUSTED_SINCE, ""))
    # A time to come is a mistake, or a clock that was set back: the wait begins anew.
    since_ms = int(since) if since.isascii() and since.isdigit() and int(since) <= now_ms else None
    return Kept(newest, (newest.authority, *others), previous, since_ms)


def is_due(kept: Kept, wanted: Wanted, now_ms: int) -> bool:
    """Whether a new certificate is to be made. More names than wanted are well: replicas with other settings
    would take turns."""
    facts = facts_of(kept.newest, now_ms)
    return now_ms >= facts.ends_ms - wanted.renew_before_ms or not wanted.names <= facts.names


def renewed(kept: Kept | None, trusted: str, wanted: Wanted, now_ms: int) -> Kept:
    """A new certificate beside what is there. ``trusted`` is the bundle in the webhook's configuration: what
    is in it may still be shown by somebody."""
    names = wanted.names
    if kept is not None:
        found = facts_of(kept.newest, now_ms).names
        if not wanted.names <= found and len(wanted.names | found) <= _MANY_NAMES:
            names = wanted.names | found
    newest = make_pair(names, now_ms, wanted.lifetime_ms)
    before = () if kept is None else kept.authorities
    authorities = dict.fromkeys((newest.authority, *before, *authorities_in(trusted, now_ms)))
    previous = None if kept is None else kept.newest
    return Kept(newest, tuple(authorities)[:_MANY_AUTHORITIES], previous)


def settled(kept: Kept, wanted: Wanted, now_ms: int) -> Kept:
    """``kept`` without what nobody shows any more."""
    if (
        kept.trusted_since_ms is None
        or now_ms < kept.trusted_since_ms + wanted.spreads_ms + wanted.overlap_ms
    ):
        return kept
    return replace(kept, authorities=(kept.newest.authority,), previous=None)


def to_show(kept: Kept, held: Pair | None, wanted: Wanted, now_ms: int) -> Pair:
    """The certificate to show now: the newest once every API server knows its authority; until then what was
    shown before, if it can be."""
    if kept.trusted_since_ms is not None and now_ms >= kept.trusted_since_ms + wanted.spreads_ms:
        return kept.newest
    for each in (held, kept.previous):
        if each is not None and _usable(each, now_ms) is not None:
            return each
    return kept.newest


def _signed(certificate: str, key: str, authorities: tuple[str, ...], now_ms: int) -> Pair | None:
    """With the one of ``authorities`` that signed it; None where none did, or it cannot be used."""
    pairs = (Pair(certificate, key, each) for each in authorities)
    return next((each for each in pairs if _usable(each, now_ms) is not None), None)


def _usable(pair: Pair, now_ms: int) -> Facts | None:
    try:
        return facts_of(pair, now_ms)
    except Unusable:
        return None


def _text(secret: Mapping[str, Any], name: str) -> str:
    data = secret.get("data")
    found = data.get(name) if isinstance(data, Mapping) else None
    try:
        return base64.b64decode(found, validate=True).decode() if isinstance(found, str) else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""
