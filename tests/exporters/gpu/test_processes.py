"""From a PID to a pod: every form of a cgroup, and processes that come and go under a written /proc."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucost_gpu_exporter.metering.process_owners import (
    REMEMBER_ENDED_NS,
    CgroupOwner,
    OwnerKind,
    PidView,
    ProcessOwner,
    ProcessOwners,
    pid_view,
    pod_uid_and_container,
)

UID = "0f3c1a2b-4d5e-6f70-8192-a3b4c5d6e7f8"
SYSTEMD_UID = UID.replace("-", "_")
STATIC = "9a" * 16
BOX = "c0ffee00" * 8
INNER = "deadbeef" * 8
SECOND = 10**9

FORMS = {
    "cgroupfs v1": (
        f"12:memory:/kubepods/burstable/pod{UID}/{BOX}\n11:cpu,cpuacct:/kubepods/burstable/pod{UID}/{BOX}\n",
        CgroupOwner(UID, BOX),
    ),
    "cgroupfs v1, guaranteed": (f"4:devices:/kubepods/pod{UID}/{BOX}\n", CgroupOwner(UID, BOX)),
    "v1, pods only in some controllers": (
        f"3:rdma:/\n2:pids:/kubepods/besteffort/pod{UID}/{BOX}\n0::/system.slice/containerd.service\n",
        CgroupOwner(UID, BOX),
    ),
    "systemd v1, containerd": (
        "9:cpuset:/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "systemd v2, containerd": (
        "0::/kubepods.slice/kubepods-besteffort.slice/"
        f"kubepods-besteffort-pod{SYSTEMD_UID}.slice/cri-containerd-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "systemd v2, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/cri-containerd-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "containerd asked for systemd, cgroups by cgroupfs": (
        f"0::/system.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice:cri-containerd:{BOX}\n",
        CgroupOwner(UID, BOX),
    ),
    "CRI-O": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-{BOX}.scope/container\n",
        CgroupOwner(UID, BOX),
    ),
    "CRI-O's monitor": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/crio-conmon-{BOX}.scope\n",
        CgroupOwner(UID, ""),
    ),
    "docker": (
        f"0::/kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice/docker-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "kind": (
        "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
        f"kubelet-kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "kind, seen from its host": (
        f"0::/system.slice/docker-{INNER}.scope/kubelet/kubepods/burstable/pod{UID}/{BOX}\n",
        CgroupOwner(UID, BOX),
    ),
    "private cgroup namespace": (
        f"0::/../../kubepods-burstable-pod{SYSTEMD_UID}.slice/cri-containerd-{BOX}.scope\n",
        CgroupOwner(UID, BOX),
    ),
    "private cgroup namespace, cgroupfs": (f"0::/../../pod{UID}/{BOX}\n", CgroupOwner(UID, BOX)),
    "private cgroup namespace, cgroupfs, another quality of service": (
        f"0::/../../../besteffort/pod{UID}/{BOX}\n",
        CgroupOwner(UID, BOX),
    ),
    "static pod": (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/"
        f"cri-containerd-{BOX}.scope\n",
        CgroupOwner(STATIC, BOX),
    ),
    "static pod, cgroupfs": (f"4:devices:/kubepods/pod{STATIC}/{BOX}\n", CgroupOwner(STATIC, BOX)),
    "docker in a pod": (
        f"0::/kubepods/burstable/pod{UID}/{BOX}/docker/{INNER}\n",
        CgroupOwner(UID, BOX),
    ),
    "container that was removed": (
        f"0::/kubepods/burstable/pod{UID}/{BOX} (deleted)\n",
        CgroupOwner(UID, BOX),
    ),
    "the pod itself": (f"0::/kubepods/burstable/pod{UID}\n", CgroupOwner(UID, "")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_cgroup(form: str) -> None:
    text, owner = FORMS[form]
    assert pod_uid_and_container(text) == owner


@pytest.mark.trap(29)
@pytest.mark.parametrize(
    "text",
    [
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
        f"0::/system.slice/docker-{BOX}.scope\n",
        f"0::/machine.slice/libpod-{BOX}.scope\n",
        f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/pod{UID}.slice\n",
        f"0::/../../../user.slice/user-1000.slice/user@1000.service/app.slice/pod{UID}.slice\n",
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{BOX}\n",
        f"0::/user.slice/user-1000.slice/user@1000.service/kubepods-pod{SYSTEMD_UID}.slice\n",
        f"0::/system.slice/app-pod{SYSTEMD_UID}.slice\n",
        f"0::/system.slice/mykubepods/pod{UID}/{BOX}\n",
        f"0::/system.slice/kubepods/other/pod{UID}/{BOX}\n",
        f"0::/pod{UID}/{BOX}\n",
        f"0::/user.slice/user-libpod_pod_{BOX}.slice/libpod-{INNER}.scope\n",
        "0::/system.slice/podman.service\n",
        "0::/\n",
        "12:memory:/\n11:cpu:/\n",
        "",
    ],
)
def test_outside_kubernetes(text: str) -> None:
    assert pod_uid_and_container(text) is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert pod_uid_and_container(text) is None or "pod" in text.lower()


class ProcTree:
    """A /proc with what this package reads of it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def start(self, pid: int, cgroup: str, start_ticks: int = 100, comm: str = "python3") -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        rest = f"S 1 {pid} {pid} 0 -1 4194560 900 0 0 0 5 3 0 0 20 0 8 0 {start_ticks} 99999 512 18446744"
        (folder / "stat").write_text(f"{pid} ({comm}) {rest}\n")
        (folder / "cgroup").write_text(cgroup)

    def end(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()

    def myself(self, *ids: int, namespace: str) -> None:
        """What this process sees of itself: its PIDs from the mount's namespace inwards."""
        (self.root / "self" / "ns").mkdir(parents=True)
        (self.root / "self" / "ns" / "pid").symlink_to(namespace)
        listed = "\t".join(map(str, ids))
        (self.root / "self" / "status").write_text(f"Name:\tpython3\nNSpid:\t{listed}\nThreads:\t2\n")


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


POD_CGROUP = f"0::/kubepods/burstable/pod{UID}/{BOX}\n"
HOST_CGROUP = "0::/user.slice/user-1000.slice/session-3.scope\n"
IN_POD = ProcessOwner(OwnerKind.POD, UID, BOX)


def other_pod(digit: str) -> str:
    return UID[:-1] + digit


@pytest.mark.trap(29)
def test_a_pod_and_the_outside_and_nobody(proc: ProcTree) -> None:
    proc.start(10, POD_CGROUP)
    proc.start(11, HOST_CGROUP)
    owners = ProcessOwners(proc.root)
    assert owners.owner(10, 0) == IN_POD
    assert owners.owner(11, 0) == ProcessOwner(OwnerKind.OUTSIDE)
    assert owners.owner(12, 0) == ProcessOwner(OwnerKind.UNREADABLE)


@pytest.mark.parametrize("comm", ["tmux: server", "a) S 1 2 (b", "((", "", "\n) x"])
def test_a_name_may_hold_anything(proc: ProcTree, comm: str) -> None:
    proc.start(10, POD_CGROUP, comm=comm)
    assert ProcessOwners(proc.root).owner(10, 0) == IN_POD


@pytest.mark.trap(25)
@pytest.mark.parametrize("cgroup", [POD_CGROUP, HOST_CGROUP])
def test_the_mps_server_is_nobody_in_particular(proc: ProcTree, cgroup: str) -> None:
    """Also in the pod that the device plugin runs it in: its work is that of its clients."""
    proc.start(10, cgroup, comm="nvidia-cuda-mps")
    owners = ProcessOwners(proc.root)
    assert owners.owner(10, 0).kind is OwnerKind.MPS_SERVER
    assert owners.owner(10, SECOND).kind is OwnerKind.MPS_SERVER


@pytest.mark.trap(15)
def test_a_pid_that_is_handed_out_again_is_another_process(proc: ProcTree) -> None:
    owners = ProcessOwners(proc.root)
    proc.start(10, POD_CGROUP, start_ticks=100)
    assert owners.owner(10, 0) == IN_POD
    proc.end(10)
    proc.start(10, POD_CGROUP.replace(UID, other_pod("9")), start_ticks=250)
    assert owners.owner(10, SECOND).pod_uid == other_pod("9")
    proc.end(10)
    proc.start(10, HOST_CGROUP, start_ticks=400)
    assert owners.owner(10, 2 * SECOND) == ProcessOwner(OwnerKind.OUTSIDE)


def test_a_recycled_pid_that_cannot_be_read_does_not_inherit(proc: ProcTree) -> None:
    owners = ProcessOwners(proc.root)
    proc.start(10, POD_CGROUP, start_ticks=100)
    owners.owner(10, 0)
    proc.start(10, POD_CGROUP, start_ticks=250)
    (proc.root / "10" / "cgroup").unlink()
    assert owners.owner(10, SECOND) == ProcessOwner(OwnerKind.UNREADABLE)


def test_a_process_that_ended_keeps_its_owner_for_a_minute(proc: ProcTree) -> None:
    owners = ProcessOwners(proc.root)
    proc.start(10, POD_CGROUP)
    owners.owner(10, SECOND)
    proc.end(10)
    assert owners.owner(10, SECOND + REMEMBER_ENDED_NS) == IN_POD
    assert owners.owner(10, SECOND + REMEMBER_ENDED_NS + 1) == ProcessOwner(OwnerKind.UNREADABLE)


def test_a_process_not_asked_for_is_forgotten(proc: ProcTree) -> None:
    owners = ProcessOwners(proc.root)
    for pid in range(10, 30):
        proc.start(pid, POD_CGROUP)
        owners.owner(pid, 0)
    owners.owner(10, 2 * REMEMBER_ENDED_NS)
    assert len(owners._seen) == 1


def test_a_process_that_moves_into_its_pod_is_found(proc: ProcTree) -> None:
    """A container runtime starts a process first and moves it then."""
    owners = ProcessOwners(proc.root)
    proc.start(10, "0::/system.slice/containerd.service\n")
    assert owners.owner(10, 0) == ProcessOwner(OwnerKind.OUTSIDE)
    proc.start(10, POD_CGROUP)
    assert owners.owner(10, SECOND) == IN_POD
    (proc.root / "10" / "cgroup").unlink()
    assert owners.owner(10, 2 * SECOND) == IN_POD


def test_an_owner_stands_while_the_cgroup_cannot_be_read(proc: ProcTree) -> None:
    owners = ProcessOwners(proc.root)
    proc.start(10, HOST_CGROUP)
    owners.owner(10, 0)
    (proc.root / "10" / "cgroup").unlink()
    assert owners.owner(10, SECOND) == ProcessOwner(OwnerKind.OUTSIDE)


@pytest.mark.parametrize("stat", ["", "10", "10 (x) S 1 2 3", "10 (x) " + "x " * 30, "10 (x " + "1 " * 30])
def test_a_stat_that_is_cut_off(proc: ProcTree, stat: str) -> None:
    proc.start(10, POD_CGROUP)
    (proc.root / "10" / "stat").write_text(stat)
    assert ProcessOwners(proc.root).owner(10, 0) == ProcessOwner(OwnerKind.UNREADABLE)


@pytest.mark.parametrize("pid", [0, -1, 2**32 - 1])
def test_pids_the_driver_makes_up(proc: ProcTree, pid: int) -> None:
    assert ProcessOwners(proc.root).owner(pid, 0) == ProcessOwner(OwnerKind.UNREADABLE)


HOST_NAMESPACE = "pid:[4026531836]"
OWN_NAMESPACE = "pid:[4026532178]"


def test_host_pid_namespace(proc: ProcTree) -> None:
    proc.myself(4711, namespace=HOST_NAMESPACE)
    assert pid_view(proc.root).host


def test_a_container_without_host_pid(proc: ProcTree) -> None:
    """Its own /proc shows one entry in NSpid, as the host's does."""
    proc.myself(1, namespace=OWN_NAMESPACE)
    view = pid_view(proc.root)
    assert view == PidView(False, "not_host_pid_namespace")


def test_a_mount_of_the_hosts_proc(proc: ProcTree) -> None:
    proc.myself(4711, 1, namespace=OWN_NAMESPACE)
    assert pid_view(proc.root) == PidView(True)


def test_a_proc_that_cannot_be_read(tmp_path: Path) -> None:
    view = pid_view(tmp_path / "nowhere")
    assert view == PidView(False, "proc_unreadable")


def test_the_real_proc() -> None:
    """This test's own process is found, whatever it runs in."""
    assert pid_view(Path("/proc")).code != "proc_unreadable"
    assert ProcessOwners(Path("/proc")).owner(1, 0).kind in set(OwnerKind)
