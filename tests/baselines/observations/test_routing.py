"""A request and the engines as a router sees them, by hand: 1 s a token, no constant part, blocks of one token."""

import dataclasses

import numpy as np
import pytest

from servegym.baselines.registry import router, scheduler
from servegym.latency_models.model import LatencyModel
from servegym.simulator.inputs.cluster import Cluster
from servegym.simulator.inputs.deployment import Deployment, PrefixStore
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.memory.prefixes import Prompts, use_chunks
from servegym.simulator.policies.gains import Gain
from servegym.simulator.runs.simulation import Simulation
from tests.baselines.observations.seeing import Seen, of_routing
from tests.simulator.forming import linear
from tests.simulator.scenes import requests

pytestmark = pytest.mark.nojit

A_TOKEN_A_SECOND = linear(c_p=1, b_d=1)
COLUMNS = {"prompt_tokens": 1, "ttft_slo_s": 1000.0, "tpot_slo_s": 1e6, "weight": 1.0, "priority": 0}
# TPOT SLOs are far above an iteration: batches are all prefill, and a prefill takes its own time.


def cluster_of(
    *engines: dict, request: dict, role: str = "both", model: LatencyModel = A_TOKEN_A_SECOND, blocks: int = 100
) -> tuple[Simulation, int]:
    """Engines with their queue records ("record") and fields of their snapshots; and the request, the last of all."""
    rows = [*(row for one in engines for row in one.get("record", ())), request]
    workload = requests(**{field: [row.get(field, default) for row in rows] for field, default in COLUMNS.items()})
    pools = [Deployment(model, model, blocks, len(engines), block_tokens=1, watermark=0.0, role=role)]
    if role != "both":
        other = "decode" if role == "prefill" else "prefill"
        pools.append(dataclasses.replace(pools[0], engines=1, role=other))
    scenario = Scenario(
        workload, Cluster(tuple(pools)), scheduler("edf"), Gain(first_weight=1.0), router=router("min-load")
    )  # fmt: skip
    simulation = Simulation(scenario)
    known, nth = simulation.router_state.known, 0
    for e, one in enumerate(engines):
        snapshot = known.snapshots[e]
        for row in one.get("record", ()):
            known.prefilling[e, snapshot.prefills] = nth
            snapshot.prefills += 1
            snapshot.requests += 1
            snapshot.prefill_tokens += row["prompt_tokens"]
            nth += 1
        for field, value in one.items():
            if field != "record":
                snapshot[field] = value
    return simulation, nth


def seen(*engines: dict, request: dict, now_s: float = 0.0, chosen: int = -1, decode: int = 0, **setting) -> Seen:
    slots = setting.pop("slots", len(engines))
    simulation, r = cluster_of(*engines, request=request, **setting)
    return of_routing(simulation, r, now_s, chosen, decode, slots)


def of_engines(seen: Seen, name: str, engines: int) -> list[float]:
    return [seen[f"engine[{e}].{name}"] for e in range(engines)]


def test_waiting_times_by_hand():
    # A request of 4 s, due in 20 s, worth 4. Engine 0 has prompts of 10 s and 8 s, due at 15 and 50; engine 1 none.
    record = [{"prompt_tokens": 10, "ttft_slo_s": 15.0}, {"prompt_tokens": 8, "ttft_slo_s": 50.0, "weight": 3.0}]
    got = seen({"record": record}, {}, request={"prompt_tokens": 4, "ttft_slo_s": 20.0, "weight": 4.0}, chosen=1)
    assert of_engines(got, "chosen", 2) == [0, 1] and of_engines(got, "takes", 2) == [1, 1]
    assert of_engines(got, "exec", 2) == pytest.approx([4 / 24, 4 / 24], rel=1e-3)
    assert of_engines(got, "work", 2) == pytest.approx([18 / 38, 0], rel=1e-3)
    assert of_engines(got, "spare", 2) == pytest.approx([-2 / 22, 16 / 36], rel=1e-3)
    assert of_engines(got, "spare_by_deadline", 2) == pytest.approx([6 / 26, 16 / 36], rel=1e-3)
    assert of_engines(got, "soonest", 2) == pytest.approx([24 / 42, 1], rel=1e-3)
    # 18 s are too long for the first of the record, worth 1 of 4, already; 22 s are not for the other.
    assert of_engines(got, "late", 2) == [0.25, 0] and of_engines(got, "made_late", 2) == [0, 0]
    assert of_engines(got, "fewest", 2) == pytest.approx([1 / 3, 1])
    assert got["request.gain"] == pytest.approx(4 / (2 + 4))
    assert of_engines(got, "kv_after", 2) == pytest.approx([0.78, 0.96])


