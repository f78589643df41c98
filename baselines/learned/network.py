"""Networks of dense layers: their shape, and their weights in the order in which `forward` reads them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from servegym.baselines.learned.forward import HEADER, forward_once
from servegym.baselines.observations.fields import Layout
from servegym.errors import PolicyError
from servegym.policy import Weights

KINDS = ("dense", "shared", "joint")  # in the order of forward.DENSE, SHARED_BY_SLOTS, JOINT
ACTIVATIONS = ("tanh", "relu")
OUTPUTS = ("plain", "tanh")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The shape of a network. Raises PolicyError for an unsupported kind, size or function.

    kind: dense: an observation of `whole` numbers -> `outputs` numbers. shared: for each of `slots` slots, the `whole`
    numbers and its own `slot` numbers -> `outputs` numbers, with the same weights for all slots. joint: as shared, with
    an empty slot too; its outputs are those of the empty slot without the first one, then the first output of each
    slot. hidden: sizes of the hidden layers. activation: after each of them. output: function applied to the outputs.
    """

    kind: str
    whole: int
    outputs: int
    hidden: tuple[int, ...] = (64, 64)
    slot: int = 0
    slots: int = 0
    activation: str = "tanh"
    output: str = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name, known in (("kind", KINDS), ("activation", ACTIVATIONS), ("output", OUTPUTS)):
            if getattr(self, name) not in known:
                raise PolicyError(f"network: {name} is {getattr(self, name)!r}; it should be one of {', '.join(known)}")
        least = {"whole": 1, "outputs": 1, "slot": int(self.has_slots), "slots": int(self.has_slots)}
        sizes = {name: getattr(self, name) for name in least} | {f"hidden[{i}]": n for i, n in enumerate(self.hidden)}
        for name, size in sizes.items():
            lowest = least.get(name, 1)
            if not isinstance(size, int) or isinstance(size, bool) or size < lowest:
                raise PolicyError(f"network: {name} is {size!r}; it should be a whole number of {lowest} or more")
        if not self.has_slots and (self.slot or self.slots):
            raise PolicyError("network: a dense network has no slots; slot and slots should be 0")

    @property
    def has_slots(self) -> bool:
        return self.kind != "dense"

    @property
    def is_shared(self) -> bool:
        return self.kind == "shared"

    @property
    def is_joint(self) -> bool:
        return self.kind == "joint"

    @property
    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        return list(itertools.pairwise((self.whole + self.slot, *self.hidden, self.outputs)))

    @property
    def count(self) -> int:
        """Number of weights and biases."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def observation_size(self) -> int:
        return self.whole + self.slots * self.slot

    @property
    def output_size(self) -> int:
        """Number of outputs over all slots, with those of the empty slot in a joint network."""
        if self.is_joint:
            return self.outputs - 1 + self.slots
        return self.outputs * (self.slots if self.is_shared else 1)

    @property
    def room(self) -> int:
        """Size of the working memory of `forward`, in float64s."""
        return 4 * max(outputs for _, outputs in self.layers)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "hidden": list(self.hidden)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Shape:
        """Read a shape from JSON. Raises PolicyError for missing, unknown or invalid fields."""
        known = {field.name for field in dataclasses.fields(Shape)}
        if wrong := sorted(known ^ set(document)):
            raise PolicyError(f"network: {', '.join(wrong)}: should be exactly {', '.join(sorted(known))}")
        return Shape(**document)

    @staticmethod
    def shared_by(layout: Layout, outputs: int = 1, kind: str = "shared", **more: Any) -> Shape:
        """Shape of a network with `outputs` numbers for each slot of an observation, or of a joint one."""
        whole, slot = len(layout.whole_fields), len(layout.slot_fields)
        return Shape(kind, whole, outputs, slot=slot, slots=layout.slots, **more)

    @staticmethod
    def dense_on(layout: Layout, outputs: int, **more: Any) -> Shape:
        """Shape of a network with `outputs` numbers for a whole observation."""
        return Shape("dense", layout.size, outputs, **more)


@dataclasses.dataclass(frozen=True)
class Network:
    """A network: its shape and its weights, float64[shape.count].

    Order: for each layer the weights input by input (the transpose of PyTorch's `weight`), then the biases. Raises
    PolicyError for a wrong number of weights, or one that is not finite.
    """

    shape: Shape
    weights: Weights

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Weights):
            object.__setattr__(self, "weights", Weights(self.weights))
        if len(self.weights) != self.shape.count:
            raise PolicyError(f"network: {len(self.weights)} weights; its shape has {self.shape.count}")

    @staticmethod
    def zeros(shape: Shape) -> Network:
        return Network(shape, Weights(np.zeros(shape.count)))

    @staticmethod
    def random(shape: Shape, rng: np.random.Generator, scale: float = 1.0) -> Network:
        """Weights from a normal distribution with standard deviation scale / sqrt(inputs), biases 0."""
        layers = [(rng.normal(0.0, scale / np.sqrt(i), (o, i)), np.zeros(o)) for i, o in shape.layers]
        return Network.from_layers(shape, layers)

    @staticmethod
    def from_layers(shape: Shape, layers: Sequence[tuple[Any, Any]]) -> Network:
        """Build a network from (float[outputs, inputs], float[outputs]) of each layer, as PyTorch stores them."""
        if len(layers) != len(shape.layers):
            raise PolicyError(f"network: {len(layers)} layers; its shape has {len(shape.layers)}")
        parts = []
        for i, ((weight, bias), (inputs, outputs)) in enumerate(zip(layers, shape.layers, strict=True)):
            for what, numbers, wanted in (("weight", weight, (outputs, inputs)), ("bias", bias, (outputs,))):
                if np.shape(numbers) != wanted:
                    raise PolicyError(f"network: {what} {i} has shape {np.shape(numbers)}; it should be {wanted}")
            parts += [np.asarray(weight, "f8").T.ravel(), np.asarray(bias, "f8")]
        return Network(shape, Weights(np.concatenate(parts)))

    @property
    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(float64[outputs, inputs], float64[outputs]) of each layer."""
        layers, at = [], 0
        for inputs, outputs in self.shape.layers:
            end = at + inputs * outputs
            weight, bias = self.weights.values[at:end], self.weights.values[end : end + outputs]
            layers.append((weight.reshape(inputs, outputs).T, bias))
            at = end + outputs
        return layers

    @property
    def numbers(self) -> np.ndarray:
        """float64[...]: header and weights for `forward`, which needs `shape.room` more numbers after them."""
        shape, sizes = self.shape, [outputs for _, outputs in self.shape.layers]
        relu, squashed = shape.activation == "relu", shape.output == "tanh"
        count = len(HEADER) + len(sizes) + shape.count
        kind = KINDS.index(shape.kind)
        header = [count, shape.room, kind, relu, squashed, shape.whole, shape.slot, shape.slots, len(sizes)]
        return np.concatenate([np.array([*header, *sizes], "f8"), self.weights.values])

    def __call__(self, observation: np.ndarray, filled: int | None = None) -> np.ndarray:
        """Outputs for an observation, float32[observation_size]: float64[output_size], or float64[slots, outputs] if
        the network is shared."""
        shape, size = self.shape, self.shape.observation_size
        if np.shape(observation) != (size,):
            raise PolicyError(f"network: observation of shape {np.shape(observation)}; it should be ({size},)")
        out = np.zeros(shape.output_size)
        work = np.concatenate([self.numbers, np.zeros(shape.room)])
        forward_once(work, np.asarray(observation, "f4"), shape.slots if filled is None else filled, out)
        return out.reshape(shape.slots, shape.outputs) if shape.is_shared else out
