"""Sources of ``gpucost state``: a cluster, or dumps of one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpucost.cli.terminal.exit_codes import complain, fields_as
from gpucost.cluster.objects.metadata import OwnerKeys
from gpucost.cluster.objects.state import CollectionStatus
from gpucost.domain.errors import ErrorRemark, InputError, SourceError
from gpucost.domain.time import parse_instant
from gpucost.kube.connect.transport import KubeTransport, TransportError
from gpucost.kube.dumps.dump import FORBIDDEN as NOT_ALLOWED
from gpucost.kube.dumps.dump import ClusterStateBuilder, DumpContent, DumpOrigin, named, read_dump
from gpucost.kube.dumps.scrub import scrubbed
from gpucost.kube.parse.collections import ApiCollection, collections
from gpucost.kube.parse.events import Object, Unreadable
from gpucost.kube.watch.api_calls import FORBIDDEN, ApiServerRefusal, CollectionList, CollectionLister
from gpucost.kube.watch.scheduler_reader import config_maps, deployments

UNAUTHORIZED = 401


class ClusterLocation(NamedTuple):
    """The cluster that the options name."""

    kubeconfig: Path | None
    context: str
    url: str


def load(source: str, keys: OwnerKeys, where: ClusterLocation, at: str, began_ms: int) -> DumpContent:
    """The state in ``source`` (a file, a folder, ``-`` for stdin), or of the cluster where that is empty.

    The state is as of ``at``, else of when the dump was taken, else of ``began_ms``. Raises InputError and
    SourceError.
    """
    every = collections(keys.all)
    gathering = ClusterStateBuilder(every)
    given_ms = parse_instant(at, "--at") if at else None
    if source and any(where):
        raise InputError("--from", source, "none where a cluster is named")
    if source:
        read_dump(sys.stdin.buffer if source == "-" else Path(source), gathering)
        return _something(source, gathering.loaded(began_ms, given_ms))
    found = _gather(gathering, every, keys, where, began_ms)
    loaded = gathering.loaded(began_ms, given_ms)
    return replace(loaded, state=replace(loaded.state, collections=_as_listed(loaded, found)))


def _something(source: str, loaded: DumpContent) -> DumpContent:
    """The dump, if it holds any object that gpucost reads."""
    if not loaded.state.collections:
        counts = ", ".join(f"{count:,} {what}" for what, count in loaded.left_out.items())
        remark = ErrorRemark(f"nothing in it that gpucost reads ({counts or 'no objects'})")
        allowed = "what gpucost state dump or kubectl get … -A -o json writes"
        raise InputError("standard input" if source == "-" else source, remark, allowed)
    return loaded


def _as_listed(loaded: DumpContent, found: DumpOrigin) -> dict[str, CollectionStatus]:
    """Without collections that failed half-way: only some of their objects are there."""
    statuses = {name: status for name, status in loaded.state.collections.items() if name in found.versions}
    refused = CollectionStatus("", synced=False, problem=NOT_ALLOWED, seen_ms=found.at_ms)
    return dict(sorted({**statuses, **dict.fromkeys(found.forbidden, refused)}.items()))


def _gather(
    gathering: ClusterStateBuilder,
    every: Iterable[ApiCollection],
    keys: OwnerKeys,
    where: ClusterLocation,
    at_ms: int,
) -> DumpOrigin:
    """The objects of a cluster that a dump of it would hold."""
    annotations = frozenset(keys.all)

    def take(collection: ApiCollection, version: str, item: Object) -> None:
        gathering.add(scrubbed(named(collection, version, item), annotations))

    with connected(where) as transport:
        found = origin(listed(transport, every, take), at_ms)
        for item in scheduler_configurations(transport):
            gathering.add(scrubbed(item, annotations))
    gathering.note(found)
    return found


@contextmanager
def connected(where: ClusterLocation) -> Iterator[KubeTransport]:
    """A transport to the API server. Errors on it are a SourceError that names the server."""
    # Imported here, since a dump needs no connection to a cluster.
    from gpucost.kube.connect.connection import connect, connect_url

    kubeconfig, context, url = where
    if url and (kubeconfig or context):
        raise InputError("--kubernetes-url", url, "none where --kubeconfig or --context is given")
    with fields_as({"url": "--kubernetes-url"} if url else {}):
        opened = connect_url(url) if url else connect(os.environ, kubeconfig, context)
    with closing(opened) as transport:
        try:
            yield transport
        except _Failed as error:
            raise SourceError(f"the Kubernetes API{_which(where)}: {error}") from error.__cause__


class _Failed(Exception):
    """A collection failed that screen and dump require."""


def _which(where: ClusterLocation) -> str:
    """The server, as far as the options name it."""
    if where.url:
        return f" at {where.url}"
    named = f" of context {where.context}" if where.context else ""
    return f"{named} ({where.kubeconfig})" if where.kubeconfig else named


def listed(
    transport: KubeTransport,
    every: Iterable[ApiCollection],
    take: Callable[[ApiCollection, str, Object], Any],
) -> Iterator[tuple[ApiCollection, CollectionList[Any] | None]]:
    """Each collection with its objects, None where listing it is forbidden. One that fails is left out, and
    named on stderr. Raises for required ones, and where the server does not answer at all."""
    lister = CollectionLister(transport)
    for collection in every:
        try:
            found = lister.all(collection, partial(take, collection))
        except (ApiServerRefusal, TransportError, Unreadable) as error:
            is_forbidden = isinstance(error, ApiServerRefusal) and error.status == FORBIDDEN
            said = _said(collection, error)
            if collection.required or _is_hopeless(error):
                raise _Failed(said + _HOW_ELSE if is_forbidden else said) from error
            complain(f"{said}; left out")
            if is_forbidden:
                yield collection, None
            continue
        if collection.required and not found.version:
            raise _Failed(f"{collection.name} are not served there (404); is it the API of a cluster?")
        yield collection, found


def scheduler_configurations(transport: KubeTransport, with_deployments: bool = False) -> Iterator[Object]:
    """The ConfigMaps of Kueue and Volcano, under their usual names, and on demand their Deployments, which
    are among the jobs that a state has anyhow. Without them answers assume defaults, so errors are only
    reported on stderr."""
    try:
        yield from config_maps(transport)
        if with_deployments:
            yield from deployments(transport)
    except (ApiServerRefusal, TransportError) as error:
        said = f"{error.status} {error.message}" if isinstance(error, ApiServerRefusal) else str(error)
        complain(f"configurations of the schedulers: {said}; left out")


_HOW_ELSE = "; ask for that, or ask for a `gpucost state dump` of somebody who has it"


def _is_hopeless(error: ApiServerRefusal | TransportError | Unreadable) -> bool:
    """Whether other collections would fail too."""
    if isinstance(error, TransportError):
        return error.reason in ("unreachable", "tls", "silent", "token")
    return isinstance(error, ApiServerRefusal) and error.status == UNAUTHORIZED


def _said(collection: ApiCollection, error: ApiServerRefusal | TransportError | Unreadable) -> str:
    if isinstance(error, TransportError):
        return f"{collection.name}: {error}"
    if isinstance(error, Unreadable):
        return f"{collection.name}: an answer that makes no sense ({error.reason})"
    if error.status == FORBIDDEN:
        missing = f"permission missing: list on {collection.name} in every namespace (a ClusterRole)"
        return f"{missing}: {error.message}" if collection.required else missing
    return f"{collection.name}: {error.status} {error.message}"


def origin(found: Iterable[tuple[ApiCollection, CollectionList[Any] | None]], at_ms: int) -> DumpOrigin:
    """The origin of the result of ``listed``."""
    pairs = list(found)
    versions = {collection.name: each.version for collection, each in pairs if each is not None}
    return DumpOrigin(at_ms, versions, [collection.name for collection, each in pairs if each is None])
