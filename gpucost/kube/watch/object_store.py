"""Objects by uid, the newest state of each, and what changed. Pure.

Two objects of one name are two objects: a pod deleted and made again is never one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from gpucost.domain.errors import InputError
from gpucost.kube.parse.events import Unreadable, identity, is_stale

T = TypeVar("T")
"""The stored form of an object: a trimmed dict, or the result of a parser. Never changed once it is
stored."""

_REMEMBERED_DELETIONS = 10_000


class ObjectChangeKind(StrEnum):
    """How the store changed."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    VANISHED = "vanished"
    """Deleted without a watch: a later list no longer has it."""


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """``object`` is the state now, or the last one known; ``previous`` the one before, None when ADDED.

    ``seen_ns`` is when the server was last heard before the change counted: for VANISHED the last contact
    before the gap, so that an interval closes there; else the arrival of the event or list.
    """

    kind: ObjectChangeKind
    object: T
    previous: T | None
    seen_ns: int


class StoredObject(NamedTuple, Generic[T]):
    """The stored form of an object."""

    resource_version: str
    object: T


class ObjectStore(Generic[T]):
    """The newest state of every object. One thread writes; a view may be used in any thread.

    ``trim`` converts an object to its stored form; it may raise for an object that is not valid.
    """

    def __init__(self, trim: Callable[[dict[str, Any]], T]) -> None:
        self._trim = trim
        self._objects: dict[str, T] = {}
        self._versions: dict[str, str] = {}
        self._deleted: dict[str, str] = {}
        self._view: Mapping[str, T] | None = None
        self.version = 0

    def __len__(self) -> int:
        return len(self._objects)

    def view(self) -> Mapping[str, T]:
        """All objects by uid, as they are now and stay in this view; the same view until one changes."""
        if self._view is None:
            self._view = MappingProxyType(self._objects.copy())
        return self._view

    def read(self, found: Any) -> tuple[str, StoredObject[T]]:
        """The uid of an object, and its stored form. Raises ``Unreadable``."""
        uid, version = identity(found)
        try:
            return uid, StoredObject(version, self._trim(found))
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError, InputError) as error:
            raise Unreadable("bad_object", uid) from error

    def kept(self, uid: str) -> StoredObject[T] | None:
        """The stored form of an object."""
        return StoredObject(self._versions[uid], self._objects[uid]) if uid in self._objects else None

    def put(self, found: Any, now_ns: int) -> ObjectChange[T] | None:
        """An ADDED or MODIFIED event; None when it has nothing new. Raises ``Unreadable``."""
        uid, kept = self.read(found)
        known = self._versions.get(uid, self._deleted.get(uid, ""))
        if is_stale(kept.resource_version, known):
            return None
        previous = self._objects.get(uid)
        self._deleted.pop(uid, None)
        self._keep(uid, kept)
        kind = ObjectChangeKind.ADDED if previous is None else ObjectChangeKind.MODIFIED
        return ObjectChange(kind, kept.object, previous, now_ns)

    def remove(self, found: Any, now_ns: int) -> ObjectChange[T] | None:
        """A DELETED event, which holds the last state. None when the object was not stored. Raises
        ``Unreadable``."""
        uid, version = identity(found)
        if is_stale(version, self._versions.get(uid, ""), or_same=False):
            return None
        self._remember_deleted(uid, version)
        previous = self._forget(uid)
        if previous is None:
            return None
        return ObjectChange(ObjectChangeKind.DELETED, self._last_state(found, previous), previous, now_ns)

    def replace(
        self, listed: Mapping[str, StoredObject[T]], seen_ns: int, now_ns: int
    ) -> list[ObjectChange[T]]:
        """A complete list, which is authoritative: objects that it lacks have vanished."""
        self._deleted.clear()
        changes = [self._vanish(uid, seen_ns) for uid in tuple(self._objects) if uid not in listed]
        for uid, kept in listed.items():
            previous = self._objects.get(uid)
            if (
                previous is not None
                and kept.resource_version
                and self._versions[uid] == kept.resource_version
            ):
                continue
            kind = ObjectChangeKind.ADDED if previous is None else ObjectChangeKind.MODIFIED
            self._keep(uid, kept)
            changes.append(ObjectChange(kind, kept.object, previous, now_ns))
        return changes

    def _vanish(self, uid: str, seen_ns: int) -> ObjectChange[T]:
        last = self._objects[uid]
        self._forget(uid)
        return ObjectChange(ObjectChangeKind.VANISHED, last, last, seen_ns)

    def _last_state(self, found: Any, previous: T) -> T:
        """A deletion is certain even where the last state cannot be read."""
        try:
            return self.read(found)[1].object
        except Unreadable:
            return previous

    def _keep(self, uid: str, kept: StoredObject[T]) -> None:
        self._objects[uid], self._versions[uid] = kept.object, kept.resource_version
        self._changed()

    def _forget(self, uid: str) -> T | None:
        previous = self._objects.pop(uid, None)
        self._versions.pop(uid, None)
        if previous is not None:
            self._changed()
        return previous

    def _changed(self) -> None:
        self.version += 1
        self._view = None

    def _remember_deleted(self, uid: str, version: str) -> None:
        """Until the next list, so that a late event cannot bring it back."""
        known = self._deleted.pop(uid, "")
        self._deleted[uid] = known if is_stale(version, known) else version
        if len(self._deleted) > _REMEMBERED_DELETIONS:
            del self._deleted[next(iter(self._deleted))]
