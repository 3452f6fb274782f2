"""The owner of a process: from a PID, as the driver gives it, to the pod whose cgroup it runs in.

The driver lists the processes on a GPU by PID; the rest is in ``/proc`` of the host. Nothing here raises: a
process may end between any two reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

REMEMBER_ENDED_NS = 60 * 10**9
# The kernel cuts the name of a process after 15 bytes (TASK_COMM_LEN in include/linux/sched.h).
_MPS_COMM = "nvidia-cuda-mps-server"[:15]
# The inode of the namespace that the host boots in (PROC_PID_INIT_INO in include/linux/proc_ns.h).
_HOST_PID_NAMESPACE = "pid:[4026531836]"

# The UID of a pod ends a directory name: "pod<uid>", "kubepods-burstable-pod<uid>.slice". The systemd driver
# writes "_" for "-"; static pods have 32 hex digits or more, the hash of their manifest. Only what stands
# below "kubepods", or is named so, was made by a kubelet: others may name a unit "pod<uid>.slice". From
# within a private cgroup namespace all above it is "..".
_POD = re.compile(
    r"(?:(?:^|/)(?:[^/:]+-)?kubepods(?:\.slice)?/(?:(?:burstable|besteffort)/)?"
    r"|^(?:/\.\.)+/(?:(?:burstable|besteffort)/)?"
    r"|(?:^|/)(?:[^/:]+-)?kubepods-(?:(?:burstable|besteffort)-)?)pod"
    r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32,64})"
    r"(?:\.slice)?(?=[/:]|$)",
    re.IGNORECASE,
)
# Where systemd lets users create cgroups of their own.
_OF_A_USER = re.compile(r"^(?:/\.\.)*/user\.slice/")
# The container is what follows the pod at once. CRI-O's "crio-conmon-…" is its monitor, not a container.
_CONTAINER = re.compile(
    r"[/:](?:(?:cri-containerd|crio|docker)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?(?=[/:]|$)"
)

# proc(5): the name of a process may hold anything, ")" too; its start time is the 20th field after it.
_STAT = re.compile(r"-?\d+ \((?P<comm>.*)\)(?: \S+){19} (?P<start>[0-9]{1,20})\s", re.DOTALL)


class CgroupOwner(NamedTuple):
    """A pod, and the container in it; ``container_id`` is empty where the cgroup is not of a container."""

    pod_uid: str
    container_id: str


class OwnerKind(StrEnum):
    """The kinds of owner of a process."""

    POD = "pod"
    OUTSIDE = "outside"
    """A process of the node that is in no pod: trap 29, never charged to the holder of the GPU."""
    UNREADABLE = "unreadable"
    """Ended before it could be read, in a PID namespace that cannot be seen, or not readable for this
    process."""
    MPS_SERVER = "mps_server"
    """The MPS server: it works for its clients, and stands for them in the driver's lists."""


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """The owner of a process. The pod and container are those of its cgroup, also of an MPS server."""

    kind: OwnerKind
    pod_uid: str = ""
    container_id: str = ""


OUTSIDE = ProcessOwner(OwnerKind.OUTSIDE)
UNREADABLE = ProcessOwner(OwnerKind.UNREADABLE)


def pod_uid_and_container(cgroup_text: str) -> CgroupOwner | None:
    """The pod and container of a ``/proc/<pid>/cgroup``, None for a process outside Kubernetes.

    Reads cgroup v1 (a line per controller) and v2 (the one line ``0::``), written by the cgroupfs and the
    systemd driver of containerd, CRI-O and docker, with any prefix (kind, ``--cgroup-root``), and as seen
    from a private cgroup namespace, where paths begin with ``/../..``. Of nested containers the outermost
    counts: it is the one that the kubelet started.
    """
    for line in cgroup_text.splitlines():
        path = line.split(":", 2)[-1].removesuffix(" (deleted)")
        if not _OF_A_USER.match(path) and (pod := _POD.search(path)):
            container = _CONTAINER.match(path, pod.end())
            return CgroupOwner(pod["uid"].replace("_", "-").lower(), container["id"] if container else "")
    return None