def test_which_it_would_make_late():
    record = [{"prompt_tokens": 10, "ttft_slo_s": 12.0, "weight": 3.0}]
    got = seen({"record": record}, request={"prompt_tokens": 4, "ttft_slo_s": 20.0, "weight": 1.0})
    assert got["engine[0].made_late"] == 0.75 and got["engine[0].late"] == 0
    # 3 s later, if nothing was heard, 3 s of the 10 are done.
    later = seen({"record": record}, request={"prompt_tokens": 4, "ttft_slo_s": 20.0}, now_s=3.0)
    assert later["engine[0].work"] == pytest.approx(7 / 27, rel=1e-3)
    assert later["request.slack"] == pytest.approx(17 / 37)


def test_decodes_stretch_prefills():
    # Two decodes take 2 s of the 8 s between two tokens: three quarters of a batch are left for prompts.
    got = seen({"decodes": 2, "requests": 2, "decode_tokens": 9}, request={"prompt_tokens": 3, "tpot_slo_s": 8.0})
    assert got["engine[0].iteration"] == pytest.approx(2 / 10)
    assert got["engine[0].exec"] == pytest.approx(4 / 1004)
    # At most nine tenths are taken to be theirs.
    got = seen({"decodes": 99, "requests": 99}, request={"prompt_tokens": 3, "tpot_slo_s": 8.0})
    assert got["engine[0].exec"] == pytest.approx(30 / 1030)


def test_the_request_by_hand():
    got = seen({}, {"closed": 1}, request={"prompt_tokens": 7, "ttft_slo_s": 3.0, "tpot_slo_s": 0.3, "priority": 1})
    ours = {name.removeprefix("request."): value for name, value in got.items() if name.startswith("request.")}
    assert ours == pytest.approx(
        {
            "decode": 0, "context": 3 / 20, "again": 0, "first_slo": 0.75, "tpot_slo": 0.75, "ttlt": 0, "slack": 0.5,
            "gain": 0.5, "priority": 0.5, "predicted": 0, "output_left": 0, "takers": 0.5, "held": 0,
        }
    )  # fmt: skip


def test_what_takes_it():
    engines = [{}, {"up": 0}, {"closed": 1}, {}]
    got = seen(*engines, request={"prompt_tokens": 3})
    assert of_engines(got, "takes", 4) == of_engines(got, "open", 4) == [1, 0, 0, 1]
    # The fewest requests of those that take it count.
    got = seen({"requests": 3}, {"up": 0, "requests": 0}, {"requests": 1}, request={"prompt_tokens": 3})
    assert of_engines(got, "fewest", 3) == [0.5, 1, 1]
    nobody = seen({"up": 0}, {"closed": 1}, request={"prompt_tokens": 3})
    assert (
        of_engines(nobody, "takes", 2) == of_engines(nobody, "fewest", 2) == of_engines(nobody, "soonest", 2) == [0, 0]
    )


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_prefill_and_decode_engines(role):
    simulation, r = cluster_of({}, {"up": 0}, request={"prompt_tokens": 3}, role=role)  # and one of the other role
    first = of_routing(simulation, r, 0.0, -1, 0, 3)
    later = of_routing(simulation, r, 0.0, -1, 1, 3)
    prefills = [1, 0, 0] if role == "prefill" else [0, 0, 1]
    decodes = [0, 0, 1] if role == "prefill" else [1, 0, 0]
    assert of_engines(first, "takes", 3) == prefills and of_engines(later, "takes", 3) == decodes
    assert first["request.decode"] == 0 and later["request.decode"] == 1
    simulation.arrays.requests[r]["num_output_tokens"], simulation.arrays.requests[r]["computed_tokens"] = 1, 3
    assert of_engines(of_routing(simulation, r, 0.0, -1, 0, 3), "takes", 3) == decodes  # its KV waits there


