"""The ways in which one world was scraped, and both of its exports as blocks for a Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpucost.contract.metric_spec import EOF
from gpucost.domain.time import HOUR_MS, MINUTE_MS, SECOND_MS, Window
from tests.support.existing.dcgm_series import (
    CLASSIC,
    CLASSIC_HONORS,
    PLAIN_SHARED,
    POD_NAMED,
    V49,
    V483,
    Release,
    dcgm_series,
    dcgm_target,
    exporter_pod,
)
from tests.support.existing.frames import frames_of
from tests.support.existing.kube_series import kube_series, kube_target
from tests.support.existing.script import scripted
from tests.support.existing.text import Scrapes, Series, Target, Writer
from tests.support.existing.world import World, at
from tests.support.prometheus import create_blocks
from tests.support.simulated_metrics.exposition import exposition

# promtool makes blocks of this length out of "at most a day", and reads all its input once for each.
PART_MS = 18 * HOUR_MS
REPLICA_LABEL = "prometheus_replica"
_UNREAD = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", "kube_pod_start_time")
_UNREAD_OF_OURS = ("gpucost_gpu_driver_epoch", "gpucost_gpu_up")
_NO_GPUS = ("cpu", "memory")
_UNREAD_LABELS = (
    *("pci_bus_id", "device", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "host_ip", "pod_ip"),
    *("service", "endpoint"),
    *("created_by_kind", "created_by_name", "host_network", "os_image", "kubelet_version", "provider_id"),
)


@dataclass(frozen=True, slots=True)
class Member:
    """One Prometheus: its own label, how much later than on the minute it scrapes, and when it did not."""

    external: Mapping[str, str] = field(default_factory=dict)
    offset_ms: int = 0
    gaps: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """One world as its Prometheus saw it. ``gaps`` are those of the world: nothing of it was scraped then. A
    ``lean`` one lacks series and labels that make no difference here, for a month takes long to write."""

    world: World
    scrape_ms: int
    releases: Mapping[str, Release] = field(default_factory=dict)
    kube_honors: bool = True
    members: tuple[Member, ...] = (Member(),)
    gaps: tuple[Window, ...] = ()
    lean: bool = False

    @property
    def name(self) -> str:
        return self.world.name

    @property
    def window(self) -> Window:
        """All that was scraped: an hour more at each end than what is looked at."""
        return Window(self.world.start_ms, self.world.end_ms)

    @property
    def inner(self) -> Window:
        return Window(self.world.start_ms + HOUR_MS, self.world.end_ms - HOUR_MS)


MIXED_RELEASES = {
    "h100-1": CLASSIC,
    "h100-2": V49,
    "a100-1": POD_NAMED,
    "t4-1": V483,
    "l4-1": CLASSIC_HONORS,
}
HONORING = {
    "h100-1": CLASSIC_HONORS,
    "h100-2": POD_NAMED,
    "a100-1": CLASSIC_HONORS,
    "t4-1": PLAIN_SHARED,
    "l4-1": POD_NAMED,
}


def month(scrape_ms: int) -> Variant:
    """All of it, from exporters of several releases."""
    return Variant(scripted(name="month"), scrape_ms, MIXED_RELEASES, lean=True)


def variants(scrape_ms: int) -> tuple[Variant, ...]:
    """Every other way, each for as many hours as hold what it is about. The plain one has every series."""

    def world(name: str, first: float, last: float, **more: bool) -> World:
        return scripted((first, last), name=name, **more)

    restart = Window(at(27.42), at(27.42) + 3 * MINUTE_MS)
    gap = Window(at(46), at(46) + 20 * MINUTE_MS)
    one = Member({REPLICA_LABEL: "a"}, 0, (Window(at(10), at(11.5)), Window(at(26), at(26.2))))
    other = Member({REPLICA_LABEL: "b"}, 37 * SECOND_MS, (Window(at(20), at(21)), Window(at(29), at(29.3))))
    return (
        Variant(world("plain", 2, 36), scrape_ms),
        Variant(world("renamed", 24, 54), scrape_ms, HONORING, kube_honors=False, lean=True),
        Variant(world("pair", 9, 36), scrape_ms, members=(one, other), lean=True),
        Variant(world("restarted", 24, 36), scrape_ms, gaps=(restart,), lean=True),
        Variant(world("gap", 40, 54), scrape_ms, gaps=(gap,), lean=True),
        Variant(world("unlabelled", 44, 54, shows_labels=False), scrape_ms, lean=True),
    )


def write_first(found: Sequence[Variant], data: Path) -> None:
    """gpucost's own series of all variants."""
    frames = {variant.name: frames_of(variant.world, variant.gaps) for variant in found}
    for part in _parts(found):
        families: dict[str, list[str]] = {}
        for variant in found:
            inside = part.intersect(variant.window)
            if inside is not None:
                unread = _UNREAD_OF_OURS if variant.lean else ()
                _gather(exposition(frames[variant.name], variant.scrape_ms, inside), families, unread)
        create_blocks(_joined(families), data)


def _gather(pieces: Iterator[str], families: dict[str, list[str]], unread: Sequence[str]) -> None:
    """The lines of each metric behind those that are there already; none of the ``unread``."""
    current: list[str] = []
    for piece in pieces:
        if piece == EOF:
            return
        if piece.startswith("# HELP"):
            header = piece
            current = [header] if header.split()[2] in unread else families.setdefault(header, [])
            if not current:
                current.append(header)
        else:
            current.append(piece)


def _joined(families: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for pieces in families.values():
        yield from pieces
    yield EOF


def write_second(found: Sequence[Variant], data: Path) -> None:
    """The series of kube-state-metrics and dcgm-exporter of all variants."""
    series = [(variant, tuple(_targets(variant))) for variant in found]
    for part in _parts(found):
        writer = Writer()
        for variant, targets in series:
            inside = part.intersect(variant.window)
            if inside is None:
                continue
            for member in variant.members:
                gaps = (*variant.gaps, *member.gaps)
                scrapes = Scrapes(inside, variant.scrape_ms, member.offset_ms, gaps)
                for target, of_target in targets:
                    writer.add(replace(target, external=member.external), scrapes, of_target)
        create_blocks(writer.text(), data)


def _targets(variant: Variant) -> Iterator[tuple[Target, tuple[Series, ...]]]:
    world = variant.world
    nodes = [node for node in world.nodes if node.boards]
    exporters = {node.name: exporter_pod(node.name) for node in nodes}
    found = [(kube_target(world, variant.kube_honors), kube_series(world, exporters))]
    for node in nodes:
        release = variant.releases.get(node.name, CLASSIC)
        found.append((dcgm_target(world, node.name, release), dcgm_series(world, node, release)))
    for target, series in found:
        if variant.lean:
            yield replace(target, labels=_without_unread(target.labels)), tuple(_leaned(series))
        else:
            yield target, tuple(series)


def _without_unread(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in _UNREAD_LABELS}


def _leaned(series: Iterable[Series]) -> Iterator[Series]:
    for each in series:
        if each.name not in _UNREAD and each.labels.get("resource") not in _NO_GPUS:
            yield replace(each, labels=_without_unread(each.labels))


def _parts(found: Sequence[Variant]) -> Iterator[Window]:
    start, end = min(each.window.start_ms for each in found), max(each.window.end_ms for each in found)
    return Window(start, end).split(PART_MS)
