"""Texts and pictures of simulations by hand: a batch takes 1 s + 1 s a token, a block holds one token."""

import dataclasses
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from servegym.baselines.learned.ranking import scored
from servegym.baselines.learned.scheduling import steered
from servegym.baselines.registry import router, scheduler
from servegym.envs.agents import RandomAgent
from servegym.envs.rendering import ansi, rgb_array, scene_of
from servegym.envs.rendering.picture import HEIGHT, LATE, WIDTH, Canvas
from servegym.envs.rendering.requests import IN_BATCH, SUSPENDED, WAITING, entries_of, rows_of_engine
from servegym.envs.rendering.scene import DECODES, Bar
from servegym.envs.rendering.words import deadline_place, duration, remaining
from servegym.errors import EnvError
from servegym.simulator.features.operators import Operators
from servegym.simulator.fleet.incidents import Incident
from servegym.simulator.inputs.cluster import Cluster, Link
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.records.statuses import AT_BATCHES, AT_ROUTES, DECISION
from servegym.simulator.runs.simulation import Simulation
from tests.envs.small import IDS, make
from tests.simulator.arrays import as_bytes, router_bytes
from tests.simulator.forming import linear
from tests.simulator.scenes import requests, scene


def at(scenario: Scenario, now_s: float, stop_at: int = AT_BATCHES) -> Simulation:
    """The simulation at its first decision at or after a time."""
    simulation = Simulation(scenario)
    while simulation._advance(stop_at) == DECISION:
        if simulation.arrays.status[0].now_s >= now_s:
            return simulation
    raise AssertionError(f"there is no decision after {now_s} s")


def two(**more: Any) -> Scenario:
    """The first is prefilled at 5 s, with two tokens to follow; the second waits from 1 s on, and is late at 4 s."""
    workload = requests(
        arrival_s=[0, 1], prompt_tokens=[4, 3], output_tokens=[3, 2], ttft_slo_s=[6, 3], tpot_slo_s=10, priority=[0, 2]
    )
    return scene(workload, **more)


def many(n: int, **more: Any) -> Scenario:
    """n requests at once, of which half are late from 1 s on."""
    ttft_slo_s = np.where(np.arange(n) % 2, 1.0, 1e6)
    return scene(requests(prompt_tokens=np.full(n, 5), output_tokens=2, ttft_slo_s=ttft_slo_s), **more)


def cluster(n: int, delay_s: float = 0.0, **more: Any) -> Scenario:
    """Requests 0.5 s apart, sent to the engine with the smallest load."""
    workload = requests(arrival_s=np.arange(40) / 2, prompt_tokens=np.full(40, 4), output_tokens=3)
    whole = scene(workload, engines=n, router=router("min-load"), **more)
    return dataclasses.replace(whole, deployment=Cluster((whole.deployment,), signal_delay_s=delay_s))


def disaggregated() -> Scenario:
    """Engines 0 and 1 prefill, 2 and 3 decode; 1 fails at 6 s and 3 is drained. A request's KV travels for 2 s."""
    whole = cluster(4, incidents=(Incident(6.0, 1, "fail"), Incident(6.25, 3, "drain")))
    pool = dataclasses.replace(whole.deployment.pools[0], engines=2)
    pools = tuple(dataclasses.replace(pool, role=role) for role in ("prefill", "decode"))
    return dataclasses.replace(whole, deployment=Cluster(pools, Link(1.0, 2.0)))


def preempted() -> Simulation:
    """A prefill of 8 s is suspended at 4 s for a request that came at 3 s, before the batch of which we stop."""
    workload = requests(arrival_s=[0, 3], prompt_tokens=[7, 1], ttft_slo_s=[100, 10])
    whole = scene(workload, scheduler("flow-prefill"))
    deployment = dataclasses.replace(whole.deployment, operators=Operators(4, np.array([[1.0, 0, 0, 0]])))
    return at(dataclasses.replace(whole, deployment=deployment), 4)


def ended(scenario: Scenario) -> Simulation:
    simulation = Simulation(scenario)
    simulation.run()
    return simulation


