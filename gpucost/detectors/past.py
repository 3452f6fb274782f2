"""What GPUs of jobs did before the history that is read step by step: windows of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gpucost.attribution.deal import Flags
from gpucost.domain.time import DAY_MS

LEAST_SEEN = 0.9
_SIGNALS = ("busy_ms", "observed_ms", "sm_active_ms", "sm_observed_ms")


@dataclass(frozen=True)
class PastWork:
    """Jobs in steps of ``step_ms``, at least one; of a step in which a job held nothing there is no row.

    ``rows`` have ``namespace``, ``job_uid``, ``step_start_ms``, and in board milliseconds ``board_ms`` and
    the signals, null where none was observed; sorted by job, then time.
    """

    step_ms: int
    rows: pd.DataFrame

    @property
    def since_ms(self) -> int:
        """Since when anything is known."""
        return int(self.rows["step_start_ms"].min())

    @property
    def days(self) -> float:
        rows = self.rows["step_start_ms"]
        return float(rows.max() - rows.min() + self.step_ms) / DAY_MS

    @cached_property
    def peaks(self) -> Mapping[tuple[str, str], float]:
        """By namespace and job uid: how many boards' SMs its busiest step took, on average over the step."""
        active, seen = (self.rows[name].astype("float64") for name in ("sm_active_ms", "sm_observed_ms"))
        boards = active / seen.where(seen > 0) * self.rows["board_ms"] / self.step_ms
        found = dict[tuple[str, str], float]()
        for namespace, uid, peak in zip(self.rows["namespace"], self.rows["job_uid"], boards, strict=True):
            if peak > found.get((namespace, uid), -1.0):
                found[namespace, uid] = float(peak)
        return found

    def rests(self) -> list[PastRest]:
        """All stretches of whole steps in which a job was seen to do nothing."""
        rows = self.rows.sort_values(["namespace", "job_uid", "step_start_ms"], kind="stable")
        code = (rows["namespace"] + "/" + rows["job_uid"]).to_numpy(dtype=object)
        start = rows["step_start_ms"].to_numpy(np.int64)
        quiet, active = _quiet_and_active(rows)
        follows = np.append(False, (code[1:] == code[:-1]) & (start[1:] == start[:-1] + self.step_ms))
        new = np.append(True, ~follows[1:] | (quiet[1:] != quiet[:-1]))
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(start)) - 1
        found = list[PastRest]()
        for a, b in zip(first[quiet[first]].tolist(), last[quiet[first]].tolist(), strict=True):
            after = b + 1
            touches = after < len(start) and bool(follows[after])
            namespace, _, uid = code[a].partition("/")
            found.append(
                PastRest(
                    namespace,
                    uid,
                    int(start[a]),
                    int(start[b]) + self.step_ms,
                    is_after_work=bool(follows[a] and active[a - 1]),
                    is_before_work=touches and bool(active[after]),
                    is_last=after == len(start) or code[after] != code[a],
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class PastRest:
    """A stretch of whole steps in which a job did nothing, and what was seen in the steps next to it.
    ``is_last``: nothing is known of the job after it."""

    namespace: str
    job_uid: str
    start_ms: int
    end_ms: int
    is_after_work: bool
    is_before_work: bool
    is_last: bool


def _quiet_and_active(rows: pd.DataFrame) -> tuple[Flags, Flags]:
    busy, seen, sm, sm_seen = (rows[name].astype("float64").to_numpy() for name in _SIGNALS)
    least = LEAST_SEEN * rows["board_ms"].to_numpy(np.float64)
    active: Flags = (busy > 0) | (sm > 0)
    by_busy: Flags = (busy == 0) & (np.nan_to_num(seen) >= least)
    # MIG instances have no busy signal.
    by_sm: Flags = np.isnan(busy) & (sm == 0) & (np.nan_to_num(sm_seen) >= least)
    return ~active & (by_busy | by_sm), active
