"""Who appears in usage lines: pods, each with its attributes and team, and the holders that are nobody."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.contract.frames import HOLDER_COLUMNS
from gpucost.domain.holders import HOLDER_OF_BUCKET
from gpucost.domain.time import Window

HOLDER_NAMES = [column.name for column in HOLDER_COLUMNS]


class Teams(Protocol):
    """What attribution needs of team rules (attribution/teams.py)."""

    def assign(self, holders: pd.DataFrame, at_ms: int, /) -> pd.Series[str]: ...

    def changes(self, window: Window, /) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Holders:
    """The holders of some allocations: one per pod and set of attributes, and per epoch of the team rules.

    ``epochs`` are the instants from which a version of the rules holds, the first being the start of the
    scope. Holder numbers run over all pods in the first epoch, then all in the second, and so on; the last
    ones are nobody (unallocated, unavailable, unknown).
    """

    allocations: pd.DataFrame
    teams: Teams
    epochs: tuple[int, ...]

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """(allocation rows that stand for a holder, position among them of every row)."""
        rows, position = np.unique(_first_with_same_attributes(self.allocations), return_inverse=True)
        return rows.astype(np.int64), position.astype(np.int64)

    def __len__(self) -> int:
        return len(self.epochs) * len(self._distinct[0]) + len(HOLDER_OF_BUCKET)

    def of(self, row: Ints, instant: Ints) -> Ints:
        """The holder of allocation ``row`` at ``instant``."""
        rows, position = self._distinct
        epoch = np.searchsorted(np.array(self.epochs[1:], dtype=np.int64), instant, side="right")
        holder: Ints = epoch * len(rows) + position[row]
        return holder

    def of_bucket(self) -> Ints:
        """The holder of each bucket code; -1 for buckets that pods are in."""
        nobody = {bucket: len(self) - len(HOLDER_OF_BUCKET) + i for i, bucket in enumerate(HOLDER_OF_BUCKET)}
        return np.array([nobody.get(bucket, -1) for bucket in BUCKETS], dtype=np.int64)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per holder: HOLDER_NAMES and team."""
        people = self.allocations[HOLDER_NAMES].take(self._distinct[0]).reset_index(drop=True)
        versions = [people.assign(team=self.teams.assign(people, epoch).to_numpy()) for epoch in self.epochs]
        empty = dict.fromkeys(HOLDER_NAMES, "")
        nobody = pd.DataFrame([{**empty, "pod_uid": who, "team": who} for who in HOLDER_OF_BUCKET.values()])
        return pd.concat([*versions, nobody], ignore_index=True).astype("str")


def _first_with_same_attributes(allocations: pd.DataFrame) -> Ints:
    """For each row, the first row that names the same holder. Most pods have one row: they cost nothing."""
    row = np.arange(len(allocations))
    several = np.flatnonzero(allocations["pod_uid"].duplicated(keep=False).to_numpy())
    if len(several):
        part = allocations[HOLDER_NAMES].take(several).astype("str")
        group = part.groupby(HOLDER_NAMES, sort=False).ngroup().to_numpy()
        _, first = np.unique(group, return_index=True)
        row[several] = several[first[group]]
    return row
