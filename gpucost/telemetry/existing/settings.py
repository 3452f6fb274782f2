"""What is told of the second dialect beside telemetry.settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucost.cluster.ownership import OwnerKeys
from gpucost.domain.gpu import ResourceCatalog, ShareBasis


@dataclass(frozen=True, slots=True)
class ExistingSettings:
    """``catalog`` says what a GPU resource is; ``owners`` which labels and annotations of pods (and labels of
    their namespaces) name team, project and user; ``basis`` what a part of a board is measured by.
    ``custom_resources`` are series of owners of other kinds that kube-state-metrics was configured to give:
    kind, metric, and the label that holds the name."""

    catalog: ResourceCatalog = field(default_factory=ResourceCatalog)
    owners: OwnerKeys = field(default_factory=OwnerKeys)
    basis: ShareBasis = ShareBasis.COMPUTE
    custom_resources: tuple[tuple[str, str, str], ...] = ()
