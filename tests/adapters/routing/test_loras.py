"""LoRA adapters behind a proxy: which a request names, which engine has it, and what engines report of them."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from servegym.adapters.routing.clients import AdminKey
from servegym.adapters.routing.live import LiveEngine, LiveRouter
from servegym.adapters.routing.loras import cards_of, running_and_waiting
from servegym.adapters.routing.operation import Operation
from servegym.adapters.routing.rows import RequestTerms
from servegym.baselines.registry import router
from servegym.errors import RoutingError
from servegym.latency_models.profile import load_profile
from servegym.simulator.features.adapters import Adapters
from tests.adapters.routing.fakes import BASE, QUICK, FakeEngine, Served, proxied, until
from tests.adapters.routing.proxies import counted, idle

POLLED = dataclasses.replace(QUICK, poll_s=0.05)
MEMORY = Adapters(2, 0.5, 0.02, 4)
HELP = "# HELP vllm:lora_requests_info Running stats on lora requests.\n# TYPE vllm:lora_requests_info gauge\n"


def with_adapters(*names: str) -> list[dict[str, Any]]:
    return [*BASE, *({"id": name, "parent": "fake"} for name in names)]


def gauge(running: str, waiting: str = "", most: int = 2, at_s: float = 1.7e9) -> str:
    labels = f'max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at_s}\n"


def post(proxy: Served, model: Any, **more: Any) -> httpx.Response:
    body = {"prompt": "a b c", "model": model} | more
    return httpx.post(f"{proxy.url}/v1/completions", json=body, trust_env=False)


def listed(proxy: Served) -> None:
    until(lambda: all(one.models is not None for one in proxy.proxy.backends.all), "all engines' models are known")


def listing(proxy: Served, e: int) -> list[int]:
    """Adapters that the router holds to be in an engine's memories."""
    return [int(one) for one in proxy.proxy.router.known.adapters[e] if one]


def test_requests_go_where_their_adapter_is(engines: list[FakeEngine]) -> None:
    for engine in engines:
        engine.cards = with_adapters("a", "b")
    urls = [engine.url for engine in engines]
    with proxied(urls, POLLED, "lora-affinity:queue_weight=0,kv_weight=0", adapters=MEMORY) as proxy:
        listed(proxy)
        went = [
            post(proxy, model).headers["x-servegym-engine"] for model in ("a", "a", "b", "a", "b", "fake", None, "a")
        ]
        at = dict(zip("ab", (went[0], went[2]), strict=True))
        assert went[:5] == [at[model] for model in "aabab"] and went[7] == at["a"]
        assert [body["model"] for engine in engines for body in engine.bodies].count("a") == 4
        assert [*listing(proxy, 0), *listing(proxy, 1)].count(1) == 1, "one engine has the first adapter"
        idle(proxy)


def test_a_model_that_no_engine_lists_is_404_and_others_go_where_they_are(engines: list[FakeEngine]) -> None:
    engines[0].cards, engines[1].cards = with_adapters("a"), [*with_adapters("b"), {"id": "another"}]
    with proxied([engine.url for engine in engines], POLLED, adapters=MEMORY) as proxy:
        listed(proxy)
        wrong = post(proxy, "x" * 300)
        assert wrong.status_code == 404 and wrong.json()["error"] == {
            "message": f"The model `{'x' * 200}` does not exist.", "type": "NotFoundError", "param": None, "code": 404,
        }  # fmt: skip
        assert counted(proxy, 'requests_total{outcome="NotFoundError"}') == 1
        for model, e in (("a", 0), ("b", 1), ("another", 1)):
            assert [post(proxy, model).headers["x-servegym-engine"] for _ in range(3)] == [str(e)] * 3
        assert [listing(proxy, e) for e in (0, 1)] == [[1], [2]], "a model of its own is no adapter"
        models = httpx.get(f"{proxy.url}/v1/models", trust_env=False).json()["data"]
        assert sorted(card["id"] for card in models) == ["a", "another", "b", "fake"]
        engines[0].mood = "error"  # a request is not sent again to an engine without its adapter
        assert post(proxy, "a").status_code == 500 and not any(body["model"] == "a" for body in engines[1].bodies)
        engines[0].cards = BASE  # it has unloaded it
        until(lambda: post(proxy, "a").status_code == 404, "nothing has it")
        idle(proxy)


