"""A gateway that passes on the requests and answers of a simulated run is sent where the simulated router sent them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from servegym.adapters.vllm.terms import TermsReader
from servegym.baselines.artifact.files import load_policy, save_policy
from servegym.baselines.registry import router
from servegym.simulator.records.types import REFUSE
from tests.adapters.gateway.gateways import Call, endpoint, prompt, refused
from tests.adapters.gateway.pickers import Picker, picking
from tests.adapters.routing.fakes import QUICK
from tests.adapters.routing.proxies import idle
from tests.adapters.routing.simulated import FIRST_WEIGHT, Decision, LiveReplay, recorded, scenario, workload
from tests.baselines.learned.cases import refusing_where_late

URLS = [f"http://10.0.0.{k}:8000" for k in range(4)]
UNCHECKED = dataclasses.replace(QUICK, health_s=1e6)  # nobody is at these addresses


class GatewayReplay(LiveReplay):
    """A replay whose router is a picker's: it is told of each request by a gateway, in a call of its own."""

    def __init__(self, of: Any, requests: np.ndarray, picker: Picker):
        super().__init__(of, 256, requests)
        self.picker, self.calls, self.now_s, self.coming = picker, {}, 0.0, -1  # type: ignore[var-annotated]
        self.told: list[tuple[int, int]] = []  # (request, engine), as the gateway was told
        proxy, arrive = picker.proxy, self.router.arrive
        proxy.router, proxy.now_s = self.router, lambda: self.now_s
        proxy.reader = TermsReader(dataclasses.replace(proxy.reader.defaults, first_token_weight=FIRST_WEIGHT))

        cards = {f"adapter {k}": {"parent": "base"} for k in range(1, 8)}
        for name in cards:
            proxy.loras.number(name)
        for backend in proxy.backends.all:
            backend.models = {"base": {}} | cards

        def arriving(now_s: float, asked: Any, chunks: Any = ()) -> int:
            row = arrive(now_s, asked, chunks)
            self.row[self.coming], self.number[row] = row, self.coming
            return row

        self.router.arrive = arriving  # type: ignore[method-assign]

    def arrive(self, now_s: float, r: int) -> None:
        self.now_s, self.coming = now_s, r
        one, call = self.table[r], Call(self.picker.target)
        model = f"adapter {one.adapter}" if one.adapter else "base"
        asked = {"ttft_slo_s": float(one.ttft_slo_s), "tpot_slo_s": float(one.tpot_slo_s), "weight": float(one.weight)}
        if np.isfinite(one.ttlt_slo_s):
            asked["ttlt_slo_s"] = float(one.ttlt_slo_s)
        body = prompt(prompt=[0] * int(one.prompt_tokens), vllm_xargs=asked, priority=int(one.priority), model=model)
        answer = call.ask(body)
        if answer.HasField("immediate_response"):
            assert refused(answer)[0] == 429
            self.told.append((r, REFUSE))
            call.end()
            self.row.pop(r)
            return
        went = endpoint(answer)
        self.told.append((r, URLS.index(f"http://{went}")))
        assert call.body() == body
        call.answered()
        self.calls[r] = call

    def event(self, now_s: float, kind: int, e: int, r: int, recalled: list[int]) -> None:
        self.now_s = now_s
        router, self.router = self.router, self.through(r)  # type: ignore[assignment]
        super().event(now_s, kind, e, r, recalled)
        self.router = router

    def through(self, r: int) -> Any:
        """In place of the router: what it would be told of request r goes by way of the gateway."""
        call = self.calls[r]

        class ByGateway:
            def token(self, now_s: float, row: int) -> None:
                call.token()

            def leave(self, now_s: float, row: int, finished: bool) -> None:
                assert finished
                call.finish()

        return ByGateway()


ADAPTERS = ("predicted-cost", "lora-affinity", "lost-gain")
NAMES = (*ADAPTERS, "learned:session-fleet", "gorouting", "min-load", "kv-aware", "refusing")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_gateway_is_told_what_the_simulated_router_decided(name: str, tmp_path: Path) -> None:
    """Requests name adapters where the router looks at them; "refusing": a learned router that refuses some."""
    policy = router("min-load" if name == "refusing" else name)
    if name == "refusing":
        policy = load_policy(save_policy(refusing_where_late(policy), tmp_path / "mine.json", {}))
    of = scenario(policy, workload(len(name), requests=80, adapters=name in ADAPTERS))
    items, at_end = recorded(of)
    simulated = [item for item in items if isinstance(item, Decision)]
    with picking(URLS, UNCHECKED) as picker:
        replayed = GatewayReplay(of, at_end, picker)
        replayed.play(items)
        idle(picker)
    assert replayed.told == [(one.request, one.engine) for one in simulated]
    assert any(one.engine == REFUSE for one in simulated) == (name == "refusing")
    assert len({one.engine for one in simulated}) > 1 and len(simulated) == 80
    for mine, theirs in zip(replayed.asked, simulated, strict=True):
        assert mine.adapters == theirs.adapters
        for name in mine.snapshots.dtype.names:  # one by one: records with the same nan differ
            np.testing.assert_array_equal(mine.snapshots[name], theirs.snapshots[name], name)
