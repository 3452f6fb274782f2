"""What a row of the price book applies to, and when: shared by prices, owned hardware, discounts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpucost.domain.configfile import Text, checked, wrong
from gpucost.domain.errors import InputError
from gpucost.domain.gpu import parse_product
from gpucost.domain.rates import NodeFacts
from gpucost.domain.validity import Validity

CapacityType = Literal["on-demand", "spot", "reserved", "owned"]
_NAMED = ("instance_type", "model", "capacity_type", "region", "zone", "pool", "cluster")


def _model_name(text: str) -> str:
    product = parse_product(text)
    if product.profile or product.shared:
        raise InputError("model", text, f"a whole board, such as {product.model}: slices follow their board")
    return product.model


ModelName = Annotated[Text, checked(_model_name)]


def _labels(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        raise wrong(value, "at least one label, or no labels key at all")
    return value


class Match(Validity):
    """The nodes and the time a row applies to. A key that is left out matches everything."""

    instance_type: Text | None = Field(None, description="text, as in node.kubernetes.io/instance-type")
    model: ModelName | None = Field(None, description="a GPU model, such as H100 or its product label")
    capacity_type: CapacityType | None = Field(None, description="on-demand, spot, reserved or owned")
    region: Text | None = Field(None, description="text, as in topology.kubernetes.io/region")
    zone: Text | None = Field(None, description="text, as in topology.kubernetes.io/zone")
    pool: Text | None = Field(None, description="text, the name of a node pool")
    cluster: Text | None = Field(None, description="text, the name of a cluster")
    labels: Annotated[dict[Text, Text] | None, BeforeValidator(_labels)] = Field(
        None, description="a mapping of node labels to values, all of which the node must have"
    )

    @cached_property
    def constraints(self) -> dict[str, str]:
        """Everything a node must be: ``{"model": "H100", "region": "eu-west-1", "label:rack": "r1"}``."""
        named = {name: value for name in _NAMED if (value := getattr(self, name)) is not None}
        return named | {f"label:{name}": value for name, value in (self.labels or {}).items()}

    @property
    def key(self) -> tuple[str, str]:
        """The look-up key: instance type before model, before neither."""
        for name in ("instance_type", "model"):
            if name in self.constraints:
                return name, self.constraints[name]
        return "", ""

    @property
    def rank(self) -> tuple[int, int]:
        """Larger is more specific: the instance type first, then the number of constraints."""
        return ("", "model", "instance_type").index(self.key[0]), len(self.constraints)

    def fits(self, known: Mapping[str, str]) -> bool:
        """Whether a node of which ``known`` holds (see ``known_of``) is one of those meant."""
        return self.constraints.items() <= known.items()


def known_of(facts: NodeFacts, assumed_capacity_type: str) -> dict[str, str]:
    """What is known of a node, in the names of ``Match.constraints``; what nothing says is left out."""
    known = {name: getattr(facts, name) for name in _NAMED}
    known["capacity_type"] = facts.capacity_type or assumed_capacity_type
    known |= {f"label:{name}": value for name, value in facts.labels.items()}
    return {name: value for name, value in known.items() if value}
