"""Frames and inputs built by hand, as Ledger.aggregate and the service would hand them over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pandas as pd

from gpucost.domain.buckets import HOLDER_OF_BUCKET, Bucket
from gpucost.domain.errors import DataProblem, DataProblemCode
from gpucost.domain.rates import Rate
from gpucost.domain.time import DAY_MS, HOUR_MS, MINUTE_MS, Month
from gpucost.reports.base.values import MEASURES
from gpucost.reports.month.inputs import (
    JOB_DIMS,
    MONTH_DIMS,
    AdjustmentFacts,
    MonthInputs,
    WindowFacts,
)

MONTH = Month(2026, 10)
START_MS = MONTH.window.start_ms
H100_NANO = 6_880_000_000
A100_NANO = 3_431_000_000
H100 = Rate("aws-p5@1", H100_NANO, "USD", H100_NANO, "instance_type", "AWS price list", "2026-09-01")
A100 = Rate(
    "aws-p4de@1",
    A100_NANO,
    "USD",
    4_000_000_000,
    "model",
    "contract 4711",
    "2026-08-01",
    "Committed",
    "14.2%",
)
RATES = {rate.rate_id: rate for rate in (H100, A100)}

_SHARE = ("share_num", "share_den")
_INTEGERS = (*MEASURES, *_SHARE, "first_ms", "last_ms")
_NODE = ("instance_type", "capacity_type", "region", "zone", "pool")
_TEXTS = tuple(name for name in dict.fromkeys((*MONTH_DIMS, *JOB_DIMS, *_NODE)) if name not in _SHARE)


_LEVELS = (
    *("memory_observed_ms", "memory_used_mib_s", "memory_total_mib_s", "memory_peak_mib"),
    *("energy_observed_ms", "energy_mj"),
)


def row(
    hours: float, rate: Rate | None = H100, *, seen: float | None = None, **columns: Any
) -> dict[str, Any]:
    """One aggregated line: ``hours`` of GPU time at ``rate``, ``seen`` of them observed.

    ``busy``, ``sm`` and ``tensor`` are means over the seen time (None: no such signal), ``memory_gib`` is
    what of 80 GiB was in use all the time, ``watts`` the mean per GPU; everything else is a column.
    """
    board_ms = round(hours * HOUR_MS)
    found: dict[str, Any] = dict.fromkeys(_TEXTS, "")
    found |= {"cluster": "east", "model": "H100", "bucket": "held", "basis": "compute", "job_kind": "Job"}
    found |= {"resource": "nvidia.com/gpu", "board_ms": board_ms, "unpriced_ms": 0 if rate else board_ms}
    found["rate_id"] = rate.rate_id if rate else ""
    found["nano"] = rate.nano_per_board_hour * board_ms // HOUR_MS if rate else None
    seen_ms = None if seen is None else round(seen * HOUR_MS)
    for name, observed, active in (
        ("busy", "observed_ms", "busy_ms"),
        ("sm", "sm_observed_ms", "sm_active_ms"),
        ("tensor", "tensor_observed_ms", "tensor_active_ms"),
    ):
        mean = columns.pop(name, None)
        found[active] = None if mean is None or seen_ms is None else round(mean * seen_ms)
        if found.get(observed) is None:
            found[observed] = None if found[active] is None else seen_ms
    found |= dict.fromkeys((*_LEVELS, "busy_over_ms", "sm_over_ms", "tensor_over_ms"))
    gib, watts = columns.pop("memory_gib", None), columns.pop("watts", None)
    if seen_ms is not None and gib is not None:
        mib_s = seen_ms // 1000 * 1024
        used = {
            "memory_used_mib_s": gib * mib_s,
            "memory_total_mib_s": 80 * mib_s,
            "memory_peak_mib": gib * 1024,
        }
        found |= {"memory_observed_ms": seen_ms, **used}
    if seen_ms is not None and watts is not None:
        found |= {"energy_observed_ms": seen_ms, "energy_mj": watts * seen_ms}
    found |= {"first_ms": START_MS, "last_ms": START_MS + HOUR_MS, "share_num": 1, "share_den": 1}
    if "job" in columns:
        found["job_uid"] = f"uid-{columns['job']}"
    found |= columns
    nobody = HOLDER_OF_BUCKET.get(Bucket(found["bucket"]))
    if nobody:
        found |= {"team": found["team"] or nobody, "job_kind": ""}
    return found


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The rows with the dtypes of Ledger.aggregate: text, nullable integers."""
    names = list(dict.fromkeys([*_TEXTS, *_INTEGERS, *(name for line in rows for name in line)]))
    data = {}
    for name in names:
        values = [line.get(name) for line in rows]
        if name in ("board_ms", "unpriced_ms", "step_start_ms", "first_ms", "last_ms", *_SHARE):
            data[name] = pd.Series(values, dtype="int64")
        else:
            data[name] = pd.Series(values, dtype="Int64" if name in _INTEGERS else "str")
    return pd.DataFrame(data)