def test_what_is_not_known_is_left_to_the_engines(engines: list[FakeEngine], caplog: pytest.LogCaptureFixture) -> None:
    """One line for a list that cannot be read, one for an engine without the gauge; and again after it was there."""
    engines[0].cards, engines[1].cards = None, with_adapters("a")
    urls = [engine.url for engine in engines]
    with caplog.at_level(logging.WARNING), proxied(urls, POLLED, policy="round-robin", adapters=MEMORY) as proxy:
        until(lambda: proxy.proxy.backends.all[1].models is not None, "one list is known")
        assert {post(proxy, "b").headers["x-servegym-engine"] for _ in range(4)} == {"0"}, "the other does not have it"
        assert {post(proxy, "a").headers["x-servegym-engine"] for _ in range(4)} == {"0", "1"}
        lines = [record.getMessage() for record in caplog.records]
        assert (
            sum("GET /v1/models gives no list; if it takes a key, set SERVEGYM_ENGINE_KEY" in one for one in lines) == 1
        )
        assert sum("/metrics has no vllm:lora_requests_info" in one for one in lines) == 2
        engines[1].metrics = HELP + gauge("a", most=3)
        until(lambda: proxy.proxy.router.snapshots["max_loras"][1] == 3, "it reports")
        engines[1].metrics = ""
        until(lambda: caplog.text.count("/metrics has no vllm:lora_requests_info") == 3, "it does not any more")


def test_engines_report_what_they_run(engines: list[FakeEngine]) -> None:
    """Another proxy has sent "b" to the second engine, which has room for three."""
    for engine in engines:
        engine.cards = with_adapters("a", "b", "c", "d")
    urls = [engine.url for engine in engines]
    with proxied(urls, POLLED, "lora-affinity:queue_weight=0,kv_weight=0", adapters=MEMORY) as proxy:
        listed(proxy)
        engines[0].metrics = HELP
        engines[1].metrics = HELP + gauge("a,b", "c", 3) + gauge("d", "", 3, at_s=1.6e9)
        until(lambda: listing(proxy, 1), "it reports")
        assert proxy.proxy.router.snapshots["max_loras"].tolist() == [2, 3]
        loras = proxy.proxy.loras
        assert [loras.name(number) for number in range(4)] == ["", "a", "b", "c"]
        assert loras._numbers == {"a": 1, "b": 2, "c": 3} and listing(proxy, 1) == [2, 1, 3]
        assert [post(proxy, model).headers["x-servegym-engine"] for model in "bac"] == ["1"] * 3
        assert listing(proxy, 1) == [3, 1, 2]
        idle(proxy)


def test_lists_are_asked_for_with_the_engines_key_and_stay_with_another_policy(engines: list[FakeEngine]) -> None:
    operation = Operation(admin=AdminKey.of("admin"), engine_headers=[(b"authorization", b"Bearer secret")])
    engines[0].cards = with_adapters("a")
    with proxied([engines[0].url], POLLED, "lora-affinity", operation=operation, adapters=MEMORY) as proxy:
        listed(proxy)
        engines[0].keys.clear()  # a last question of the proxy of the test before may have come late
        until(lambda: len(engines[0].keys) > 1, "it is asked again")
        assert set(engines[0].keys) == {"Bearer secret"}
        post(proxy, "a")
        assert listing(proxy, 0) == [1]
        answer = httpx.put(
            f"{proxy.url}/admin/policy", json={"router": "predicted-cost", "device": "h100-llama3-8b"}, trust_env=False,
            headers={"authorization": "Bearer admin"},
        )  # fmt: skip
        assert answer.json() == {"router": "predicted-cost"} and listing(proxy, 0) == [1]
        assert proxy.proxy.router.snapshots["max_loras"].tolist() == [2]


def test_the_list_of_what_was_sent_changes_only_where_it_is_wrong() -> None:
    profile = load_profile("h100-llama3-8b")
    one = LiveRouter(router("lora-affinity"), [LiveEngine("0", profile.estimator, 1000, adapters=MEMORY)], (0.05,))
    for adapter in (1, 2, 3):
        r = one.arrive(0.0, RequestTerms(100, 1.0, 0.05, adapter=adapter))
        one.route(0.0, r)
    cases: list[tuple[list[int], list[int], list[int]]] = [
        ([2, 3], [1], [3, 2, 1, 0]),  # as sent
        ([1, 2], [3], [2, 1, 3, 0]),  # in device memory, which has room for two
        ([], [9], [9, 2, 1, 3]),  # sent by another proxy
        ([8, 7], [], [7, 8, 9, 2]),
        ([9, 8, 7], [2], [7, 8, 9, 2]),  # not all of these can be in device memory
    ]
    for running, waiting, expected in cases:
        one.report_adapters(0, running, waiting, 2)
        assert one.known.adapters[0].tolist() == expected
    one.report_adapters(0, [], [], 6)
    assert one.known.adapters[0].tolist() == [7, 8, 9, 2, 0, 0] and one.snapshots["max_cpu_loras"].tolist() == [6]
    one.lose(1.0, 0)
    assert not one.known.adapters.any()


