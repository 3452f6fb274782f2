"""The configuration of a cluster's schedulers: from objects that are given, or read from the API server.

Only objects of known names are requested, never all ConfigMaps. Where they may not be read (403), or Kueue or
Volcano is not installed (404), their defaults are used, marked as not read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gpucost.cluster.objects.scheduler_config import (
    NAMES,
    KueueConfig,
    SchedulerConfigs,
    SchedulerNames,
    VolcanoConfig,
)
from gpucost.kube.connect.transport import KubeTransport, TransportError
from gpucost.kube.parse.events import Object
from gpucost.kube.parse.scheduler_configs import (
    KUEUE_KEY,
    NOT_DEPLOYED,
    VOLCANO_KEY,
    SchedulerDeployment,
    config_text,
    deployed,
    is_kueue_manager,
    is_volcano_scheduler,
    kueue_config,
    kueue_text,
    name_of,
    volcano_config,
)
from gpucost.kube.watch.api_calls import (
    FORBIDDEN,
    NOT_FOUND,
    ApiServerRefusal,
    ListWatchCalls,
)

C = TypeVar("C", KueueConfig, VolcanoConfig)
T = TypeVar("T")
Name = tuple[str, str]
AssumedConfigs: TypeAlias = Callable[[SchedulerConfigs], SchedulerConfigs]

AGAIN_S = 300.0
"""The time after which the configuration is read again."""

_AFTER_FAILURE_S = 30.0
_TIMEOUT_S = 10.0
_CONFIG_MAPS = "/api/v1/namespaces/{}/configmaps/{}"
_DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments/{}"


class SchedulerConfigBuilder:
    """Configurations from objects given one by one, recognised by their content; nothing of other objects is
    kept.

    Where several of a kind exist, the one with the usual name counts, else the first by namespace and name.
    """

    def __init__(self, names: SchedulerNames = NAMES) -> None:
        self._names = names
        self._kueue: dict[Name, str] = {}
        self._volcano: dict[Name, str] = {}
        self._managers: dict[Name, SchedulerDeployment] = {}
        self._schedulers: dict[Name, SchedulerDeployment] = {}

    def add(self, item: Object) -> bool:
        """Take one object, of any kind; returns whether it is one of these."""
        match item.get("apiVersion"), item.get("kind"):
            case "v1", "ConfigMap":
                texts = [(self._kueue, kueue_text(item)), (self._volcano, config_text(item, VOLCANO_KEY))]
                for into, text in texts:
                    if text is not None:
                        into[name_of(item)] = text
                return any(text is not None for _, text in texts)
            case "apps/v1", "Deployment":
                if is_kueue_manager(item):
                    self._managers[name_of(item)] = deployed(item)
                elif is_volcano_scheduler(item):
                    self._schedulers[name_of(item)] = deployed(item)
                else:
                    return False
                return True
        return False

    def configs(self) -> SchedulerConfigs:
        """The configurations of the objects so far."""
        names = self._names
        kueue = kueue_config(
            _chosen(self._kueue, names.kueue_config),
            _chosen(self._managers, names.kueue_manager) or NOT_DEPLOYED,
        )
        volcano = volcano_config(
            _chosen(self._volcano, names.volcano_config),
            _chosen(self._schedulers, names.volcano_scheduler) or NOT_DEPLOYED,
        )
        return SchedulerConfigs(
            _with_others(kueue, KUEUE_KEY, self._kueue, names.kueue_config),
            _with_others(volcano, VOLCANO_KEY, self._volcano, names.volcano_config),
        )


def _order(found: Mapping[Name, Any], usual: str) -> list[Name]:
    return sorted(found, key=lambda name: ("/".join(name) != usual, name))


def _chosen(found: Mapping[Name, T], usual: str) -> T | None:
    return found[_order(found, usual)[0]] if found else None


def _with_others(config: C, key: str, found: Mapping[Name, str], usual: str) -> C:
    if len(found) < 2:
        return config
    chosen = "/".join(_order(found, usual)[0])
    says = f"{len(found):,} ConfigMaps have {key}: that of {chosen} counts"
    return replace(config, unread=(*config.unread, says))


def config_maps(transport: KubeTransport, names: SchedulerNames = NAMES) -> Iterator[dict[str, Any]]:
    """The two ConfigMaps, as far as they exist and may be read. Raises ApiServerRefusal and TransportError
    for any other failure."""
    yield from _each(transport, _CONFIG_MAPS, (names.kueue_config, names.volcano_config), "v1", "ConfigMap")


def deployments(transport: KubeTransport, names: SchedulerNames = NAMES) -> Iterator[dict[str, Any]]:
    """The two Deployments, likewise: their images say the versions, and arguments may hold feature gates."""
    both = (names.kueue_manager, names.volcano_scheduler)
    yield from _each(transport, _DEPLOYMENTS, both, "apps/v1", "Deployment")


def _each(
    transport: KubeTransport, path: str, names: tuple[str, ...], api_version: str, kind: str
) -> Iterator[dict[str, Any]]:
    calls = ListWatchCalls(transport, {}, time.time_ns)
    for name in names:
        found = _asked(calls, path, name)
        if found is not None:
            yield {**found, "apiVersion": api_version, "kind": kind}


def as_read(configs: SchedulerConfigs) -> SchedulerConfigs:
    """Without any assumption: only what was read."""
    return configs


class SchedulerReader:
    """Reads the configurations over ``transport``, and again every ``again_s`` seconds, in its own thread.

    What cannot be read stays as it was last read. Nothing is kept but the text of the configurations,
    versions and feature gates. ``assume`` supplies configurations where nothing could be read.
    """

    def __init__(
        self,
        transport: KubeTransport,
        names: SchedulerNames = NAMES,
        again_s: float = AGAIN_S,
        assume: AssumedConfigs = as_read,
    ) -> None:
        self._names, self._again_s, self._assume = names, again_s, assume
        self._calls = ListWatchCalls(transport, {}, time.time_ns)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler configurations", daemon=True)
        self._texts: dict[str, str | None] = {}
        self._deployed: dict[str, SchedulerDeployment] = {}
        self.configs = assume(SchedulerConfigs())
        """As last read."""
        self.version = 0
        """Changes whenever ``configs`` changes."""

    def start(self) -> None:
        """Begin; call it once."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Stop, and wait at most this long for the thread. What was read stays."""
        self._closed.set()
        self._calls.close()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def read(self) -> bool:
        """Request all of them once; returns whether every one was answered."""
        names, is_whole = self._names, True
        for name, key in ((names.kueue_config, KUEUE_KEY), (names.volcano_config, VOLCANO_KEY)):
            is_whole &= self._take(_CONFIG_MAPS, name, self._texts, partial(config_text, key=key))
        for name in (names.kueue_manager, names.volcano_scheduler):
            is_whole &= self._take(_DEPLOYMENTS, name, self._deployed, deployed)
        configs = SchedulerConfigs(
            kueue_config(
                self._texts.get(names.kueue_config), self._deployed.get(names.kueue_manager, NOT_DEPLOYED)
            ),
            volcano_config(
                self._texts.get(names.volcano_config),
                self._deployed.get(names.volcano_scheduler, NOT_DEPLOYED),
            ),
        )
        configs = self._assume(configs)
        if configs != self.configs:
            self.configs = configs
            self.version += 1
        return is_whole

    def _take(self, path: str, name: str, into: dict[str, T], of: Callable[[Object], T]) -> bool:
        """Store an object under its name; False where it is unknown whether it exists."""
        try:
            found = _asked(self._calls, path, name)
        except (ApiServerRefusal, TransportError):
            return False
        into.pop(name, None)
        if found is not None:
            into[name] = of(found)
        return True

    def _run(self) -> None:
        while not self._closed.is_set():
            self._closed.wait(self._again_s if self.read() else min(self._again_s, _AFTER_FAILURE_S))


def _asked(calls: ListWatchCalls, path: str, name: str) -> dict[str, Any] | None:
    """One object; None where it does not exist, or may not be read."""
    namespace, _, own = name.partition("/")
    try:
        with calls.get(path.format(namespace, own), {}, _TIMEOUT_S) as response:
            found = response.read_json()
    except ApiServerRefusal as refused:
        if refused.status in (NOT_FOUND, FORBIDDEN):
            return None
        raise
    return found if isinstance(found, dict) else None
