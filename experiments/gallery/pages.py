"""The pages of the gallery, from the registry, the docstrings, the fields of observations and what was measured."""

import inspect
import re
from typing import Any

import gymnasium as gym

from experiments.gallery.players import players_of
from experiments.pages.words import escaped
from servegym.baselines.observations.fields import Field, Layout
from servegym.envs.env import ServingEnv
from servegym.envs.registration import ENVIRONMENTS, headroom_of
from servegym.evaluation.markdown import narrow_header, row
from servegym.scenarios.presets import presets_of

PRESET = "overload"
COMMAND = "python -m experiments.gallery docs/gallery"
INTRO = f"""# Gallery

Each environment at overload, played by its base policy and by another policy on the same requests. A page has the
animation, the spaces, and what it takes to begin.

<!-- written by {COMMAND} -->

"""


def gallery(scores: dict[str, Any]) -> dict[str, str]:
    """Every page by its file name. scores: what `films.measured` gave, by environment."""
    pages, rows = {}, []
    for name, _, _ in ENVIRONMENTS:
        env = gym.make(f"servegym:{name}", disable_env_checker=True).unwrapped
        assert isinstance(env, ServingEnv)
        parts = docstring_parts(env)
        pages[f"{name}.md"] = page(name, env, parts, scores.get(name))
        rows.append(row(f"[{name}]({name}.md)", first_sentence(parts["Description"]), f"![{name}]({name}.avif)"))
    index = "\n".join([*narrow_header("environment", "", "at overload"), *rows])
    return {"index.md": f"{INTRO}{index}\n", **pages}


def page(name: str, env: ServingEnv, parts: dict[str, str], score: dict[str, Any] | None) -> str:
    base, other = players_of(name)
    made = f'import gymnasium as gym\n\nenv = gym.make("servegym:{name}", preset="overload")'
    return "\n".join(
        [
            f"# {name}", "", parts["Description"], "", f"<!-- written by {COMMAND} -->", "",
            f"[![{base.name} and {other.name} on the same episode]({name}.avif)]({name}.avif)", "",
            f"Left `{base.name}`, the base policy, right `{other.name}`, on one held-out episode at overload, at the "
            "same times; click it for its full size. [What a picture shows](../environments.md#to-watch-one).", "",
            *([score_line(score, base.name, other.name), ""] if score else []),
            *([to_beat(room, base.name), ""] if (room := headroom_of(name).get(PRESET)) else []),
            "## Begin", "", "```python", made, "observation, info = env.reset(seed=0)",
            'observation, reward, terminated, truncated, info = env.step(info["base_action"])', "```", "",
            "## Actions", "", parts["Action Space"], "",
            "## Observations", "", parts["Observation Space"].split(";")[0].rstrip(".") + "; by default:", "",
            observation_tables(env.interface.layout), "",
            "## Rewards", "", parts["Rewards"], "", parts["Episode End"], "",
            "## Arguments", "", parts["Arguments"], "",
            "## Presets", "", *narrow_header("`preset=`", "what it is for"),
            *(row(f"`{key}`", preset.doc) for key, preset in presets_of(name).items()), "",
        ]
    )  # fmt: skip


def docstring_parts(env: ServingEnv) -> dict[str, str]:
    """The sections of the docstring of an environment's class by title."""
    found = re.split(r"^## (.+)\n", inspect.getdoc(type(env)) or "", flags=re.MULTILINE)
    linked = {title: re.sub(r"docs/(\w+\.md)", r"[\1](../\1)", text.strip()) for title, text in pairs(found[1:])}
    return {title: re.sub(r"\n- ", "\n- ", text) for title, text in linked.items()}


def pairs(items: list[str]) -> list[tuple[str, str]]:
    return list(zip(items[::2], items[1::2], strict=True))


def observation_tables(layout: Layout) -> str:
    """The numbers of an observation, those of the whole and those of a slot."""
    text = f"`Box({layout.size},)`: {len(layout.whole_fields)} numbers of `{layout.whole}`"
    if layout.slots:
        text += f", then {layout.slots} slots of `{layout.slot}` with {len(layout.slot_fields)} each"
    text += f".\n\n{fields_table(layout.whole, layout.whole_fields)}"
    return text + (f"\n{fields_table(layout.slot, layout.slot_fields)}" if layout.slots else "")


def fields_table(part: str, fields: tuple[Field, ...]) -> str:
    rows = (row(f"`{one.name}`", f"{one.low:g} to {one.high:g}", escaped(one.doc)) for one in fields)
    return "\n".join([*narrow_header(part, "bounds", "what"), *rows]) + "\n"


def score_line(score: dict[str, Any], base: str, other: str) -> str:
    """What the two gained on the same episodes."""
    mean, low, high = score["difference"]
    return (
        f"TDG ratio over {score['episodes']} such episodes: `{base}` {score['base']:.3f}, `{other}` "
        f"{score['other']:.3f}, difference {mean:+.4f} ({low:+.4f} to {high:+.4f}, 95 %)."
    )


def to_beat(room: dict[str, Any], base: str) -> str:
    """What somebody has to be ahead of here."""
    ahead = room["rule"] > room["base"]
    first = f"`{room['best_rule']}`, the best rule that ships, with {room['rule']:.3f}" if ahead else ""
    then = f"`{base}`, the base, with {room['base']:.3f}"
    return (
        f"**To beat at overload**: {f'{first}, and {then}' if ahead else then}. "
        f"Random actions have {room['random']:.3f}, the best runs found {room['found']:.3f} (on 8 other episodes; "
        "[every preset](../results/environments.md))."
    )


def first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].rstrip(".")
