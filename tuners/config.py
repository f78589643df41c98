"""The configuration of a training: a dataclass, read from YAML and saved with its results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from servegym.baselines.learned.network import ACTIVATIONS
from servegym.errors import ServegymError, TrainingError
from servegym.evaluation.shipped_files import load_mapping, names_in
from servegym.scenarios.sampling import SPLITS
from servegym.tuners.objective import GAIN_ALONE, Objective

CONFIGS = Path(__file__).parent / "configs"
NAMESPACE = "servegym:"
MOST_SEED = 2**32 - 1  # that libraries take
ALGORITHMS = ("ppo", "maskable-ppo", "cma", "bc")


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """The networks. hidden: sizes of the actor's hidden layers. critic: sizes of the critic's, if there is one.

    base_bias: initial preference for the base's choice: added to its logit; for a ranking, the initial distance between
    the scores of the first and the last slot (before tanh). 0: none. log_std: natural logarithm of the initial standard
    deviation of noise on continuous actions.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    critic: tuple[int, ...] = (64, 64)
    base_bias: float = 3.0
    log_std: float = -1.0


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """The end of a training: after a number of environment steps or minutes, whichever comes first."""

    steps: int | None = None
    minutes: float | None = None


@dataclasses.dataclass(frozen=True)
class ValidationConfig:
    """Validation during training: policy and base policy are compared on scenarios of the validation split, with seeds
    from first_seed on. Training returns the policy with the best mean objective there.
    """

    scenarios: int = 48
    first_seed: int = SPLITS["validation"].start
    every_steps: int | None = None
    every_minutes: float | None = 1.0


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """A training. Raises TrainingError for an invalid configuration.

    environment: an id, such as EngineBatching-v0. arguments: of the environment. scenarios: overrides of the
    environment's default source (`ServingSpec.with_overrides`). mixture: further overrides, one of which each scenario
    has, all equally likely. environments: number in the vector. hyperparameters: of the algorithm, as its class takes
    them. reward_scale: factor on rewards for the algorithm. objective: defines the
    rewards. start: path of a policy to start from, in place of the base. checkpoint_minutes: minutes between
    checkpoints. torch_threads: for the network. file: where it was read from, for errors; not a part of it.
    """

    environment: str
    algorithm: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scenarios: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mixture: tuple[Mapping[str, Any], ...] = ()
    environments: int = 64
    network: NetworkConfig = NetworkConfig()
    hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reward_scale: float = 1.0
    objective: Objective = GAIN_ALONE
    budget: BudgetConfig = BudgetConfig()
    validation: ValidationConfig = ValidationConfig()
    seed: int = 0
    start: str | None = None
    checkpoint_minutes: float = 2.0
    torch_threads: int = 1
    name: str = ""
    file: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", self.environment.removeprefix(NAMESPACE))
        every, limit = self.validation, self.budget.minutes
        checks = [
            ("algorithm", self.algorithm in ALGORITHMS, f"one of {', '.join(ALGORITHMS)}"),
            ("environments", self.environments >= 1, "1 or more"),
            ("network.activation", self.network.activation in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"),
            ("network.hidden", min(self.network.hidden, default=1) >= 1, "sizes of 1 or more"),
            ("network.critic", min(self.network.critic, default=1) >= 1, "sizes of 1 or more"),
            ("network.base_bias", 0 <= self.network.base_bias < math.inf, "0 or more"),
            ("network.log_std", math.isfinite(self.network.log_std), "finite"),
            ("reward_scale", 0 < self.reward_scale < math.inf, "above 0"),
            ("objective.attainment", 0 <= self.objective.attainment < math.inf, "0 or more"),
            ("objective.cost", 0 <= self.objective.cost < math.inf, "0 or more"),
            ("budget", self.budget != BudgetConfig(), "steps or minutes, or both"),
            ("budget.steps", self.budget.steps is None or self.budget.steps >= 1, "1 or more"),
            ("budget.minutes", limit is None or 0 < limit < math.inf, "above 0, and finite"),
            ("validation.scenarios", self.validation.scenarios >= 2, "2 or more"),
            ("validation.first_seed", self.validation.first_seed >= 1, "1 or more"),
            ("validation.every_steps", every.every_steps is None or every.every_steps >= 1, "1 or more"),
            (
                "validation.every_minutes",
                every.every_minutes is None or 0 < every.every_minutes < math.inf,
                "above 0, and finite",
            ),
            ("seed", 0 <= self.seed <= MOST_SEED, f"from 0 to {MOST_SEED}"),
            ("checkpoint_minutes", 0 < self.checkpoint_minutes < math.inf, "above 0, and finite"),
            ("torch_threads", self.torch_threads >= 1, "1 or more"),
        ]
        for path, holds, right in checks:
            if not holds:
                value: Any = self
                for part in path.split("."):
                    value = getattr(value, part)
                raise TrainingError(f"{path} is {as_plain(value)!r}; it should be {right}")

    def replaced(self, **changes: Any) -> TrainingConfig:
        """This training with other values; None: unchanged. steps or minutes replace the whole budget."""
        budget = BudgetConfig(changes.pop("steps", None), changes.pop("minutes", None))
        given = {key: value for key, value in changes.items() if value is not None}
        if budget != BudgetConfig():
            given["budget"] = budget
        return dataclasses.replace(self, **given)

    def to_json(self) -> dict[str, Any]:
        return as_plain(self)


def load_config(name: str | Path) -> TrainingConfig:
    """Load the training of a YAML file, or one that ships, by name. Raises TrainingError."""
    document, path = load_mapping(name, CONFIGS, "training", "environment and algorithm", TrainingError)
    with errors_of(str(path)):
        config: TrainingConfig = from_plain(TrainingConfig, document, "")
    return dataclasses.replace(config, name=config.name or path.stem, file=str(path))


@contextlib.contextmanager
def errors_of(file: str) -> Iterator[None]:
    """Name the file of a configuration in errors inside the with block. file: "" where there is none."""
    try:
        yield
    except ServegymError as error:
        if not file:
            raise
        raise type(error)(f"{file}: {error}") from None


def config_names() -> list[str]:
    """Names of the trainings that ship."""
    return names_in(CONFIGS)


def to_text(config: TrainingConfig) -> str:
    """Write as YAML, which `load_config` reads back."""
    return yaml.safe_dump(config.to_json(), sort_keys=False, allow_unicode=True)


def as_plain(value: Any) -> Any:
    """Convert a configuration, or a part of it, to the types of YAML and JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.compare
        }
    if isinstance(value, Mapping):
        return {key: as_plain(item) for key, item in value.items()}
    return [as_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_plain(kind: Any, document: Any, where: str, error: type[ServegymError] = TrainingError) -> Any:
    """Convert YAML or JSON to a type: a dataclass, a mapping or tuple of one type, a number, a text, or a union of
    these.

    where: place in the document, for errors. Raises `error`.
    """
    if kind is Any:
        return document
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_of(kind, document, where, error)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if document is None and type(None) in arguments:
            return None
        kinds = [argument for argument in arguments if argument is not type(None)]
        return from_plain(kinds[0], document, where, error)
    if origin is tuple and isinstance(document, list | tuple):
        return tuple(from_plain(arguments[0], item, f"{where}[{i}]", error) for i, item in enumerate(document))
    if origin is Mapping and isinstance(document, Mapping):
        return {str(key): from_plain(arguments[1], item, f"{where}.{key}", error) for key, item in document.items()}
    if kind is float and isinstance(document, str):
        document = _number_of(document)
    if kind is float and isinstance(document, int) and not isinstance(document, bool):
        return float(document)
    wanted = origin or kind
    if not isinstance(document, wanted) or (isinstance(document, bool) and wanted is not bool):
        names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list"}
        raise error(f"{where} is {document!r}; it should be {names.get(wanted, 'keys with values')}")
    return document


def _dataclass_of(kind: type, document: Any, where: str, error: type[ServegymError]) -> Any:
    if not isinstance(document, Mapping):
        raise error(f"{where} is {document!r}; it should be keys with values")
    hints, prefix = typing.get_type_hints(kind), f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.compare}
    if unknown := [key for key in document if key not in fields]:
        raise error(f"{prefix}{unknown[0]}: unknown key; known are {', '.join(fields)}")
    needed = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in document]:
        raise error(f"{prefix}{missing[0]} is missing")
    return kind(**{key: from_plain(hints[key], value, f"{prefix}{key}", error) for key, value in document.items()})


def _number_of(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
