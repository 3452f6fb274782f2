"""Rows of one kind of object, limited by namespace: whoever may create objects in a namespace chooses how
many series there are. Those beyond the limit are one row of it, with sums that stay what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

F = TypeVar("F")

OTHERS = "__others__"
"""The name of what stands for several objects; no object of Kubernetes may be called so."""


def others_uid(*where: str) -> str:
    """The uid of what stands for several objects of a namespace: another one than those of others."""
    return ":".join((OTHERS, *where))


@dataclass(frozen=True)
class NamespaceLimit(Generic[F]):
    """``namespace`` of an object; ``order`` in which objects of one have rows, the first come first: all
    replicas must choose the same ones, and nobody's rows come and go. ``fold`` makes the rows, by key, of
    those of one namespace that have none of their own, at least one."""

    namespace: Callable[[F], str]
    order: Callable[[F], tuple[int, str]]
    fold: Callable[[Sequence[F]], Mapping[str, Any]]

    def rows(self, facts: Mapping[str, F], most: int) -> tuple[Mapping[str, Any], int]:
        """(facts of rows by key, how many objects have no row of their own)."""
        if len(facts) <= most:
            return facts, 0
        counts = Counter(map(self.namespace, facts.values()))
        full = {name for name, count in counts.items() if count > most}
        if not full:
            return facts, 0
        kept: dict[str, Any] = {}
        crowded: dict[str, list[tuple[str, F]]] = {}
        for key, found in facts.items():
            name = self.namespace(found)
            if name in full:
                crowded.setdefault(name, []).append((key, found))
            else:
                kept[key] = found
        beyond = 0
        for mine in crowded.values():
            ordered = sorted(mine, key=lambda each: self.order(each[1]))
            kept |= dict(ordered[:most])
            kept |= self.fold([found for _, found in ordered[most:]])
            beyond += len(ordered) - most
        return kept, beyond
