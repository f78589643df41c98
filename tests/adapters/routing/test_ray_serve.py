"""The request router of Ray Serve, on a local cluster with three toy replicas."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servegym.errors import RoutingError
from tests.adapters.routing.fakes import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
BODY = {"prompt_tokens": 100, "max_tokens": 3, "token_s": 0.01}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three replicas behind min-load, each of which serves 8 requests at once."""
    import ray
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    from tests.adapters.routing.ray_app import Toy

    # A cluster of its own, whatever others run here; sockets have short paths.
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )  # fmt: skip
    config = RequestRouterConfig(
        request_router_class="tests.adapters.routing.ray_app:Watched",
        request_router_kwargs={"router": "min-load", "device": "h100-llama3-8b"},
        request_routing_stats_period_s=0.1,
    )
    deployment = serve.deployment(
        num_replicas=3, max_ongoing_requests=8, ray_actor_options={"num_cpus": 0.1}, request_router_config=config
    )(Toy)
    serve.start(proxy_location="Disabled")  # only handles are used; its proxy failed to start in time on a busy machine
    try:
        yield serve.run(deployment.bind(), name="toy", route_prefix=None)
    finally:
        serve.shutdown()
        ray.shutdown()


def served(handle: Any, count: int, **more: Any) -> list[Any]:
    """So many streams, begun one after the other."""
    return [handle.options(stream=True).generate.remote(BODY | more) for _ in range(count)]


def test_requests_go_to_the_replica_with_fewest_and_its_record_is_kept(handle: Any, tmp_path: Path) -> None:
    watch = tmp_path / "watch"
    # Longer than this test takes, and shorter than `until` waits in the next one.
    streams = served(handle, 12, max_tokens=200, token_s=0.1, watch=str(watch))

    def seen() -> list[Any]:
        return [json.loads(line) for line in watch.read_text().splitlines()] if watch.exists() else []

    until(lambda: len(seen()) == 12, "all are routed")
    assert [sum(prefills) + sum(decodes) for prefills, decodes, _ in seen()] == list(range(1, 13))
    assert all(max(map(sum, zip(*one[:2], strict=True))) <= -(-(k + 1) // 3) for k, one in enumerate(seen()))
    names = collections.Counter(next(iter(stream)) for stream in streams)
    assert sorted(names.values()) == [4, 4, 4]

    def one_more() -> tuple[int, int]:
        """Requests without and with a token that the router knows of, once it has routed one more."""
        known = len(seen())
        list(served(handle, 1, watch=str(watch))[0])
        until(lambda: len(seen()) == known + 1, "one more is routed")
        prefills, decodes, _ = seen()[-1]
        return sum(prefills), sum(decodes)

    # Replicas say every 0.1 s which tokens are out.
    until(lambda: one_more() == (1, 12), "what has a token is no longer in the queue record")
    for stream in streams:
        stream.cancel()


def test_a_replica_that_is_full_passes_requests_on(handle: Any, tmp_path: Path) -> None:
    streams = served(handle, 30)  # 24 at once
    assert all(len(list(stream)) == 3 for stream in streams)
    watch = tmp_path / "watch"

    def left() -> int:
        """Requests that the router knows of, once it has routed one more."""
        list(served(handle, 1, watch=str(watch))[0])
        until(watch.exists, "it is routed")
        return int(json.loads(watch.read_text().splitlines()[-1])[2])

    until(lambda: left() == 1, "of those that have left nothing is left")


def pending_request(request: str, model: str = "") -> Any:
    metadata = SimpleNamespace(internal_request_id=request, multiplexed_model_id=model)
    return SimpleNamespace(
        metadata=metadata, created_at=time.time(), args=(BODY,), kwargs={}, future=concurrent.futures.Future(),
        routing_context=SimpleNamespace(),
    )  # fmt: skip


def test_a_request_goes_to_the_replica_that_has_its_multiplexed_model() -> None:
    """As the replica reports it, or as the router has sent it there."""
    from servegym.adapters.routing.ray_serve import PolicyRouter

    router = object.__new__(PolicyRouter)
    adapters = {"max_loras": 2, "load_s": 0.5, "activate_s": 0.02}
    router.initialize_state(router="lora-affinity:queue_weight=0", device="h100-llama3-8b", adapters=adapters)
    replica_id = collections.namedtuple("replica_id", "unique_id")
    loaded: dict[str, set[str]] = {"a": set(), "b": {"x"}}
    replicas = [
        SimpleNamespace(replica_id=replica_id(name), routing_stats={}, multiplexed_model_ids=loaded[name])
        for name in "ab"
    ]
    went = []
    for k, model in enumerate(["x", "y", "y", "", "x"]):
        pending = pending_request(str(k), model)
        chosen = asyncio.run(router.choose_replicas(replicas, pending))[0][0].replica_id
        router.on_request_routed(pending, chosen, None)
        router.on_request_completed(chosen, str(k))
        went.append(chosen.unique_id)
    assert went[0] == went[4] == "b" and went[1] == went[2] and router._adapters == {"x": 1, "y": 2}
    assert router._live.fallbacks == 0 and router._live.rows.used == 0


def test_what_the_policy_refuses_goes_to_the_replica_with_fewest_requests() -> None:
    from servegym.adapters.routing.ray_serve import PolicyRouter

    router = object.__new__(PolicyRouter)
    router.initialize_state(router="prefix-affinity:refuse=0.000001", device="h100-llama3-8b")
    replica_id = collections.namedtuple("replica_id", "unique_id")
    replicas = [SimpleNamespace(replica_id=replica_id(name), routing_stats={}) for name in "ab"]
    pending = pending_request("r")
    router._follow(replicas)
    router._live.snapshots["requests"][0] = 1
    for _ in range(2):  # Ray asks again where a replica does not take it
        chosen = asyncio.run(router.choose_replicas(replicas, pending))
        assert [one.replica_id.unique_id for rank in chosen for one in rank] == ["b", "a"]
    router.on_request_routed(pending, replicas[1].replica_id, None)
    assert router._live.snapshots["requests"][:2].tolist() == [1, 1] and router._live.fallbacks == 0


def test_a_replica_that_dies_is_left_out(handle: Any) -> None:
    names = {next(iter(stream)) for stream in served(handle, 6)}
    assert len(names) == 3
    with pytest.raises(Exception, match=r"died|exit|dead"):
        handle.die.remote().result()
    streams = served(handle, 12)
    assert all(len(list(stream)) == 3 for stream in streams)


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"policy": "a", "router": "b"}, "there should be a policy"),
    ({}, "there should be a policy"),
    ({"router": "min-load", "replica": 3}, "replica is unknown; known: adapters, characters"),
    ({"router": "min-load"}, "name a latency profile"),
    ({"router": "lora-affinity", "device": "h100-llama3-8b"}, "give max_loras, lora_load_s and lora_activate_s"),
    ({"router": "min-load", "device": "h100-llama3-8b", "adapters": {"max_loras": 2}}, 'it should be like {"max_lo'),
    (
        {
            "router": "min-load",
            "device": "h100-llama3-8b",
            "adapters": {"max_loras": 0, "load_s": 1, "activate_s": 1},
        },
        "max_loras is 0; it should be",
    ),
])  # fmt: skip
def test_wrong_settings(kwargs: dict[str, Any], message: str) -> None:
    from servegym.adapters.routing.ray_serve import PolicyRouter

    with pytest.raises(RoutingError, match=message):
        PolicyRouter.__new__(PolicyRouter).initialize_state(**kwargs)