def test_an_engine_that_decodes_only_runs_the_request_in_its_next_iteration():
    engines = [{"decodes": 2, "busy_until_s": 5.0}, {}]
    got = seen(*engines, request={"prompt_tokens": 3, "ttft_slo_s": 10.0}, decode=1, role="decode", now_s=1.0)
    assert of_engines(got, "work", 2) == pytest.approx([4 / 14, 0])
    assert of_engines(got, "exec", 2) == pytest.approx([3 / 13, 1 / 11])  # an iteration with it
    assert of_engines(got, "spare", 2) == pytest.approx([2 / 12, 8 / 18])


def test_more_slots_than_engines_and_fewer():
    engines = [{"requests": 5}, {"requests": 0}]
    got = seen(*engines, request={"prompt_tokens": 3}, slots=4)
    for e in (2, 3):
        assert {value for name, value in got.items() if name.startswith(f"engine[{e}].")} == {0.0}
    got = seen(*engines, request={"prompt_tokens": 3}, slots=1)
    assert got["engine[0].fewest"] == 1 and got["request.takers"] == 1


def test_a_router_does_not_see_what_an_engine_has_computed():
    record = [{"prompt_tokens": 10, "ttft_slo_s": 15.0}, {"prompt_tokens": 8, "ttft_slo_s": 50.0}]
    simulation, r = cluster_of({"record": record}, {}, request={"prompt_tokens": 4, "ttft_slo_s": 20.0})
    before = of_routing(simulation, r, 2.0, 0, 0, 2)
    table, run = simulation.arrays.requests, simulation.arrays
    for field, value in (
        ("computed_tokens", 3),
        ("blocks", 2),
        ("offloaded_tokens", 1),
        ("admitted", 4),
        ("evicted", 2),
    ):
        table[field][:r] = value
    for field in ("free_blocks", "queue_length", "batch_length", "decode_tokens", "running"):
        run.engines[field] = 1
    run.outcomes["output_tokens"] = 77
    run.device[:] = run.estimate[:] = 5.0
    assert of_routing(simulation, r, 2.0, 0, 0, 2) == before


def test_tiers_and_lines():
    workload = requests(prompt_tokens=[3, 3], tpot_slo_s=[0.02, 0.1], arrival_s=0.0)
    pool = Deployment(A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 100, 3, block_tokens=1, watermark=0.0)
    simulation = Simulation(Scenario(workload, Cluster((pool,), tiers=(0.02, 0.05, 0.1)), scheduler("edf")))
    known = simulation.router_state.known
    known.snapshots["tier"] = [-1, 0, 2]
    known.tiers["waiting"][:] = [1, 0, 1, 1, 9]  # the last is the simulator's own
    got = of_routing(simulation, 1, 0.0, -1, 0, 3)
    assert of_engines(got, "in_pool", 3) == [1, 0, 0]
    assert of_engines(got, "tier_gap", 3) == [0, -2 / 8, 0]
    assert got["request.held"] == pytest.approx(2 / 12)


def test_a_beginning_that_the_engine_has():
    prompts = Prompts(2, np.array([0, 2, 4]), np.array([0, 1, 0, 2]))
    workload = dataclasses.replace(requests(prompt_tokens=[5, 5]), prefixes=prompts)
    pool = Deployment(
        A_TOKEN_A_SECOND, A_TOKEN_A_SECOND, 100, 2, block_tokens=1, watermark=0.0, prefix_store=PrefixStore(64)
    )  # fmt: skip
    simulation = Simulation(Scenario(workload, pool, scheduler("edf"), router=router("min-load")), watched=True)
    known = simulation.router_state.known
    use_chunks(known.prefixes, known.prefixes.sent[1], int(known.snapshots[1].index_sets), 0, 0)
    got = of_routing(simulation, 1, 0.0, -1, 0, 2)
    assert of_engines(got, "prefix", 2) == pytest.approx([0, 0.4])
    assert of_engines(got, "exec", 2) == pytest.approx([5 / 1005, 3 / 1003], rel=2e-3)