class _Stat(NamedTuple):
    comm: str
    start_ticks: int


class _SeenProcess(NamedTuple):
    start_ticks: int
    owner: ProcessOwner
    at_ns: int


class ProcessOwners:
    """The owners of processes, under a ``/proc`` (which must be the host's: ``pid_view``).

    A PID is read anew each time, since the kernel hands out PIDs again: with another start time it is another
    process. A process that has ended keeps its last owner for 60 s, since the driver's samples of it come
    late.
    """

    def __init__(self, proc_root: Path) -> None:
        self._root = proc_root
        self._seen: dict[int, _SeenProcess] = {}
        self._swept_ns: int | None = None

    def owner(self, pid: int, now_ns: int) -> ProcessOwner:
        """The owner of the process. ``now_ns`` is of any clock that only goes forward. Never raises."""
        self._sweep(now_ns)
        seen, stat = self._seen.get(pid), self._stat(pid)
        if stat is None:
            return seen.owner if seen and now_ns - seen.at_ns <= REMEMBER_ENDED_NS else UNREADABLE
        if seen is not None and seen.start_ticks != stat.start_ticks:
            seen = None
        owner = seen.owner if seen else UNREADABLE
        # A process may be moved into its pod's cgroup after it started, but does not leave it.
        if owner.kind is not OwnerKind.POD:
            found = self._owner(pid, stat)
            owner = owner if found is UNREADABLE else found
        self._seen[pid] = _SeenProcess(stat.start_ticks, owner, now_ns)
        return owner

    def _owner(self, pid: int, stat: _Stat) -> ProcessOwner:
        text = _text(f"{self._root}/{pid}/cgroup")
        if not text:
            return UNREADABLE
        found = pod_uid_and_container(text)
        owner = ProcessOwner(OwnerKind.POD, *found) if found else OUTSIDE
        return replace(owner, kind=OwnerKind.MPS_SERVER) if stat.comm == _MPS_COMM else owner

    def _stat(self, pid: int) -> _Stat | None:
        """The name and start time of a process: fields 2 and 22 of its ``stat``."""
        match = _STAT.match(_text(f"{self._root}/{pid}/stat") or "")
        return _Stat(match["comm"], int(match["start"])) if match else None

    def _sweep(self, now_ns: int) -> None:
        """Forget, once a minute, the processes that were not asked for in the last minute."""
        if self._swept_ns is not None and now_ns - self._swept_ns < REMEMBER_ENDED_NS:
            return
        self._swept_ns = now_ns
        self._seen = {
            pid: seen for pid, seen in self._seen.items() if now_ns - seen.at_ns <= REMEMBER_ENDED_NS
        }


class PidView(NamedTuple):
    """Whether the driver's PIDs can be looked up; if not, ``code`` is why, as a reason of ``MissingPart``."""

    host: bool
    code: str = ""


def pid_view(proc_root: Path) -> PidView:
    """Whether the PIDs under ``proc_root`` are the host's, which the driver gives.

    They are when this process is in the host's own PID namespace (``hostPID: true``), which has a fixed
    number; and when ``proc_root`` is a mount of the host's ``/proc``, where this process has a PID in more
    than one namespace. (``NSpid`` counts from the namespace of the mount, so a container's own ``/proc``
    shows one entry like the host's.)
    """
    try:
        namespace = str((proc_root / "self" / "ns" / "pid").readlink())
    except OSError:
        namespace = ""
    if namespace == _HOST_PID_NAMESPACE:
        return PidView(True)
    status = _text(proc_root / "self" / "status")
    if status is None:
        return PidView(False, "proc_unreadable")
    ids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    if len(ids) > 1:
        return PidView(True)
    return PidView(False, "not_host_pid_namespace")


def _text(path: str | Path) -> str | None:
    # Read for each process at each look: an unbuffered file, and no path objects, take half the time.
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode(errors="replace")
    except OSError:
        return None
