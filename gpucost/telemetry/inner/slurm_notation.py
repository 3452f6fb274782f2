"""How Slurm writes lists of nodes, states of jobs, and the GPUs in what they were given.

Lists of nodes: ``gpu-[01-03,7],login1`` -> gpu-01, gpu-02, gpu-03, gpu-7, login1.

As Slurm writes them (SchedMD/slurm, src/common/hostlist.c): names apart by commas; in brackets numbers and
ranges, as wide as the lower end of a range is written; several brackets in a name are all combinations, of
which the last one changes fastest.

States: SchedMD/slurm, src/common/slurm_protocol_defs.c (job_state_string). Trackable resources: doc/html/
tres.shtml; ``gres/gpu`` is the number of all GPUs, ``gres/gpu:h100`` that of one type, and both may stand
side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

from gpucost.domain.errors import InputError

MOST_NODES = 65_536
NO_NODES = ("", "None assigned", "(null)", "None", "N/A")
"""What Slurm writes where a job had no nodes."""
_LIST = re.compile(r"(?:[^][,]+|\[[^][]*\])+")
_PART = re.compile(r"([^][]+)|\[([^][]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_ALLOWED = "names of nodes, such as gpu-[01-03,7],login1"


def expand_hostlist(text: str, field: str) -> tuple[str, ...]:
    """Its nodes in order; empty where Slurm says that there are none. Raises InputError about ``field``."""
    if text.strip() in NO_NODES:
        return ()
    names: list[str] = []
    for entry in _entries(text, field):
        for name in _expanded(entry, text, field):
            names.append(name)
            if len(names) > MOST_NODES:
                raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
    return tuple(names)


def _entries(text: str, field: str) -> Iterator[str]:
    at = 0
    while True:
        match = _LIST.match(text, at)
        if match is None:
            raise InputError(field, text, _ALLOWED)
        yield match.group()
        at = match.end()
        if at == len(text):
            return
        if text[at] != ",":
            raise InputError(field, text, _ALLOWED)
        at += 1


def _expanded(entry: str, text: str, field: str) -> Iterator[str]:
    parts: list[list[str]] = []
    combinations = 1
    for plain, ranges in _PART.findall(entry):
        if plain and not _PLAIN.fullmatch(plain):
            raise InputError(field, text, _ALLOWED)
        parts.append([plain] if plain else list(_numbers(ranges, text, field)))
        combinations *= len(parts[-1])
        if combinations > MOST_NODES:
            raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
    for combination in product(*parts):
        yield "".join(combination)


def _numbers(ranges: str, text: str, field: str) -> Iterator[str]:
    count = 0
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            raise InputError(field, text, _ALLOWED)
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or int(high) - int(low) >= MOST_NODES:
            raise InputError(field, text, f"ranges that rise, of at most {MOST_NODES:,} nodes")
        count += int(high) - int(low) + 1
        if count > MOST_NODES:
            raise InputError(field, text, f"at most {MOST_NODES:,} nodes")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


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