def test_engines_without_adapters_take_no_request_that_names_one() -> None:
    profile = load_profile("h100-llama3-8b")
    one = LiveRouter(router("min-load"), [LiveEngine("0", profile.estimator, 1000)], (0.05,))
    with pytest.raises(RoutingError, match="a request names LoRA adapter 3; give the engines adapters"):
        one.arrive(0.0, RequestTerms(100, 1.0, 0.05, adapter=3))


def test_an_idle_engine_that_is_gone_is_taken_to_have_nothing(engines: list[FakeEngine]) -> None:
    """No request tells that it has restarted."""
    engines[0].cards = with_adapters("a")
    quick = dataclasses.replace(POLLED, health_s=0.05, health_timeout_s=0.3)
    with proxied([engines[0].url], quick, "kv-aware", adapters=MEMORY) as proxy:
        listed(proxy)
        post(proxy, "a", prompt="one beginning " * 20)
        idle(proxy)
        known = proxy.proxy.router.known
        assert listing(proxy, 0) == [1] and known.prefixes.sent["used"].any()
        engines[0].mood = "hang"
        until(lambda: not listing(proxy, 0), "it is gone")
        assert not known.prefixes.sent["used"].any() and not proxy.proxy.backends.all[0].up
        engines[0].mood = "well"
        until(lambda: proxy.proxy.backends.all[0].up, "it is back")


def test_prompts_under_different_adapters_share_nothing(engines: list[FakeEngine]) -> None:
    engines[0].cards = with_adapters("a", "b")
    with proxied([engines[0].url], POLLED, "kv-aware", adapters=MEMORY) as proxy:
        listed(proxy)
        came: list[list[int]] = []
        arrive = proxy.proxy.router.arrive
        proxy.proxy.router.arrive = lambda now_s, asked, chunks: [came.append(chunks), arrive(now_s, asked, chunks)][1]
        for model in ("fake", None, "a", "b", "a"):
            post(proxy, model, prompt="one beginning " * 20)
        base, same, a, b, again = came
        assert (
            base == same and a == again and not set(base) & set(a) and not set(a) & set(b) and len(a) == len(base) > 3
        )


@pytest.mark.parametrize(("text", "found"), [
    (gauge("a,b", "c", 4), (["a", "b"], ["c"], 4)),
    (gauge("", "", 1), ([], [], 1)),
    (gauge("a", at_s=5.0) + gauge("b", at_s=7.5) + gauge("c", at_s=6.0), (["b"], [], 2)),
    (gauge(r"a \"quoted\" name"), (['a "quoted" name'], [], 2)),
    (HELP, None),
    ("", None),
    ("vllm:lora_requests_info{} 1\n", None),
    (gauge("a").replace("1700000000.0", "soon"), None),
    (gauge("a").replace('"2"', '"two"'), None),
    ("vllm:lora_requests_info{max_lora\n", None),
    (gauge("a", most=10**9), (["a"], [], 4096)),
])  # fmt: skip
def test_the_newest_value_of_the_gauge_counts(text: str, found: Any) -> None:
    assert running_and_waiting(f"other{{}} 1\n{text}".encode()) == found


def test_lists_of_models() -> None:
    assert cards_of(b'{"data": [{"id": "m", "parent": null}, {"id": "a", "parent": "m"}]}') == {
        "m": {"id": "m", "parent": None}, "a": {"id": "a", "parent": "m"},
    }  # fmt: skip
    for body in (None, b"", b"[]", b'{"data": 3}', b'{"data": [3]}', b"\xff", b"[" * 100_000):
        assert cards_of(body) is None


def test_what_vllm_publishes() -> None:
    """/metrics and /v1/models of vLLM 0.32: two adapters run; a third waits, and is not counted."""
    folder = Path(__file__).parent / "fixtures"
    assert running_and_waiting((folder / "vllm-lora-metrics.txt").read_bytes()) == (["b", "a"], ["b", "a"], 2)
    cards = cards_of((folder / "vllm-lora-models.json").read_bytes())
    assert cards is not None and {name: card["parent"] for name, card in cards.items()} == {
        "base": None, "a": "base", "b": "base", "c": "base",
    }  # fmt: skip
