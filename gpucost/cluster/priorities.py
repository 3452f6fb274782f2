"""What a PriorityClass is worth to a pod: the API server resolves it, whichever scheduler places the pod."""

from __future__ import annotations

from collections.abc import Iterable

from gpucost.cluster.jobs import PriorityClass
from gpucost.cluster.state import ClusterState

OF_PODS, OF_KUEUE = "priorityclasses.scheduling.k8s.io", "workloadpriorityclasses.kueue.x-k8s.io"
"""Collections of the classes of pods, and of those of Kueue's workloads."""
_OF_SYSTEM = "system-"
"""Before names of classes that the API server makes itself."""


def pod_classes(state: ClusterState) -> list[PriorityClass]:
    """Those of Kubernetes itself: a WorkloadPriorityClass of Kueue says nothing of pods."""
    return [each for each in state.priority_classes.values() if not each.of_kueue]


def class_named(classes: Iterable[PriorityClass], name: str) -> PriorityClass | None:
    """None where there is none of that name."""
    return next((each for each in classes if each.meta.name == name), None)


def has_pod_class(state: ClusterState, name: str) -> bool:
    """Whether pods that name it can be made (kubernetes v1.36, plugin/pkg/admission/priority/admission.go,
    Validate); True where nobody could read the classes."""
    found = class_named(pod_classes(state), name)
    return found is not None or name.startswith(_OF_SYSTEM) or state.is_unread(OF_PODS)


def default_class(state: ClusterState) -> PriorityClass | None:
    """That of pods that name none. Of several global defaults the lowest counts, then the first by name
    (kubernetes, plugin/pkg/admission/priority/admission.go, getDefaultPriorityClass)."""
    defaults = (each for each in pod_classes(state) if each.is_default)
    return min(defaults, key=lambda each: (each.value, each.meta.name), default=None)


def pod_priority(state: ClusterState, name: str) -> int:
    """The value of the class of that name; of the default one where none is named or there is none of that
    name; 0 where there is no default."""
    found = (class_named(pod_classes(state), name) if name else None) or default_class(state)
    return 0 if found is None else found.value
