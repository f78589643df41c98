"""Which lines of the product came with features since the goal of 60,000 was set, and what the rest makes up.

python -m experiments.pages.code_account [CHECKOUT]

Every commit since `BASE` counts for the feature that `FEATURES` names it under: the lines of Python that it added to
the product, less those that it deleted. All other commits count for what was there before: names, parts, hooks, moves,
deletions, corrections, help texts and tables of commands. A file that moves out of the product is deleted from it.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.pages.code_table import APART, ROOT, by_folder
from servegym.errors import ExperimentError
from servegym.evaluation.markdown import table

BASE = "99ca3050"  # the last commit before the work on names, sub-packages, hooks and studies
FEATURES: Mapping[str, str] = {
    "devices from any `config.json`, and by the name of a model and a GPU": (
        "32f0ee5e 262b5d6f a5cc4816 f015c4f5 96e8327e f790127a 0723d7ef e8c1bf0e 989f7ac8"
    ),
    "`recommend`": "8cf09ac8 7578c88f 2fc758f3 0f4e34db dc13aed3 97202871 1d044921 38b3c2d3 f01f5845 3bed2c2d",
    "KV cache groups, states, prefix caching and KV events with them": (
        "1d32fed6 e000a479 115b0bd8 9269980d 64a1e791 ce33d755 422889d9 0e5e4cfb 4fc16655 a882d01b 9166316a"
    ),
    "endpoint picker for gateways": "fbad16ab 584465ea d13a3176",
    "LoRA adapters, in `lora-affinity` and `predicted-cost`, and before live engines": (
        "a42c87c3 b6cba5f1 f562390a bb602e42 a4e6c0f4 c7cc355c 040d20ec 8afcd67f"
    ),
    "sessions as a whole, their gain and observations, `plas`, Tempo's gain": "a3c6f0b8 6c4b31ac 3eb1d41e",
    "engines that change their role and `pd-ratio`": (
        "53fa295c bfdcc272 82b9a8db 180b3eb2 e4782fda 28cf33f6 3a35bdbe 05f55939 1cb2148c 502eaf55"
    ),
    "`predicted-cost`, `ClusterRouting-v1` and what is learned upon it": (
        "8fa6aaa9 41b46c28 c23e540b a9d07ae7 1d79dbde 27002e42"
    ),
    "scaler `forecast` and `TierScaling-v1`": "579b0c0f e2d35cfa df90b6cf",
    "readers of Dynamo, OpenTelemetry, GuideLLM and inference-perf": "10f32d4c 3a73bc94",
    "`slos-serve`": "c08c983c",
    "routers that refuse": "a690ea3a 601cb331 7da6c176 6dcc0852",
    "kernels in wheels and quicker starts": (
        "fe482630 d6a585d8 5db5dc9a 8320d4df 7d4b06d2 4e4a6423 b91c183e 4e1a22da 80d7100d 75e7bdd7 "
        "c83a7791 a2a398ea 586ab7d8 4af8a4c3 becb617b"
    ),
    "sessions on many engines in a third of the time": "c1cd915e 327fdd11 bc7611dd",
    "`lost-gain`": "cb0da22d e8f9d297 b7332cfd 80ffd36d b7f8dbf5 7c4c72f2",
    "PolyServe's margin and `table-shares`": "8285a0c1 68a48268",
    "batches that end at the device's steps": "bde0bc9a daa541f2 89fa5e9e e77721ba e70f600e 3500a941 22f303e5 7090ccb5",
    "splits of traces with sessions, loads of mixed fleets": "8de55d7c",
    "`sb3_policy` and `credit_requests`, baselines beside a score, warnings of `recommend`, suggestions": (
        "1e56ba45 14944a76 8d604a86 d87741df 26a83692"
    ),
    "the search of routers": "6d68628f",
    "`servegym policies`": "4a1e023e",
    "trainings on a mixture of scenarios": "8458719f",
    "engines behind the proxy with latency profiles of their own": "b5726777",
    "`calibrate --same-total` and a device's CPU overhead": "28eba3f5 849e42eb 5b3c73aa",
}


class Change(NamedTuple):
    """What a commit did to the product's Python. new: files that it added."""

    commit: str
    title: str
    added: int
    deleted: int
    new: tuple[str, ...]


def git(root: Path, *arguments: str) -> str:
    """What git prints. Raises ExperimentError where it fails, such as outside a clone with history."""
    done = subprocess.run(("git", "-C", str(root), *arguments), capture_output=True, text=True)
    if done.returncode:
        raise ExperimentError(f"git {arguments[0]} failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def changes(root: Path, base: str, folders: Sequence[str]) -> list[Change]:
    """Commits since `base`, oldest first, of Python below these folders; moves among them add and delete nothing."""
    asked = ("log", "--reverse", "-M", "--raw", "--numstat", "--format=@%h\t%s", "--abbrev=8", f"{base}..HEAD", "--")
    found: list[Change] = []
    for line in git(root, *asked, *(f"{folder}/**.py" for folder in folders)).splitlines():
        if line.startswith("@"):
            commit, title = line[1:].split("\t", 1)
            found.append(Change(commit, title, 0, 0, ()))
        elif line.startswith(":"):
            _, _, _, _, status, *paths = line.split()
            if status == "A":
                found[-1] = found[-1]._replace(new=(*found[-1].new, paths[0]))
        elif line:
            added, deleted, _ = line.split("\t")
            last = found[-1]
            found[-1] = last._replace(added=last.added + int(added), deleted=last.deleted + int(deleted))
    return found


def account(found: Sequence[Change], features: Mapping[str, str]) -> dict[str, list[Change]]:
    """The commits of each feature, and of "", which are of none. Raises ExperimentError for one that is not there."""
    by_commit = {change.commit: change for change in found}
    named = {commit: feature for feature, commits in features.items() for commit in commits.split()}
    if missing := sorted(set(named) - set(by_commit)):
        raise ExperimentError(f"no commit {missing[0]} since the goal was set changes the product")
    of: dict[str, list[Change]] = {feature: [] for feature in (*features, "")}
    for change in found:
        of[named.get(change.commit, "")].append(change)
    return of


def net(of: Sequence[Change]) -> int:
    return sum(change.added - change.deleted for change in of)


def page(root: Path, base: str, features: Mapping[str, str]) -> str:
    """A row a feature, and what was there before it: then, and now."""
    folders = {name: of["lines"] for name, of in by_folder(root).items() if name not in APART}
    now = sum(folders.values())
    of = account(changes(root, base, tuple(folders)), features)
    rest = of.pop("")
    new = sum(net(commits) for commits in of.values())
    rows = [
        [feature, str(len(commits)), f"{sum(len(one.new) for one in commits):,}", f"{net(commits):,}"]
        for feature, commits in sorted(of.items(), key=lambda item: -net(item[1]))
    ]
    sums = [
        ["**new features**", "", "", f"**{new:,}**"],
        [f"what was there at {base}, then", "", "", f"{now - new - net(rest):,}"],
        ["what all other commits did to it", str(len(rest)), "", f"{net(rest):+,}"],
        ["**what was there, now**", "", "", f"**{now - new:,}**"],
        ["all of the product", "", "", f"{now:,}"],
    ]
    return table(("what", "commits", "new files", "lines"), [*rows, *sums])


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    print(page(root, BASE, FEATURES), end="")


if __name__ == "__main__":
    main()