SITUATIONS = {
    "start": lambda: Simulation(two()),
    "two": lambda: at(two(), 5),
    "end": lambda: ended(two()),
    "300 queued": lambda: at(many(300), 6),
    "preempted": preempted,
    "cluster at its start": lambda: Simulation(cluster(3)),
    "cluster at a route": lambda: at(cluster(3), 8, AT_ROUTES),
    "cluster at a batch": lambda: at(cluster(3), 8),
    "cluster that hears late": lambda: at(cluster(3, delay_s=1.0), 8, AT_ROUTES),
    "cluster at its end": lambda: ended(cluster(3)),
    "disaggregated": lambda: at(disaggregated(), 8, AT_ROUTES),
    "20 engines": lambda: at(cluster(20), 8, AT_ROUTES),
    "128 engines": lambda: at(cluster(128), 8, AT_ROUTES),
    "300 engines": lambda: at(cluster(300), 8, AT_ROUTES),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_situation_can_be_shown(name: str):
    simulation = SITUATIONS[name]()
    before = as_bytes(simulation.arrays), router_bytes(simulation.router_state)
    text, picture = ansi(simulation), rgb_array(simulation)
    assert max(len(line) for line in text.split("\n")) <= 100 and text.count("\n") < 60
    assert picture.shape == (HEIGHT, WIDTH, 3) and picture.dtype == np.uint8
    assert re.sub(r"\033\[\d+m", "", ansi(simulation, colour=True)) == text
    # The same state looks the same, and looking at it changes nothing.
    assert ansi(simulation) == text and (rgb_array(simulation) == picture).all()
    assert (as_bytes(simulation.arrays), router_bytes(simulation.router_state)) == before


def row(text: str, first: str) -> str:
    """The line of a request or an engine."""
    (line,) = (line for line in text.split("\n") if re.match(rf"[>*]?\s*{first} ", line))
    return line


def cell(simulation: Simulation, e: int, title: str, beside: int = 0) -> Any:
    """What the table of engines has of an engine in a column, or so many columns to the right of it."""
    table = scene_of(simulation).bands[0][0]
    return table.row(e).cells[[column.title for column in table.columns].index(title) + beside]


def test_a_text_of_one_engine():
    text = ansi(at(two(), 5))
    assert "t = 5.000 s" in text and "next batch of engine 0" in text
    # One first token, worth 1, of 5 tokens, each worth 1.
    assert "TDG ratio of the episode so far 0.200; gain so far 1; tokens out that were in time 100.0 %" in text
    assert "D................... KV memory: 0.4 % of 1,000 blocks" in text
    assert "Last batch: 1 requests, 4 tokens, estimated 5.00 s, ended" in text
    assert re.search(r"requests\s+in memory 1; requests waiting 1; next token late 1 of 2", text)
    # The second token of 0 is due at 16; the first of 1 was at 4.
    assert row(text, "0").split() == ["0", "0", "DDDDDDDDDD", "5", "1", "+4", "|========", "11.0", "s"]
    assert row(text, "1").split() == ["1", "2", "........", "0", "of", "3", "0", "<<<<<<|", "late", "1.00", "s"]
    assert (
        text.index("In memory (1)")
        < text.index(row(text, "0"))
        < text.index("Waiting (1)")
        < text.index(row(text, "1"))
    )


def test_late_requests_are_marked_in_the_picture():
    legend = 690

    def late_pixels(simulation: Simulation) -> int:
        colour = np.array([int(LATE[i : i + 2], 16) for i in (1, 3, 5)])
        return int((rgb_array(simulation)[:legend] == colour).all(axis=2).sum())

    start = late_pixels(Simulation(two()))  # the word in the scale of deadlines
    assert late_pixels(at(two(), 5)) > start + 300
    in_time = dataclasses.replace(
        two(), workload=requests(arrival_s=[0, 1], prompt_tokens=[4, 3], output_tokens=[3, 2])
    )
    assert late_pixels(at(in_time, 5)) == start


@pytest.mark.parametrize("done", (0.0, 0.9, 1.0))  # the part below the text: none, one half, all of it
def test_words_in_a_bar_can_be_read_on_every_part(done: float) -> None:
    canvas = Canvas()
    canvas.bar(20, 20, 450, 24, Bar([(done, DECODES)], words="254 ms so far"))
    shown = np.asarray(canvas.image, "i4")[22:42, 21:468].mean(axis=2)
    ground = shown[0]  # of each column, above the letters
    letters = np.flatnonzero(np.abs(shown - ground).max(axis=0) > 120)
    assert len(letters) > 30 and letters[-1] - letters[0] > 60


def test_a_policy_that_actions_change_has_its_own_name() -> None:
    base = scheduler("slide-batching:gamma=2")
    for policy in (base, scored(base, 4), steered(base, 4)):
        assert ansi(at(two(scheduler=policy), 5)).startswith("engine 0, slide-batching:gamma=2 ")


def test_a_picture_changes_with_the_state():
    simulation = Simulation(cluster(2))
    pictures = []
    while simulation._advance(AT_ROUTES) == DECISION:
        pictures.append(rgb_array(simulation).tobytes())
    assert len(pictures) == 40 and len(set(pictures)) == 40


def test_what_is_hidden_is_not_shown():
    # Longer answers, and a device that takes longer than estimated: what has not come out yet is not seen.
    def shown(simulation: Simulation) -> Any:
        # All but the first figure, the TDG ratio.
        scenes = [scene_of(simulation, engine) for engine in (None, 0, 1)]
        tables = [table for one in scenes for band in one.bands for table in band]
        rows = [[table.title, *map(table.row, range(table.count))] for table in tables]
        others = {"figures": [], "bands": [], "deadlines": ("", np.zeros(0))}
        figures = [one.figures[1:] for one in scenes], [one.deadlines for one in scenes]
        return str((rows, figures, [dataclasses.replace(one, **others) for one in scenes]))

    scenario = cluster(2)
    (pool,) = scenario.deployment.pools
    workload = requests(arrival_s=np.arange(40) / 2, prompt_tokens=np.full(40, 4), output_tokens=9)
    slow = dataclasses.replace(pool, device=linear(c_p=3, b_d=3, t_c=3))
    others = dataclasses.replace(scenario, workload=workload, deployment=Cluster((slow,)))
    now_s = 4.5  # the first batches end at 5 s
    assert shown(at(scenario, now_s, AT_ROUTES)) == shown(at(others, now_s, AT_ROUTES))
    assert shown(at(scenario, now_s, AT_ROUTES)) != shown(at(others, now_s + 1, AT_ROUTES))


def test_a_long_queue_is_cut_and_counted():
    simulation = at(many(300, total_blocks=20), 6)
    queue = rows_of_engine(simulation, 0)
    waiting = queue[queue["state"] == WAITING]
    text = ansi(simulation)
    assert len(queue) == 300 and len(waiting) > 280
    rest = waiting["late"][12:]
    assert f"+ {len(rest)} more, {rest.sum()} of them late" in text and rest.sum() > 100


def test_an_engine_of_a_cluster():
    simulation = at(cluster(3), 8, AT_ROUTES)
    queued = simulation.arrays.queues[1][: simulation.arrays.engines[1].queue_length]
    text = ansi(simulation, engine=1)
    assert text.startswith("engine 1, edf") and len(queued) > 0
    assert rows_of_engine(simulation, 1)["index"].tolist() == queued.tolist()
    assert "Running batch: " in text and f"{entries_of(simulation, 1)['tokens'].sum()} tokens" in text
    assert rgb_array(simulation, engine=1).tobytes() != rgb_array(simulation).tobytes()
    for show in (ansi, rgb_array):
        with pytest.raises(EnvError, match="engine 3: it should be 0 to 2"):
            show(simulation, engine=3)


def test_a_text_of_a_disaggregated_cluster():
    # At 5 s engine 0 has prefilled request 0 and sends its 4 tokens to engine 2.
    simulation = at(disaggregated(), 6.5, AT_ROUTES)
    text, engines = ansi(simulation), simulation.arrays.engines
    assert engines[0].queue_length > 0
    assert row(text, "1").split()[1:3] == ["prefill", "failed"]
    assert row(text, "3").split()[1:3] == ["decode", "drained"]
    chosen = simulation.router_state.route[0].engine
    assert row(text, str(chosen)).startswith(">")
    assert f"Request {simulation.arrays.status[0].deciding_request}; " in text and f"says: engine {chosen}" in text
    queued = engines[0].queue_length
    assert int(cell(simulation, 0, "pre").text) + int(cell(simulation, 0, "late").text) == queued
    assert cell(simulation, 0, "known").text == f"{queued}/0"
    kv = [cell(simulation, e, "KV memory").parts for e in range(4)]
    assert sum(part for part, _ in kv[0]) == 1 - engines[0].free_blocks / 1000
    assert [kv[e][1][0] for e in (0, 2, 3)] == [0.004, 0.004, 0] and ">........   0.4 %" in row(text, "2")
    assert scene_of(simulation, 2).meters[0][-1].parts[2] == (0.004, "moving")


def test_requests_held_at_the_router():
    down = tuple(Incident(2.0, e, "fail") for e in range(2))
    simulation = at(cluster(2, incidents=(*down, Incident(6.25, 0, "return"))), 6.25, AT_ROUTES)
    # 0 to 3 came before, 4 as the engines failed; the last has come at 6.
    text = ansi(simulation)
    assert "Held at the router: 13" in text and re.search(r"tier 0 +13 ", text)
    assert rgb_array(simulation).tobytes() != rgb_array(Simulation(cluster(2))).tobytes()


def test_of_many_engines_the_named_one_is_shown():
    scenario = cluster(128)
    simulation = at(scenario, 8, AT_ROUTES)
    simulation.router_state.route[0].engine = 127
    text = ansi(simulation)
    assert row(text, "127").startswith(">") and "+ 96 more" in text


def test_a_suspended_request():
    simulation = preempted()
    assert rows_of_engine(simulation, 0)["state"].tolist() == [SUSPENDED, WAITING]
    assert "susp." in row(ansi(simulation), "0")


def test_a_request_in_the_batch_that_runs():
    simulation = at(cluster(2), 3, AT_ROUTES)
    assert rows_of_engine(simulation, 0)["state"].tolist()[0] == IN_BATCH
    text = ansi(simulation, engine=0)
    assert "Running batch: 1 requests, 4 tokens, estimated 5.00 s, 3.00 s so far" in text
    assert row(text, "0").startswith(">") and " +4 " in row(text, "0")
    assert cell(simulation, 0, "batch", -1).parts == [(0.6, "decodes")]


def test_the_start_and_the_end():
    assert "nothing has happened yet" in ansi(Simulation(two()))
    assert "tokens out that were in time -;" in ansi(Simulation(two()))
    text = ansi(ended(two()))
    # Of 5 tokens the first of request 1 was late.
    assert "the episode is over" in text and "so far 0.800" in text and "in time 80.0 %" in text


def test_words():
    assert [duration(s) for s in (0.0123, 0.25, 1.5, 12.34, 340.4, np.inf)] == [
        "12.3 ms", "250 ms", "1.50 s", "12.3 s", "340 s", "-",
    ]  # fmt: skip
    assert [duration(s) for s in (0.09949, 0.0996, 0.9996, 9.996, 99.96)] == [
        "99.5 ms", "100 ms", "1.00 s", "10.0 s", "100 s",
    ]  # fmt: skip
    # A token counts strictly before its deadline.
    assert [remaining(s) for s in (0.5, 0.0, -2.0)] == ["500 ms", "late 0.0 ms", "late 2.00 s"]
    places = [deadline_place(s) for s in (-50.0, -10.0, -0.1, 0.001, 0.1, 9.0, 10.0, np.inf)]
    assert places[0] == places[1] == -1 and places[-1] == places[-2] == 1
    assert places[2] == -places[4] and sorted(places) == places


def test_drawing_is_loaded_when_used():
    code = "import sys, servegym.envs.rendering.text; print({'PIL', 'matplotlib', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


ANY = r"\S.*"  # of an environment that nothing is said of here
WORDS = {
    "EngineBatching-v0": r"gamma [+-]\d\.\d\d, eta [+-]\d",
    "RequestRanking-v0": r"(request \d+ [+-]\d\.\d\d(, )?)+|the base's order",
    "Scheduling-v0": r"budget [+-]\d\.\d\d, giving_up [+-]\d",
    "ClusterRouting-v0": r"request \d+ to engine [012]",
    "DisaggregatedRouting-v0": r"request \d+ to engine [01], then (to [23]|where the base router says)",
    "PrefillPreemption-v0": r"request \d+ first",
    "TierScaling-v0": r"tiers of the engines (\d|pool)( closed)?, ",
}


@pytest.mark.parametrize("name", IDS)
def test_the_last_action_is_shown(name: str) -> None:
    env = make(name, render_mode="ansi")
    _, info = env.reset(seed=2)
    assert "Last action" not in env.render()
    agent = RandomAgent(env.action_space, 1)
    for _ in range(2):
        *_, info = env.step(agent.act(None, info))
    assert re.search(rf"^Last action: ({WORDS.get(name, ANY)})", env.render(), re.MULTILINE)
    env.reset(seed=2)
    assert "Last action" not in env.render()


def test_the_prompts_to_choose_from_are_shown_with_their_slots() -> None:
    env = make("PrefillPreemption-v0", render_mode="ansi")
    (_, info), most, terminated = env.reset(seed=0), 0, False
    while not terminated:
        slots = env.shown()["slots"]
        shown = [(int(k), int(r)) for k, r in re.findall(r"\[(\d+)\] (\d+)", env.render())]
        assert sorted(shown) == list(enumerate(slots)) and max(1, len(slots)) == info["action_mask"].sum()
        most, k = max(most, len(slots)), int(info["action_mask"].sum()) - 1
        *_, terminated, _, info = env.step(k)
        assert not slots or f"Last action: request {slots[k]} first" in env.render()
    assert most > 1
    env = make("PrefillPreemption-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert (env.render() != rgb_array(env.simulation)).any()
