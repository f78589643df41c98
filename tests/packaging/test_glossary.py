"""One name for each thing: what has been renamed is no name in the product's code any more (docs/glossary.md)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("simulator", "latency_models", "traces", "baselines", "scenarios", "envs", "evaluation", "tuners",
           "adapters", "src/servegym/cli", "src/servegym/export")  # fmt: skip
# Earlier names, and what they are called now.
RENAMED = {
    "emitted_tokens": "num_output_tokens", "holder_budget": "max_num_seqs", "token_budget": "max_num_batched_tokens",
    "holders": "running", "most_holders": "max_num_seqs", "EVICT_FOR_HOLDERS": "EVICT_FOR_RUNNING",
    "preemptions": "evictions or suspensions", "Turns": "SessionDependencies", "consider": "lookup_prefix",
    "look_away": "cancel_prefix_lookup", "take_memory": "evict_request",
    "who_counts_on_nothing": "first_with_lost_prefix", "token_is_out": "commit_token", "set_out": "stream_started",
    "inbox_of": "unrouted_queue", "turn_round": "reverse_ring", "halves": "rank_then_filter",
    "rank_worthless": "rank_hopeless", "placed": "with_policy", "Said": "JobOutput", "SAID": "TITLE_FIELDS",
    "said_of": "validation_provenance or label_of", "with_words": "with_overrides",
    "has_room": "can_admit, queue_has_space or has_free_blocks", "sort_by_turns": "sort_by_previous_order",
    "NOBODY": "NO_TURN, NO_POSITION or NO_CLIENT", "Slot": "attempts", "slot_of": "row_of or index_of",
    "free_slots": "free_rows", "before_newcomer": "before_waiting", "make_room_for_newcomer": "make_room_to_admit",
    "newcomers_room": "room_for_waiting", "give_up_kept": "drop_offloaded", "give_up_named": "free_named_blocks",
    "out_of": "emitted_of", "take_in": "enter_front_end", "bring_in": "load_batch_adapters",
    "has_nothing": "has_no_work", "tell_sessions": "set_session_deadlines", "earn_sessions": "add_session_gains",
    "prompts_apart": "prompts_by_adapter", "send_off": "return_to_pool", "NOBODY_URGENT": "NONE_URGENT",
}  # fmt: skip
ANY = re.compile(rf"\b({'|'.join(RENAMED)})\b")
# Where the earlier names are still understood.
ALIASES = {"simulator/policies/parameters.py"}


def names_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each identifier of a module, and each text that could be a field's name, with its line."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                yield name, line
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "_" in node.value:
            yield node.value, line


def earlier_names(source: str) -> list[str]:
    """The earlier names in a module, each with its line and today's name."""
    if not ANY.search(source):
        return []
    return [
        f"line {line}: {name} is called {RENAMED[name]}"
        for name, line in names_in(ast.parse(source))
        if name in RENAMED
    ]


@pytest.mark.parametrize("source", [
    "def take_memory(): pass", "x = engine.holders", "f(token_budget=3)", 'fields = [("emitted_tokens", "i4")]',
    "from a import Turns", "limits.holder_budget = 2",
])  # fmt: skip
def test_earlier_names_are_found(source):
    assert earlier_names(source)


def test_no_thing_has_two_names():
    found = {
        str(path.relative_to(ROOT)): names
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if str(path.relative_to(ROOT)) not in ALIASES and (names := earlier_names(path.read_text("utf-8")))
    }
    assert not found


@pytest.mark.parametrize("folder", ["adapters", "tuners/search", "simulator"])
def test_only_observations_have_slots(folder):
    """And semantic scheduling, whose paper calls the places of a batch so."""
    found = [
        f"{path.relative_to(ROOT)}, line {line}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name, line in names_in(ast.parse(path.read_text("utf-8")))
        if re.search(r"(^|_)slots?(_|$)", name) and name != "__slots__"
    ]
    assert not found


def test_the_glossary_has_todays_names_of_what_users_see():
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    for name in ("num_output_tokens", "max_num_seqs", "max_num_batched_tokens", "evictions", "suspensions"):
        assert f"`{name}`" in glossary
