"""The proxy before fake engines: what is passed on, what is tried again, and how it ends where engines fail."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.front import Limits
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.simulator.features.session_dependencies import SessionDependencies
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.memory.prefixes import Prompts
from tests.adapters.routing.fakes import QUICK, TOKENS, FakeEngine, proxied, stream, until, words
from tests.adapters.routing.proxies import ALL, counted, idle

# What is passed on


def test_engines_that_are_not_there_use_up_no_retries(engines: list[FakeEngine]) -> None:
    """Three without a connection come before the one that is well, and one retry is allowed."""
    gone = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    settings = dataclasses.replace(QUICK, retries=1)
    with proxied([*gone, engines[0].url], settings=settings) as proxy:
        for _ in range(4):
            status, events, _ = stream(proxy.url)
            assert status == 200 and words(events) == ALL
        idle(proxy)


def test_a_stream_is_passed_on_as_it_comes(engines: list[FakeEngine]) -> None:
    engines[0].mood = engines[1].mood = "slow"
    with proxied([engine.url for engine in engines]) as proxy:
        body = {"prompt": "a", "stream": True}
        at_s = []
        with httpx.stream("POST", f"{proxy.url}/v1/completions", json=body, trust_env=False) as response:
            at_s.extend(time.monotonic() for line in response.iter_lines() if line.startswith("data: {"))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert len(at_s) == TOKENS
        assert at_s[-1] - at_s[0] > 0.1, "tokens that come 50 ms apart should be passed on so"
        idle(proxy)


def test_an_answer_that_is_no_stream_and_chat(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines]) as proxy:
        done = httpx.post(f"{proxy.url}/v1/completions", json={"prompt": [1, 2]}, trust_env=False)
        assert (done.status_code, done.json()["usage"]["completion_tokens"]) == (200, TOKENS)
        chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        with httpx.stream("POST", f"{proxy.url}/v1/chat/completions", json=chat, trust_env=False) as response:
            assert "[DONE]" in "".join(response.iter_text())
        idle(proxy)


def test_bodies_and_headers(engines: list[FakeEngine]) -> None:
    raw = b'{"prompt":  "a",\n "vllm_xargs": {"ttft_slo_s": 0.5}, "unknown": [1, {"x": null}]}'
    with proxied([engines[0].url]) as proxy:
        headers = {
            "content-type": "application/json", "authorization": "Bearer k", "connection": "keep-alive, x-private",
            "x-private": "1", "te": "trailers", "proxy-authorization": "secret", "x-request-id": "7",
        }  # fmt: skip
        assert (
            httpx.post(f"{proxy.url}/v1/completions", content=raw, headers=headers, trust_env=False).status_code == 200
        )
        got = engines[0].headers[-1]
        assert (got["authorization"], got["x-request-id"]) == ("Bearer k", "7")
        assert not {"x-private", "te", "proxy-authorization"} & got.keys()
        assert got["content-length"] == str(len(raw)), "a body should be passed on as it came"
        # Engines read bodies only, so what headers say is put there; what the body says wins.
        said = {"x-servegym-tpot-slo-s": "0.02", "x-servegym-ttft-slo-s": "9"}
        httpx.post(f"{proxy.url}/v1/completions", content=raw, headers=headers | said, trust_env=False)
        assert engines[0].bodies[-1]["vllm_xargs"] == {"ttft_slo_s": 0.5, "tpot_slo_s": 0.02}
        assert engines[0].bodies[-1]["unknown"] == [1, {"x": None}]


def test_models_health_metrics_and_what_there_is_not(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines]) as proxy:
        get = {path: httpx.get(f"{proxy.url}{path}", trust_env=False) for path in ("/v1/models", "/ready", "/metrics")}
        assert get["/v1/models"].json()["data"] == [{"id": "fake"}]
        assert get["/ready"].json() == {"engines": {"0": "up", "1": "up"}, "draining": False}
        assert "servegym_proxy_decision_seconds_bucket" in get["/metrics"].text
        assert httpx.get(f"{proxy.url}/v1/completions", trust_env=False).status_code == 405
        assert httpx.post(f"{proxy.url}/v1/embeddings", json={}, trust_env=False).json()["error"]["code"] == 404


def test_requests_go_where_the_policy_says(engines: list[FakeEngine]) -> None:
    engines[0].mood = engines[1].mood = "slow"
    with proxied([engine.url for engine in engines]) as proxy, ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: stream(proxy.url), range(8)))
        went = [headers["x-servegym-engine"] for _, _, headers in done]
        assert sorted(went) == ["0"] * 4 + ["1"] * 4
        assert counted(proxy, "routed_total") == 8
        assert counted(proxy, "tokens_total") == 8 * TOKENS
        idle(proxy)


@pytest.mark.parametrize("policy", ["prefix-affinity", "kv-aware"])
@pytest.mark.parametrize("text", [False, True], ids=["ids", "text"])
def test_prompts_that_begin_alike_go_to_one_engine(engines: list[FakeEngine], policy: str, text: bool) -> None:
    with proxied([engine.url for engine in engines], policy=policy) as proxy:
        for number, begin in enumerate((1, 2, 1, 2, 1)):
            prompt = [begin] * 2048 + [begin, number]
            stream(proxy.url, prompt="".join(f"{one:4}" for one in prompt) if text else prompt)
        by_engine = [{str(body["prompt"]).lstrip("[ ")[0] for body in engine.bodies} for engine in engines]
        assert sorted(map(sorted, by_engine)) == [["1"], ["2"]]


def test_turns_of_a_session_go_to_one_engine(engines: list[FakeEngine]) -> None:
    with proxied([engine.url for engine in engines], policy="session-hash") as proxy:
        went: dict[str, list[str]] = {}
        for turn in range(3):
            for session in "abcdefgh":
                by_header = turn < 2
                body = {"prompt": [turn], "stream": True} | ({} if by_header else {"user": session})
                headers = {"x-session-id": session} if by_header else {}
                answer = httpx.post(f"{proxy.url}/v1/completions", json=body, headers=headers, trust_env=False)
                went.setdefault(session, []).append(answer.headers["x-servegym-engine"])
        assert all(len(set(engines_of)) == 1 for engines_of in went.values()), "whichever way it is said"
        assert {engines_of[0] for engines_of in went.values()} == {"0", "1"}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["kv-aware", "session-hash"])
def test_sessions_that_are_replayed_stay_where_they_began(engines: list[FakeEngine], policy: str) -> None:
    """Six conversations of three turns, each prompt beginning with the one before."""
    session, turn = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    lengths = 64 + 32 * turn
    numbers = [1000 * s + np.arange(n // 16) for s, n in zip(session, lengths, strict=True)]
    columns = {"arrival_s": np.zeros(18), "prompt_tokens": lengths, "output_tokens": TOKENS, "priority": np.arange(18)}
    after = np.where(turn == 0, -1, np.arange(18) - 1)
    made = Workload.from_columns(columns, turns=SessionDependencies(after, np.zeros(18)))
    chunks = [numbers[row] for row in made.table["priority"]]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in chunks])])
    served = dataclasses.replace(made, prefixes=Prompts(16, offsets, np.concatenate(chunks)))
    with proxied([engine.url for engine in engines], policy=policy) as proxy:
        done = replay(served, Endpoint(proxy.url), Bodies("fake"), limits=Limits(clients=1))
    assert done.counts()["finished"] == 18
    users = [{body["user"] for body in engine.bodies} for engine in engines]
    assert users[0] and users[1] and not users[0] & users[1] and len(users[0] | users[1]) == 6


def test_only_routers_that_look_at_prompts_pay_for_an_index(engines: list[FakeEngine]) -> None:
    urls = [engine.url for engine in engines]
    for policy, prefix_cache_tokens, has in (
        ("min-load", None, False),
        ("kv-aware", None, True),
        ("kv-aware", 0, False),
    ):
        with proxied(urls, policy=policy, prefix_cache_tokens=prefix_cache_tokens) as proxy:
            assert (proxy.proxy.router.known.prefixes.sent.size > 0) == has


def test_memory_is_read_from_an_engines_metrics(engines: list[FakeEngine]) -> None:
    engines[
        0
    ].metrics = 'vllm:cache_config_info{block_size="32",num_gpu_blocks="500"} 1.0\nvllm:kv_cache_usage_perc{} 0.25\n'
    with proxied([engines[0].url], dataclasses.replace(QUICK, poll_s=0.05)) as proxy:
        snapshot = proxy.proxy.router.snapshots[0]
        until(lambda: snapshot.total_blocks == 500, "metrics are read")
        assert (snapshot.total_blocks, snapshot.block_tokens, snapshot.free_blocks) == (500, 32, 375)
        assert snapshot.index_sets == 0
        engines[0].metrics = 'sglang:token_usage{model_name="m",tp_rank="0"} 0.5\n'  # it has the share only
        until(lambda: snapshot.free_blocks == 250, "SGLang's are read")


# Where engines fail
