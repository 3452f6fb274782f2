"""What attribution returns: usage lines in normal form, and the holders that they refer to.

Holders are pods, each with its attributes and team, and the pseudo-holders of capacity that no pod holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

from gpucost.attribution.apportion import Ints
from gpucost.attribution.sweep import BUCKETS
from gpucost.contract.frames import HOLDER_COLUMNS, LINE_MEASURES, MAX_TEXT, USAGE_LINES
from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.errors import DataProblem
from gpucost.domain.rates import Rate
from gpucost.domain.time import Window

HOLDER_NAMES = [column.name for column in HOLDER_COLUMNS]

# Texts that people write into labels and annotations. Names and uids of objects are checked by Kubernetes.
_LABELS = ("job", "workload", "queue", "cluster_queue", "flavor", "team_label", "project", "user")


class TeamLookup(Protocol):
    """What attribution needs of team rules (attribution/teams.py)."""

    def assign(self, holders: pd.DataFrame, at_ms: int, /) -> pd.Series[str]: ...

    def placed(self, holders: pd.DataFrame, at_ms: int, /) -> pd.DataFrame: ...

    def changes(self, window: Window, /) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class AllocationHolders:
    """The holders of some allocations: one per pod and set of attributes, and per epoch of the team rules.

    ``epochs`` are the instants from which a version of the rules holds, the first being the start of the
    scope. Holder numbers run over all pods in the first epoch, then all in the second, and so on; the last
    ones are the pseudo-holders (unallocated, unavailable, unknown). A pod that a change of rules leaves in
    its team keeps its number: one holder, one line.
    """

    allocations: pd.DataFrame
    teams: TeamLookup
    epochs: tuple[int, ...]

    @cached_property
    def _attributes(self) -> pd.DataFrame:
        """The attributes of the pod of each allocation, in a form that a ledger can store."""
        attributes = self.allocations[HOLDER_NAMES]
        return attributes.assign(**{name: _storable(attributes[name]) for name in _LABELS})

    @cached_property
    def _distinct(self) -> tuple[Ints, Ints]:
        """(allocation rows that stand for a holder, position among them of every row)."""
        first = _first_with_same_attributes(self._attributes)
        stands = first == np.arange(len(first))
        return np.flatnonzero(stands), (np.cumsum(stands) - 1)[first]

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

    def rules_of(self, lines: pd.DataFrame) -> tuple[tuple[str, ...], Ints]:
        """The texts of the rules that gave holders their teams, and the position of each line's among them;
        -1 where no pod held.

        ``lines`` has holder, first_ms and last_ms. Rules may follow one another within a line and give the
        same team: the line has the one that was in force last while the pod held.
        """
        texts, codes = self._rules
        pods, holder = len(self._distinct[0]), lines["holder"].to_numpy()
        last = np.maximum(lines["last_ms"].to_numpy() - 1, lines["first_ms"].to_numpy())
        epoch = np.searchsorted(np.array(self.epochs[1:], dtype=np.int64), last, side="right")
        found = np.full(len(lines), -1, np.int64)
        held = holder < len(codes)
        found[held] = codes[epoch[held] * pods + holder[held] % max(pods, 1)]
        return texts, found

    @cached_property
    def _rules(self) -> tuple[tuple[str, ...], Ints]:
        """The distinct texts of rules, and the position among them of every pod's in every epoch."""
        codes, texts = pd.factorize(
            np.concatenate([placed["rule"].to_numpy(object) for placed in self._placed])
        )
        return tuple(map(str, texts)), codes.astype(np.int64)

    @cached_property
    def _people(self) -> pd.DataFrame:
        rows = self._distinct[0]
        people = self._attributes if len(rows) == len(self._attributes) else self._attributes.take(rows)
        return people.reset_index(drop=True)

    @cached_property
    def _placed(self) -> list[pd.DataFrame]:
        """By epoch: team and rule of each of ``_people``."""
        return [self.teams.placed(self._people, epoch) for epoch in self.epochs]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per holder: HOLDER_NAMES and team, as text or categories of it.

        Texts from labels and annotations are cut to MAX_TEXT characters and lose what a database cannot
        store (NUL, halves of surrogate pairs), before team rules see them.
        """
        nobody, no_name = list(HOLDER_OF_BUCKET.values()), [""] * len(HOLDER_OF_BUCKET)
        columns = {
            name: _joined([self._people[name]] * len(self.epochs), nobody if name == "pod_uid" else no_name)
            for name in HOLDER_NAMES
        }
        columns["team"] = _joined([placed["team"] for placed in self._placed], nobody)
        return pd.DataFrame(columns, copy=False)


def _plain(values: pd.Series[Any]) -> pd.Series[Any]:
    return values.astype("str") if values.dtype.name == "category" else values


def _joined(parts: Sequence[pd.Series[Any]], more: Sequence[str]) -> pd.Series[Any]:
    """One after the other, then ``more``. What is codes and categories stays so: a name is kept once."""
    if any(part.dtype.name != "category" for part in parts):
        parts = [part.astype("str") for part in parts]
    else:
        new = sorted(set(more) - set(parts[0].cat.categories))
        parts = [part.cat.add_categories(new) for part in parts]
    return pd.concat([*parts, pd.Series(more, dtype=parts[0].dtype)], ignore_index=True)


def _storable(labels: pd.Series[str]) -> pd.Series[str]:
    values = labels.cat.categories if labels.dtype.name == "category" else labels
    texts = values.tolist()
    whole = "".join(texts)
    if whole.isascii() and "\0" not in whole and max(map(len, texts), default=0) <= MAX_TEXT:
        return labels  # nearly always, and told without looking at each of millions
    odd = {value: text for value in set(texts) if (text := storable_text(value)) != value}
    return labels.astype(object).map(lambda value: odd.get(value, value)) if odd else labels


def storable_text(text: str, most: int | None = MAX_TEXT) -> str:
    """A text as a database can store it, cut to ``most`` characters."""
    return text.replace("\0", "").encode(errors="ignore").decode()[:most]


def _first_with_same_attributes(attributes: pd.DataFrame) -> Ints:
    """For each row, the first row that names the same holder. Pods with one row, which are most, need no
    comparison."""
    row = np.arange(len(attributes))
    several = _repeated(attributes["pod_uid"])
    if len(several):
        part = attributes.take(several).astype("str")
        group = part.groupby(HOLDER_NAMES, sort=False).ngroup().to_numpy()
        _, first = np.unique(group, return_index=True)
        row[several] = several[first[group]]
    return row


def _repeated(uids: pd.Series[str]) -> Ints:
    """The rows whose uid other rows have too; perhaps a few more, since hashes are compared."""
    hashes = pd.util.hash_array(uids.array, categorize=False)
    order = np.argsort(hashes)
    again = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    return np.unique(order[np.concatenate([again, again + 1])])


UNIT_NAMES = [
    "cluster",
    "node",
    "resource",
    "model",
    "profile",
    "share_num",
    "share_den",
    "basis",
    "instance_type",
    "capacity_type",
    "region",
    "zone",
    "pool",
]


@dataclass(frozen=True)
class Attribution:
    """Usage lines of consecutive windows.

    ``lines``: window, unit, holder, rate (-1: no price) and bucket as positions, and the LINE_MEASURES; one
    row per natural key. Positions refer to ``windows``, ``units``, ``holders.frame`` and ``rates``.
    ``located`` is what could not be computed, or only in part: (window, problem); a problem of the source
    over the whole time is recorded with the first window.
    """

    windows: tuple[Window, ...]
    lines: pd.DataFrame
    units: pd.DataFrame
    holders: AllocationHolders
    rates: tuple[Rate, ...]
    located: tuple[tuple[int, DataProblem], ...]

    @property
    def problems(self) -> tuple[DataProblem, ...]:
        """Every problem once, the GPU time of all windows added."""
        touched: dict[DataProblem, int | None] = {}
        for _, problem in self.located:
            whole = replace(problem, board_ms=None)
            before = touched.get(whole)
            touched[whole] = before if problem.board_ms is None else (before or 0) + problem.board_ms
        return tuple(replace(problem, board_ms=ms) for problem, ms in sorted(touched.items(), key=repr))

    def problems_by_window(self) -> tuple[tuple[DataProblem, ...], ...]:
        """The problems of each window."""
        found: list[list[DataProblem]] = [[] for _ in self.windows]
        for at, problem in self.located:
            found[at].append(problem)
        return tuple(map(tuple, found))

    def flat(self) -> pd.DataFrame:
        """The lines as a frame of USAGE_LINES: every position replaced by what it stands for."""
        lines = self.lines
        rate_ids = [*(rate.rate_id for rate in self.rates), ""]
        looked_up: dict[str, pd.Series[Any]] = {
            "window_start_ms": pd.Series([w.start_ms for w in self.windows], dtype="int64"),
            "window_end_ms": pd.Series([w.end_ms for w in self.windows], dtype="int64"),
            "bucket": pd.Series([bucket.value for bucket in BUCKETS], dtype="str"),
            "rate_id": pd.Series(rate_ids, dtype="str"),
        }
        position = {"bucket": lines["bucket"], "rate_id": lines["rate"] % len(rate_ids)}
        columns = {
            name: values.take(position.get(name, lines["window"]).to_numpy()).reset_index(drop=True)
            for name, values in looked_up.items()
        }
        for frame, at in ((self.units, lines["unit"]), (self.holders.frame, lines["holder"])):
            taken = frame.take(at.to_numpy()).reset_index(drop=True)
            columns.update({str(name): _plain(taken[name]) for name in taken.columns})
        columns.update({name: lines[name].reset_index(drop=True) for name in LINE_MEASURES})
        return pd.DataFrame({name: columns[name] for name in USAGE_LINES.column_names})

    def totals(self) -> dict[Bucket, tuple[int, int]]:
        """Per bucket: (GPU milliseconds, nano-units of what has a price)."""
        sums = self.lines.groupby("bucket")[["board_ms", "nano"]].sum()
        return {
            BUCKETS[int(str(code))]: (int(row["board_ms"]), int(row["nano"])) for code, row in sums.iterrows()
        }
