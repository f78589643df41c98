"""Policies derived from a base policy by a network."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from servegym.baselines.learned.network import Network
from servegym.baselines.observations.fields import Layout
from servegym.errors import PolicyError
from servegym.policy import Compiled, Policy, Weights

PREFIX = "learned:"


@dataclasses.dataclass(frozen=True)
class LearnedPolicy(Policy):
    """A base policy whose decisions a network changes or, if network is None, a caller that writes its memory.

    head: what the network decides: "controller", "ranking", "scheduling", "routing" or "scaling". layout: name and
    contents of its observation. controls: parameters of the base that a controller sets; ("refuse",) of a router that
    may refuse requests.
    """

    head: str = ""
    base: Policy | None = None
    network: Network | None = None
    layout: Layout | None = None
    controls: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        base = None if self.base is None else self.base.to_json()
        return super().to_json() | {"way": self.head, "base": base, "controls": list(self.controls)}


def derived(
    head: str, base: Policy, name: str, function: Compiled, weights: np.ndarray, memory: int, **more: Any
) -> LearnedPolicy:
    """Return a policy with the base's kind and parameters, whose settings are the defaults, and its own function."""
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(Policy)}
    fields |= {"function": function, "weights": Weights(weights), "memory": memory, "head": head}
    fields |= {"settings": {}, "rank_then_filter": None}
    fields["name"] = name or f"{PREFIX}{base.name}"
    fields["doc"] = f"{base.label}, changed by a network ({head})."
    chosen = base.chosen()
    fields["parameters"] = tuple(
        dataclasses.replace(parameter, default=chosen[parameter.name]) for parameter in base.parameters
    )
    return LearnedPolicy(**{**fields, **more}, base=base)


def check_base(base: Policy, kind: str) -> None:
    """Raise PolicyError for a base of another kind, or one that is a learned policy."""
    if base.kind != kind:
        raise PolicyError(f"{base.name} is a {base.kind}; the base should be a {kind}")
    if len(base.weights) or base.memory:
        raise PolicyError(f"{base.name} is a learned policy itself; the base should not be one")


def check_network(network: Network, layout: Layout, outputs: int, what: str, kind: str) -> None:
    """Raise PolicyError for a network that does not match its observation and outputs. kind: of `Shape`."""
    shape = network.shape
    if shape.kind != kind:
        raise PolicyError(f"{what}: the network is {shape.kind}; it should be {kind}")
    sizes = (shape.whole, shape.slot, shape.slots)
    slots = (len(layout.whole_fields), len(layout.slot_fields), layout.slots)
    wanted = (layout.size, 0, 0) if kind == "dense" else slots
    if sizes != wanted:
        raise PolicyError(f"{what}: the network takes {sizes} (whole, slot, slots); its observation has {wanted}")
    if shape.outputs != outputs:
        raise PolicyError(f"{what}: the network has {shape.outputs} outputs; it should have {outputs}")


def half(float32s: int) -> int:
    """Return how many 8-byte numbers hold this many float32s."""
    return (float32s + 1) // 2
