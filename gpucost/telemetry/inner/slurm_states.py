"""States of Slurm jobs, and the GPUs in what they were given, in the words of Slurm's accounting.

States: SchedMD/slurm, src/common/slurm_protocol_defs.c (job_state_string). Trackable resources: doc/html/
tres.shtml; ``gres/gpu`` is the number of all GPUs, ``gres/gpu:h100`` that of one type, and both may stand
side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

OVER = frozenset(
    {
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "SPECIAL_EXIT",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "STAGE_OUT",
    }
)
"""The job does not run any more. CANCELLED may be followed by who did it."""
RUNS = frozenset(
    {
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "RESIZING",
        "SIGNALING",
        "STOPPED",
    }
)
"""The job has its GPUs. One that is suspended keeps them (doc/html/gres.shtml)."""
WAITS = frozenset({"PENDING", "RESV_DEL_HOLD", "EXPEDITING"})
STATES = f"a state of a Slurm job, such as {', '.join(sorted(OVER | RUNS | WAITS))}"
_GPU = "gres/gpu"


def gpus_of(counts: Iterable[tuple[str, int]]) -> int:
    """Of pairs of a resource, as ``gres/gpu:h100``, and its count: the GPUs, by their total where it is
    there."""
    total = None
    typed = 0
    for name, count in counts:
        if name == _GPU:
            total = count
        elif name.startswith(f"{_GPU}:"):
            typed += count
    return typed if total is None else total
