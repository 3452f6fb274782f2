"""Which clusters a read is about: those of the reader's scope, and of these those that were asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import ColumnElement

from gpucost.domain.scope import Scope


def clusters_of(scope: Scope, filters: Mapping[str, Collection[str]]) -> Collection[str] | None:
    """The clusters that a read with ``filters`` is about; None is all of them."""
    asked = filters.get("cluster")
    return scope.clusters if asked is None else scope.within(asked).clusters


def in_clusters(scope: Scope, column: ColumnElement[str]) -> list[ColumnElement[bool]]:
    """The condition on a cluster's name, as of windows and of findings."""
    return [] if scope.clusters is None else [column.in_(sorted(scope.clusters))]
