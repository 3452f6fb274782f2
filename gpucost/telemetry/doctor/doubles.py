"""The same subject twice: two members of an HA pair, or two jobs that scrape one exporter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from gpucost.contract.probe import Doubles
from gpucost.telemetry.answers import Series

Key = tuple[str, ...]


def doubles(
    exporter: str, result: Iterable[Series], key: Callable[[Series], Key], replica_labels: Collection[str]
) -> Doubles | None:
    """Subjects with more than one series, once the labels that tell HA members apart are left out."""
    by_subject: dict[Key, list[dict[str, str]]] = {}
    for series in result:
        labels = {name: value for name, value in series["metric"].items() if name not in replica_labels}
        known = by_subject.setdefault(key(series), [])
        if labels not in known:
            known.append(labels)
    several = [sets for sets in by_subject.values() if len(sets) > 1]
    if not several:
        return None
    differing = {
        name
        for sets in several
        for name in {label for labels in sets for label in labels}
        if len({labels.get(name, "") for labels in sets}) > 1
    }
    return Doubles(exporter, len(several), tuple(sorted(differing)))