def windows(
    cluster: str = "east", days: int = 31, observed: float = 1.0, start_ms: int = START_MS
) -> tuple[WindowFacts, ...]:
    return tuple(
        WindowFacts(
            cluster,
            start_ms + day * DAY_MS,
            start_ms + (day + 1) * DAY_MS,
            1,
            f"digest-{day}",
            round(observed * DAY_MS),
            True,
            "recorded",
            "0.1.0",
        )
        for day in range(days)
    )


def september(days: int = 30, cluster: str = "east") -> tuple[WindowFacts, ...]:
    """The last ``days`` of the month before."""
    return windows(cluster, days, start_ms=START_MS - days * DAY_MS)


def holed() -> tuple[WindowFacts, ...]:
    """A month in which two days were not seen at all, and 25 others but for their last minutes."""

    def seen_ms(day: int) -> int:
        if day in (3, 4):
            return 0
        return DAY_MS - (day * MINUTE_MS if day < 28 else 0)

    return tuple(replace(item, observed_ms=seen_ms(day)) for day, item in enumerate(windows()))


def small_lines() -> list[dict[str, Any]]:
    """Two teams on two models: 100 H100 hours and 40 A100 hours of capacity, hand-computable."""
    h100 = {"model": "H100", "node": "n1", "namespace": "nlp", "queue": "train", "cluster_queue": "gpu"}
    trained = {"seen": 50, "busy": 0.8, "sm": 0.5, "tensor": 0.1, "memory_gib": 60, "watts": 500}
    a100 = {"model": "A100-80GB", "node": "n2", "namespace": "vis", "queue": "batch", "cluster_queue": "gpu"}
    return [
        row(60, team="nlp", project="llm", job="train-1", **trained, **h100),
        row(10, team="nlp", project="eval", job="eval-1", job_kind="PyTorchJob", **h100),
        row(10, A100, seen=10, busy=0.25, team="vision", project="seg", job="seg-1", **a100),
        row(20, A100, seen=20, busy=1.0, memory_gib=20, team="vision", project="seg", job="seg-2", **a100),
        row(20, bucket="unallocated", model="H100", node="n1"),
        row(5, bucket="unavailable", model="H100", node="n1"),
        row(5, bucket="unknown", model="H100", node="n1"),
        row(10, A100, bucket="unallocated", model="A100-80GB", node="n2"),
        row(3, bucket="overcommitted", team="nlp", job="eval-1", nano=0, **h100),
    ]


