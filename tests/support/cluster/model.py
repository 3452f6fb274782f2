"""What an API server remembers: collections in one or more versions, their objects, and what happened.

Nothing here does I/O. Objects are kept as the JSON they were put as, so that they cannot be changed later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]
Convert: TypeAlias = Callable[[Json], Json]
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name."""


class Event(NamedTuple):
    """One line of a watch, before it is written in a version."""

    version: int
    type: str
    object: str


class Kind(NamedTuple):
    """What discovery says of a collection."""

    group: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def name(self) -> str:
        """As kubectl writes it: ``pods``, ``workloads.kueue.x-k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Expired(Exception):
    """What was asked for is no longer remembered."""


@dataclass
class Collection:
    """Objects of one kind. ``served`` are its versions, in the order of discovery, with how each is written.

    ``version`` is the resource version of the last event; what happened up to ``floor`` is forgotten.
    """

    kind: Kind
    served: dict[str, Convert] = field(default_factory=dict)
    objects: dict[Key, str] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    version: int = 0
    floor: int = 0

    def is_named(self, name: str) -> bool:
        """By its full name or its plural; an empty name means every collection."""
        return name in ("", self.kind.plural, self.kind.name)

    def api_version(self, version: str) -> str:
        return f"{self.kind.group}/{version}" if self.kind.group else version

    def written(self, text: str, version: str) -> Json:
        """An object as this version serves it."""
        found = self.served[version](json.loads(text))
        return {**found, "apiVersion": self.api_version(version), "kind": self.kind.kind}

    def within(self, namespace: str) -> list[str]:
        """Objects of a namespace, of all where it is empty; in the order of etcd's keys."""
        return [text for key, text in sorted(self.objects.items()) if not namespace or key[0] == namespace]

    def since(self, version: int) -> list[Event]:
        """What happened after ``version``. Raises ``Expired``."""
        if version < self.floor:
            raise Expired
        return [event for event in self.log if event.version > version]

    def happened(self, type_: str, found: Json) -> Event:
        """Note an event; ``found`` has its resource version already."""
        text = json.dumps(found)
        key = key_of(found)
        self.version = int(found["metadata"]["resourceVersion"])
        if type_ == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = text
        event = Event(self.version, type_, text)
        self.log.append(event)
        return event


class Model:
    """All collections, and the one counter of resource versions that they share, as in etcd."""

    def __init__(self) -> None:
        self.version = 1000
        self.collections: dict[tuple[str, str], Collection] = {}
        self._pages: dict[str, tuple[int, list[str]]] = {}

    def install(self, kind: Kind, version: str, convert: Convert = dict) -> None:
        """Serve ``kind`` in one more version, of the same objects."""
        collection = self.collections.setdefault((kind.group, kind.plural), Collection(kind))
        collection.served[version] = convert

    def uninstall(self, collection: Collection, version: str = "") -> None:
        """Serve it no longer: one version, or with all its objects."""
        if version:
            del collection.served[version]
        else:
            collection.served.clear()
        if not collection.served:
            del self.collections[collection.kind.group, collection.kind.plural]

    def of_object(self, found: Json) -> Collection:
        """The collection an object belongs to, by its apiVersion and kind. Raises ``LookupError``."""
        group, _, _ = found["apiVersion"].rpartition("/")
        for collection in self.collections.values():
            if (collection.kind.group, collection.kind.kind) == (group, found["kind"]):
                return collection
        raise LookupError(f"{found['apiVersion']} {found['kind']} is not installed")

    def put(self, found: Json) -> tuple[Collection, Event | None]:
        """Create or update; None when nothing changes. A new one needs a ``metadata.uid``."""
        collection = self.of_object(found)
        before = collection.objects.get(key_of(found))
        uid = found["metadata"].get("uid")
        if before is None:
            if not uid:
                raise ValueError(f"{key_of(found)} has no uid")
            return collection, collection.happened("ADDED", self._stamped(found))
        known = json.loads(before)
        if uid and uid != known["metadata"]["uid"]:
            raise ValueError(f"{key_of(found)} exists with another uid: delete it first")
        same = {**found, "metadata": {**found["metadata"], **_identity(known)}}
        if same == known:
            return collection, None
        return collection, collection.happened("MODIFIED", self._stamped(same))

    def delete(self, found: Json) -> tuple[Collection, Event]:
        """Remove what has the name of ``found``. Raises ``LookupError``."""
        collection = self.of_object(found)
        last = json.loads(collection.objects[key_of(found)])
        return collection, collection.happened("DELETED", self._stamped(last))

    def _stamped(self, found: Json) -> Json:
        self.version += 1
        return {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}

    def page(
        self, collection: Collection, namespace: str, limit: int, token: str
    ) -> tuple[list[str], int, str, int]:
        """Objects, the version of the list, the token of the next page, and how many are left after it.

        All pages are of the instant of the first. Raises ``Expired`` for a token that is not known.
        """
        if token and token not in self._pages:
            raise Expired
        version, rest = self._pages[token] if token else (self.version, collection.within(namespace))
        if not limit or len(rest) <= limit:
            return rest, version, "", 0
        following = f"page-{len(self._pages)}"
        self._pages[following] = (version, rest[limit:])
        return rest[:limit], version, following, len(rest) - limit

    def compact(self) -> None:
        """Forget what happened until now, and the lists that were being read."""
        self._pages.clear()
        for collection in self.collections.values():
            collection.floor = self.version
            collection.log.clear()

    def named(self, name: str) -> list[Collection]:
        """Those of that name, of that plural, or all of them where it is empty. Raises ``LookupError``."""
        found = [each for each in self.collections.values() if each.is_named(name)]
        if name and not found:
            raise LookupError(f"{name} is not installed")
        return found

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """API groups but the core one, with their versions in the order they were installed."""
        found: dict[str, list[str]] = {}
        for (group, _), collection in self.collections.items():
            versions = found.setdefault(group, [])
            versions += [each for each in collection.served if each not in versions]
        return ((group, versions) for group, versions in found.items() if group)

    def served(self, group: str, version: str) -> list[Collection]:
        """The collections of one group in one version."""
        return [each for (of, _), each in self.collections.items() if of == group and version in each.served]


def key_of(found: Json) -> Key:
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _identity(known: Json) -> Json:
    return {
        name: known["metadata"][name]
        for name in ("uid", "resourceVersion", "creationTimestamp")
        if name in known["metadata"]
    }
