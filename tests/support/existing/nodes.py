"""The nodes of the scripted month."""

from __future__ import annotations

from fractions import Fraction

from gpucost.domain.time import DAY_MS, HOUR_MS
from tests.support.existing.world import T0, Gpu, Node, Offer, at, stable

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
MIG_3G, MIG_2G, MIG_1G = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-1g.10gb"
_SLICES = (
    (MIG_3G, "3g.40gb", Fraction(3, 7), 40192, ("1",)),
    (MIG_2G, "2g.20gb", Fraction(2, 7), 19968, ("3",)),
    (MIG_1G, "1g.10gb", Fraction(1, 7), 9728, ("9", "10")),
)
_BORN = T0 - 40 * DAY_MS


def board(node: str, index: int, memory_mib: int) -> Gpu:
    return Gpu(f"GPU-{stable(f'{node}/board/{index}')}", index, Fraction(1), memory_mib)


def whole(
    name: str,
    product: str,
    boards: int,
    memory_mib: int,
    watts: float,
    instance_type: str,
    start_ms: int = _BORN,
    lost: tuple[tuple[int, int, int], ...] = (),
    replicas: int = 1,
    shows_labels: bool = True,
    capacity_type: str = "on-demand",
) -> Node:
    """A node of whole GPUs; with ``replicas`` each is handed out several times, under the other name."""
    gpus = tuple(board(name, index, memory_mib) for index in range(boards))
    labels = {**place(name, instance_type, capacity_type), **of_gpus(product, boards, memory_mib)}
    resource = GPU
    if replicas > 1:
        resource = SHARED
        labels |= {
            "nvidia.com/gpu.replicas": str(replicas),
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
        }
    offers = (Offer(resource, gpus, replicas),)
    return Node(name, product, boards, offers, labels, watts, start_ms, lost=lost, shows_labels=shows_labels)


def sliced(name: str, boards: int) -> Node:
    """A node whose GPUs are cut into the same four pieces each (MIG strategy ``mixed``)."""
    product = "NVIDIA-A100-SXM4-80GB"
    labels = {**place(name, "p4de.24xlarge", "reserved"), **of_gpus(product, boards, 81920)}
    labels["nvidia.com/mig.strategy"] = "mixed"
    offers = []
    for resource, profile, share, memory_mib, instances in _SLICES:
        gpus = tuple(
            Gpu(board(name, index, 0).uuid, index, share, memory_mib, instance, profile)
            for index in range(boards)
            for instance in instances
        )
        offers.append(Offer(resource, gpus))
        labels[f"{resource}.count"] = str(len(gpus))
    return Node(name, product, boards, tuple(offers), labels, 320.0, _BORN)


def place(name: str, instance_type: str, capacity_type: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": instance_type,
        "topology.kubernetes.io/region": "eu-west-1",
        "topology.kubernetes.io/zone": "eu-west-1a",
        "karpenter.sh/nodepool": name.rsplit("-", 1)[0],
        "karpenter.sh/capacity-type": capacity_type,
    }


def of_gpus(product: str, boards: int, memory_mib: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(boards),
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.present": "true",
    }


def month_nodes(shows_labels: bool = True) -> tuple[Node, ...]:
    """20 GPUs. ``h100-2`` comes on the second day, ``l4-1`` loses a GPU on the third."""
    cpu = Node("cpu-1", "", 0, (), place("cpu-1", "m6i.4xlarge", "on-demand"), 0.0, _BORN)
    return (
        whole("h100-1", "NVIDIA-H100-80GB-HBM3", 8, 81559, 650.0, "p5.48xlarge"),
        whole("h100-2", "NVIDIA-H100-80GB-HBM3", 6, 81559, 650.0, "p5.48xlarge", at(30) + 41_337),
        sliced("a100-1", 2),
        whole("t4-1", "Tesla-T4", 2, 15360, 70.0, "g4dn.12xlarge", replicas=4),
        whole(
            "l4-1", "NVIDIA-L4", 2, 23034, 72.0, "g6.12xlarge", capacity_type="spot",
            lost=((at(50) + 17_000, at(50) + 17_000 + 12 * HOUR_MS, 1),), shows_labels=shows_labels,
        ),
        cpu,
    )  # fmt: skip
