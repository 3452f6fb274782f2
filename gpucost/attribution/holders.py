"""Who appears in usage lines: pods, each with its attributes and team, and the holders that are nobody."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.contract.frames import HOLDER_COLUMNS, MAX_TEXT
from gpucost.domain.holders import HOLDER_OF_BUCKET
from gpucost.domain.time import Window

HOLDER_NAMES = [column.name for column in HOLDER_COLUMNS]

# What people write into labels and annotations. Names and uids of objects are checked by Kubernetes.
_LABELS = ("job", "workload", "queue", "cluster_queue", "flavor", "team_label", "project", "user")


class Teams(Protocol):
    """What attribution needs of team rules (attribution/teams.py)."""

    def assign(self, holders: pd.DataFrame, at_ms: int, /) -> pd.Series[str]: ...

    def changes(self, window: Window, /) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Holders:
    """The holders of some allocations: one per pod and set of attributes, and per epoch of the team rules.

    ``epochs`` are the instants from which a version of the rules holds, the first being the start of the
    scope. Holder numbers run over all pods in the first epoch, then all in the second, and so on; the last
    ones are nobody (unallocated, unavailable, unknown). A pod that a change of rules leaves in its team
    keeps its number: one holder, one line.
    """

    allocations: pd.DataFrame
    teams: Teams
    epochs: tuple[int, ...]

    @cached_property
    def _attributes(self) -> pd.DataFrame:
        """What is known of the pod of each allocation, as a ledger can store it."""
        attributes = self.allocations[HOLDER_NAMES]
        return attributes.assign(**{name: _storable(attributes[name]) for name in _LABELS})

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """(allocation rows that stand for a holder, position among them of every row)."""
        rows, position = np.unique(_first_with_same_attributes(self._attributes), return_inverse=True)
        return rows.astype(np.int64), position.astype(np.int64)

    def __len__(self) -> int:
        return len(self.epochs) * len(self._distinct[0]) + len(HOLDER_OF_BUCKET)

    def of(self, row: Ints, instant: Ints) -> Ints:
        """The holder of allocation ``row`` at ``instant``."""
        rows, position = self._distinct
        epoch = np.searchsorted(np.array(self.epochs[1:], dtype=np.int64), instant, side="right")
        number: Ints = self._number[epoch * len(rows) + position[row]]
        return number

    @cached_property
    def _number(self) -> Ints:
        """Of every pod in every epoch: the number it had when it first was in that team."""
        rows, number = len(self._distinct[0]), np.arange(len(self) - len(HOLDER_OF_BUCKET))
        if len(self.epochs) == 1:
            return number
        team, _ = pd.factorize(self.frame["team"].iloc[: len(number)])
        _, first, position = np.unique(team * rows + number % rows, return_index=True, return_inverse=True)
        canonical: Ints = first[position].astype(np.int64)
        return canonical

    def of_bucket(self) -> Ints:
        """The holder of each bucket code; -1 for buckets that pods are in."""
        nobody = {bucket: len(self) - len(HOLDER_OF_BUCKET) + i for i, bucket in enumerate(HOLDER_OF_BUCKET)}
        return np.array([nobody.get(bucket, -1) for bucket in BUCKETS], dtype=np.int64)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per holder: HOLDER_NAMES and team.

        Texts from labels and annotations are cut to MAX_TEXT characters and lose what a database cannot
        store (NUL, halves of surrogate pairs), before team rules see them.
        """
        people = self._attributes.take(self._distinct[0]).reset_index(drop=True)
        versions = [people.assign(team=self.teams.assign(people, epoch).to_numpy()) for epoch in self.epochs]
        empty = dict.fromkeys(HOLDER_NAMES, "")
        nobody = pd.DataFrame([{**empty, "pod_uid": who, "team": who} for who in HOLDER_OF_BUCKET.values()])
        return pd.concat([*versions, nobody], ignore_index=True).astype("str")


def _storable(labels: pd.Series[str]) -> pd.Series[str]:
    odd = {value: text for value in labels.unique() if (text := storable_text(value)) != value}
    return labels.astype(object).map(lambda value: odd.get(value, value)) if odd else labels


def storable_text(text: str, most: int | None = MAX_TEXT) -> str:
    """What a database can store of a text, at most ``most`` characters of it."""
    return text.replace("\0", "").encode(errors="ignore").decode()[:most]


def _first_with_same_attributes(attributes: pd.DataFrame) -> Ints:
    """For each row, the first row that names the same holder. Most pods have one row: they cost nothing."""
    row = np.arange(len(attributes))
    several = np.flatnonzero(attributes["pod_uid"].duplicated(keep=False).to_numpy())
    if len(several):
        part = attributes.take(several).astype("str")
        group = part.groupby(HOLDER_NAMES, sort=False).ngroup().to_numpy()
        _, first = np.unique(group, return_index=True)
        row[several] = several[first[group]]
    return row