def small_month(**changes: Any) -> MonthInputs:
    """``small_lines`` with a previous month, one adjustment, one problem and all windows but the last day."""
    previous = [
        row(50, team="nlp", project="llm", queue="train", cluster_queue="gpu", job_kind="Job"),
        row(40, A100, model="A100-80GB", team="robotics", project="arm", queue="batch", cluster_queue="gpu"),
    ]
    inputs = MonthInputs(
        month=MONTH,
        currency="USD",
        code_version="0.1.0",
        lines=frame(small_lines()),
        previous=frame(previous),
        windows=windows(days=30, observed=0.99),
        previous_windows=september(),
        rates=RATES,
        problems=(DataProblem(DataProblemCode.END_UNKNOWN, "east", "uid-eval-1", "no end seen", 3_600_000),)
        * 2,
        adjustments=(AdjustmentFacts("nlp", -5_000_000_000, 0, "credit for node n9", "ada", "TICKET-1"),),
    )
    return replace(inputs, **changes)


_POOLS = (  # model, rate, GPUs, teams that hold there
    ("H100", H100, 32, ("nlp", "speech", "vision")),
    ("A100-80GB", A100, 48, ("vision", "robotics", "platform", "nlp")),
    ("T4", None, 16, ("students", "platform", "growth", "search", "__no_team__")),
)
_KINDS = ("PyTorchJob", "Job", "RayJob", "Notebook", "Deployment")


def realistic_month(seed: int = 7, **changes: Any) -> MonthInputs:
    """96 GPUs of three models, nine teams, a model without a price, a month in full, with days and a past."""
    random = Random(seed)
    lines: list[dict[str, Any]] = []
    for day in range(31):
        at = START_MS + day * DAY_MS
        instants = {"first_ms": at, "last_ms": at + DAY_MS, "step_start_ms": at}
        for model, rate, boards, teams in _POOLS:
            left = boards * 24.0
            for team in teams:
                hours = round(left * random.uniform(0.15, 0.55 if day % 7 < 5 else 0.3), 2)
                left -= hours
                kind = _KINDS[len(team) % 5]
                job = f"{team.strip('_')}-{kind.lower()}-{day // 3:02d}"
                seen = None if team == "growth" else round(hours * random.uniform(0.9, 1), 3)
                signals = {"busy": random.uniform(0.3, 0.95), "sm": random.uniform(0.2, 0.6)}
                lines.append(
                    row(
                        *(hours, rate),
                        seen=seen,
                        tensor=None if model == "T4" else random.uniform(0, 0.4),
                        **(signals | instants),
                        model=model,
                        team=team,
                        job=job,
                        job_kind=kind,
                        namespace=team,
                        project=f"{team}-{day % 2}",
                        queue=f"{team}-q",
                        cluster_queue="gpu",
                        node=f"{model.lower()}-1",
                        profile="1g.10gb" if team == "speech" else "",
                    )
                )
            parts = {"unavailable": 0.1, "unknown": 0.05 if day % 9 == 0 else 0.0}
            for bucket, part in {**parts, "unallocated": 1 - sum(parts.values())}.items():
                lines.append(row(left * part, rate, bucket=bucket, model=model, **instants))
    whole = frame(lines)
    past = whole.assign(
        nano=(whole["nano"] * 9) // 10, team=whole["team"].mask(whole["team"] == "robotics", "x")
    )
    inputs = MonthInputs(
        month=MONTH,
        currency="USD",
        code_version="0.1.0",
        lines=whole,
        previous=past,
        days=whole,
        windows=windows(observed=0.997),
        previous_windows=september(),
        rates=RATES,
        problems=(
            DataProblem(
                DataProblemCode.PRICE_MISSING,
                "east",
                "T4",
                "no price for T4 (n1-standard-4, on-demand)",
                10**9,
            ),
            DataProblem(
                DataProblemCode.END_UNKNOWN,
                "east",
                "uid-vision-job-03",
                "the pod was last seen running",
                None,
            ),
        ),
        adjustments=(AdjustmentFacts("nlp", -412_500_000_000, 0, "node h100-3 was throttled", "ada", "T-1"),),
    )
    return replace(inputs, **changes)
