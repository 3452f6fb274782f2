"""What like jobs used of their GPUs: the input of suggestions about size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PastUse:
    """Of earlier runs of the same job, or of like ones. ``model`` is the board they ran on
    (``gpucost.domain.gpu``), ``memory_bytes`` the 99th percentile of memory in use on one board of
    ``board_bytes``, ``sm_activity`` the 95th percentile of SM activity, 0 to 1. ``gpus`` is how many GPUs of
    one pod did anything at all, None where nobody can say. ``runs`` is how many runs it is from."""

    model: str
    board_bytes: float
    memory_bytes: float
    sm_activity: float
    gpus: int | None = None
    runs: int = 1
