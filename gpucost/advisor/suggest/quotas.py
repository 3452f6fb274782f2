"""A raised limit of a ClusterQueue or cohort: as an object, in words, and as it is carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpucost.advisor.answers import Change, ChangeKind
from gpucost.advisor.kueue.words import quantity
from gpucost.advisor.suggest.patching import pointer, text_of
from gpucost.cluster.commands import is_plain
from gpucost.cluster.kueue import ClusterQueue, Cohort, FlavorResource
from gpucost.cluster.quota_yaml import CLUSTER_QUEUES, COHORTS, json_patch

NOMINAL, BORROWING, LENDING = "nominalQuota", "borrowingLimit", "lendingLimit"
_FIELDS: Mapping[str, str] = {
    NOMINAL: "nominal",
    BORROWING: "borrowing_limit",
    LENDING: "lending_limit",
}

Amounts = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Raise:
    """``field`` of the quotas of one object, by so much for each flavor and resource; it is set for all."""

    owner: ClusterQueue | Cohort
    field: str
    by: Amounts

    @property
    def kind(self) -> str:
        return "ClusterQueue" if isinstance(self.owner, ClusterQueue) else "Cohort"

    def raised(self) -> ClusterQueue | Cohort:
        quotas = dict(self.owner.quotas)
        for key, amount in self.by.items():
            quotas[key] = replace(quotas[key], **{_FIELDS[self.field]: self._now(key) + amount})
        return replace(self.owner, quotas=quotas)

    def says(self) -> str:
        parts = [
            f"{key.resource} of flavor {key.flavor} from {quantity(key.resource, self._now(key))} to "
            f"{self._then(key)}"
            for key in sorted(self.by)
        ]
        return f"raise {self.field} of {self.kind} {self.owner.name}: {', '.join(parts)}"

    def written(self) -> Change:
        """Without a command where the name is no name of Kubernetes."""
        name, steps = self.owner.name, tuple(self._operations())
        collection = CLUSTER_QUEUES if self.kind == "ClusterQueue" else COHORTS
        return Change(
            ChangeKind.CLUSTER,
            f"{self.kind.lower()}/{name}",
            text_of(self._patch(), is_whole=False),
            steps,
            json_patch(collection, name, steps) if is_plain(name) else "",
        )

    def _operations(self) -> Iterator[Mapping[str, object]]:
        """Names are tested, so that nothing else is changed where the object has changed meanwhile."""
        for key in sorted(self.by):
            for at, group in enumerate(self.owner.groups):
                if key.resource in group.resources and key.flavor in group.flavors:
                    flavor, resource = group.flavors.index(key.flavor), group.resources.index(key.resource)
                    above = ("spec", "resourceGroups", at, "flavors", flavor)
                    inside = (*above, "resources", resource)
                    yield {"op": "test", "path": pointer((*above, "name")), "value": key.flavor}
                    yield {"op": "test", "path": pointer((*inside, "name")), "value": key.resource}
                    path = pointer((*inside, self.field))
                    yield {"op": "replace", "path": path, "value": self._then(key)}

    def _patch(self) -> Mapping[str, object]:
        groups = []
        for group in self.owner.groups:
            flavors = []
            for flavor in group.flavors:
                keys = sorted(key for key in self.by if key.flavor == flavor)
                resources = [self._member(key) for key in keys if key.resource in group.resources]
                flavors += [{"name": flavor, "resources": resources}] if resources else []
            groups += [{"flavors": flavors}] if flavors else []
        return {"spec": {"resourceGroups": groups}}

    def _member(self, key: FlavorResource) -> Mapping[str, object]:
        amount = self._then(key)
        return {"name": key.resource, self.field: int(amount) if amount.isdecimal() else amount}

    def _now(self, key: FlavorResource) -> int:
        return int(getattr(self.owner.quotas[key], _FIELDS[self.field]) or 0)

    def _then(self, key: FlavorResource) -> str:
        return quantity(key.resource, self._now(key) + self.by[key])
