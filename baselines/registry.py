"""Finding a policy by its name, or in the file that it was saved to."""

import importlib.resources
from pathlib import Path

from servegym.baselines import load, load_kind, load_named
from servegym.errors import PolicyError, unknown_name
from servegym.policy import Policy
from servegym.simulator.policies import policy as policies

LEARNED = "learned:"  # prefix of a file's path, or of the name of a policy that ships
SHIPPED = "servegym.baselines.learned.policies"


def _find(kind: str, text: str, role: str = "") -> Policy:
    """Return a policy by its name and settings, by "learned:PATH" from a file, or by "learned:NAME".

    role: the role to take, if the file has several policies of the kind.
    """
    if not text.startswith(LEARNED):
        load_named(kind, text.partition(":")[0])
        return policies.get_policy(kind, text)
    load()
    from servegym.baselines.artifact.files import load_artifact  # imported late: it loads all that networks need

    path = learned_path(text)
    artifact = load_artifact(path)
    try:
        return artifact.policies[role] if role in artifact.policies else artifact.policy(kind)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def learned_path(text: str) -> Path:
    """Return the file of "learned:PATH" or "learned:NAME". Raises PolicyError if none ships by that name."""
    name = text.removeprefix(LEARNED)
    if name.endswith(".json"):
        return Path(name)
    if name not in shipped():
        raise PolicyError(unknown_name("learned policy", name, list(shipped())) + ", or the path of a .json file")
    return shipped()[name]


def shipped() -> dict[str, Path]:
    """Return the files of the learned policies that ship, by name, sorted."""
    folder = Path(str(importlib.resources.files(SHIPPED)))
    return {file.stem: file for file in sorted(folder.glob("*.json"))}


def registered() -> list[Policy]:
    """Return all registered policies, kind by kind, sorted by name."""
    load()
    return [policies.get_policy(kind, name) for kind in policies.SIGNATURES for name in policies.policy_names(kind)]


def scheduler(text: str) -> Policy:
    """Return the scheduler "name", "name:key=value,..." or "learned:PATH".

    Raises PolicyError for an unknown name or parameter, and for a file that is not a valid artifact.
    """
    return _find("scheduler", text)


def decode_scheduler(text: str) -> Policy:
    """Return a scheduler as `scheduler` does, or a file's scheduler for decode engines if it has one."""
    return _find("scheduler", text, "decode_scheduler")


def scheduler_names() -> list[str]:
    """Return the names of the registered schedulers, sorted."""
    load_kind("scheduler")
    return policies.policy_names("scheduler")


def router(text: str) -> Policy:
    """Return the router "name", "name:key=value,..." or "learned:PATH". Raises PolicyError as `scheduler` does."""
    return _find("router", text)


def router_names() -> list[str]:
    """Return the names of the registered routers, sorted."""
    load_kind("router")
    return policies.policy_names("router")


def scaler(text: str) -> Policy:
    """Return the scaler "name", "name:key=value,..." or "learned:PATH". Raises PolicyError as `scheduler` does."""
    return _find("scaler", text)


def scaler_names() -> list[str]:
    """Return the names of the registered scalers, sorted."""
    load_kind("scaler")
    return policies.policy_names("scaler")
