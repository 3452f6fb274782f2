"""Where ``gpucost state`` has its objects from: a cluster, or dumps of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpucost.cli.exits import complain
from gpucost.cluster.ownership import OwnerKeys
from gpucost.domain.errors import InputError, SourceError
from gpucost.domain.time import parse_instant
from gpucost.kube.calls import Refused
from gpucost.kube.collections import Collection, collections
from gpucost.kube.connection import connect, connect_url
from gpucost.kube.dump import Gathering, Loaded, Origin, named, read_dump
from gpucost.kube.events import Object, Unreadable
from gpucost.kube.listing import FORBIDDEN, Listed, Lister
from gpucost.kube.scrub import scrubbed
from gpucost.kube.transport import Transport, TransportError


class Place(NamedTuple):
    """Which cluster, as the options say."""

    kubeconfig: Path | None
    context: str
    url: str


def load(source: str, keys: OwnerKeys, where: Place, at: str, began_ms: int) -> Loaded:
    """The state in ``source`` (a file, a folder, ``-`` for stdin), or of the cluster where that is empty.

    ``at`` is when it is looked at, else when the dump was taken, else ``began_ms``. Raises InputError and
    SourceError.
    """
    every = collections(keys.all)
    gathering = Gathering(every)
    given_ms = parse_instant(at, "--at") if at else None
    if source and any(where):
        raise InputError("--from", source, "none where a cluster is named")
    if source:
        read_dump(sys.stdin.buffer.read() if source == "-" else Path(source), gathering)
    else:
        _gather(gathering, every, keys, where, began_ms)
    return gathering.loaded(began_ms, given_ms)


def _gather(
    gathering: Gathering, every: Iterable[Collection], keys: OwnerKeys, where: Place, at_ms: int
) -> None:
    """From a cluster what a dump of it would hold."""
    annotations = frozenset(keys.all)

    def take(collection: Collection, version: str, item: Object) -> None:
        gathering.add(scrubbed(named(collection, version, item), annotations))

    with connected(where) as transport:
        gathering.note(origin(listed(transport, every, take), at_ms))


@contextmanager
def connected(where: Place) -> Iterator[Transport]:
    """A way to the API server. What goes wrong over it is a SourceError."""
    kubeconfig, context, url = where
    if url and (kubeconfig or context):
        raise InputError("--kubernetes-url", url, "none where --kubeconfig or --context is given")
    with closing(connect_url(url) if url else connect(os.environ, kubeconfig, context)) as transport:
        try:
            yield transport
        except TransportError as error:
            raise SourceError(f"the Kubernetes API: {error}") from error
        except Refused as error:
            raise SourceError(f"the Kubernetes API: {error.status} {error.message}") from error
        except Unreadable as error:
            raise SourceError(
                f"the Kubernetes API: an answer that makes no sense ({error.reason})"
            ) from error


def listed(
    transport: Transport, every: Iterable[Collection], take: Callable[[Collection, str, Object], Any]
) -> Iterator[tuple[Collection, Listed[Any] | None]]:
    """Each collection with what is in it, None where that is forbidden."""
    lister = Lister(transport)
    for collection in every:
        try:
            yield collection, lister.all(collection, partial(take, collection))
        except Refused as refused:
            if refused.status != FORBIDDEN:
                raise
            needed = f"permission missing: list on {collection.name} in every namespace (a ClusterRole)"
            if collection.required:
                raise SourceError(f"the Kubernetes API: {needed}: {refused.message}") from refused
            complain(f"{needed}; left out")
            yield collection, None


def origin(found: Iterable[tuple[Collection, Listed[Any] | None]], at_ms: int) -> Origin:
    """Of what ``listed`` gave."""
    pairs = list(found)
    versions = {collection.name: each.version for collection, each in pairs if each is not None}
    return Origin(at_ms, versions, [collection.name for collection, each in pairs if each is None])
