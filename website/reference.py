"""The reference: a page for each part of the public surface, which mkdocstrings fills from docstrings."""

from __future__ import annotations

import inspect

import servegym
from servegym import errors
from servegym.envs.registration import ENVIRONMENTS
from servegym.evaluation.markdown import narrow_header, row

# By the package that a public name comes from: the page, its title and what is on it.
PARTS = {
    "api": ("simulate", "Simulate", "One call from a trace to figures."),
    "simulator": ("simulator", "Simulator", "What a run is made of, and what it gives."),
    "scenarios": ("scenarios", "Scenarios in words", "A `ServingSpec` and its parts ([how to write one](../spec.md))."),
    "baselines": ("policies", "Policies", "Schedulers, routers and scalers by name."),
    "traces": ("traces", "Traces", "Requests from files and generators ([how](../traces.md))."),
    "latency_models": ("latency_models", "Latency models", "Profiles of devices ([how](../latency_models.md))."),
    "evaluation": ("evaluation", "Evaluation", "Checks of a policy ([how](../evaluation.md))."),
    "tuners": ("training", "Training", "Networks of your own as policies ([how](../training.md))."),
}
ENVIRONMENT_PARTS = (
    "servegym.envs.env.ServingEnv",
    "servegym.envs.vector.ServingVectorEnv",
    "servegym.envs.sb3.Sb3VecEnv",
    "servegym.envs.parallel.ServingParallelEnv",
    "servegym.envs.agents",
    "servegym.tuners.datasets.export",
)


def reference_pages() -> dict[str, str]:
    """The Markdown of each page of the reference, by its path in the site."""
    public = {name: home for name, home in servegym._HOMES.items() if home != "errors"}
    pages, table = {}, narrow_header("name", "")
    for package, (page, title, words) in PARTS.items():
        names = [name for name, home in public.items() if home.split(".")[0] == package]
        homes = [f"servegym.{public[name]}.{name}" for name in names]
        pages[f"reference/{page}.md"] = page_of(title, words, homes)
        table += [row(f"[`{name}`]({page}.md)", first_sentence(getattr(servegym, name))) for name in names]
    classes = [f"servegym.envs.{module}.{env}" for _, module, env in ENVIRONMENTS]
    pages["reference/environments.md"] = page_of(
        "Environments", "For Gymnasium and others ([how](../environments.md)).", [*classes, *ENVIRONMENT_PARTS]
    )
    raised = [
        f"servegym.errors.{name}"
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__ and name[0] != "_"
    ]
    pages["reference/errors.md"] = page_of("Errors", "What is raised, and for what.", raised)
    pages["reference/index.md"] = "\n".join(
        [
            "# Reference", "",
            "What `import servegym` has. Beside it: [environments](environments.md) and [errors](errors.md). "
            "Commands say what they take: `servegym --help`.", "",
            *table, "",
        ]
    )  # fmt: skip
    return pages


def page_of(title: str, words: str, names: list[str]) -> str:
    """A page of the reference with an entry for each name."""
    return "\n\n".join([f"# {title}", words, *(f"::: {name}" for name in names)]) + "\n"


def first_sentence(value: object) -> str:
    """What a docstring begins with; nothing for a dataclass whose docstring is its signature."""
    text = inspect.getdoc(value) or ""
    first = text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return "" if first.startswith(f"{getattr(value, '__name__', '')}(") else first
