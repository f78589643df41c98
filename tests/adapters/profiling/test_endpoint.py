"""A server measured from outside: the steps that its streams show are the ones it took."""

import asyncio

import pytest

from servegym.adapters.profiling.design import Batch, Prefill, Space
from servegym.errors import ProfilingError
from tests.adapters.replay.fake_server import Answer, serving

pytest.importorskip("httpx")
STEP_S, TOKEN_S = 0.02, 0.004
SPACE = Space(batch_tokens=128, sequences=8, context_tokens=2048, kv_tokens=4096)


class Engine:
    """Steps of 20 ms, and 4 ms more a token of a prompt; all requests that are there take part in the next one."""

    def __init__(self):
        self.waiting, self.running, self.stepping = [], [], None
        self.steps = []

    async def live(self, body):
        tokens = asyncio.Queue()
        mine = (tokens, len(body["prompt"]))
        self.waiting.append(mine)
        if self.stepping is None:
            self.stepping = asyncio.ensure_future(self.step())
        try:
            for _ in range(body["max_tokens"]):
                yield await tokens.get()
        finally:
            self.running = [each for each in self.running if each is not mine]

    async def step(self):
        while self.waiting or self.running:
            new, self.waiting = self.waiting, []
            prompts = sum(prompt for _, prompt in new)
            self.steps.append((len(self.running), prompts))
            self.running += new
            now = list(self.running)
            await asyncio.sleep(STEP_S + TOKEN_S * prompts)
            for tokens, _ in now:
                tokens.put_nowait(1)
            await asyncio.sleep(0)
        self.stepping = None


def measured(batch, repeats=5):
    from servegym.adapters.profiling.endpoint import EndpointMeter
    from servegym.adapters.replay.sending import Endpoint

    engine = Engine()
    with serving(lambda number, body: Answer(live=engine.live)) as server:
        return EndpointMeter(Endpoint(server.url, 20), "fake", SPACE).measure(batch, repeats), engine


def test_decodes_take_a_step():
    result, engine = measured(Batch(decodes=(10, 20, 30)))
    sums = result.batch[0]
    assert (sums["decode_requests"], sums["prefill_requests"]) == (3, 0)
    assert 60 < sums["decode_cached_tokens"] < 60 + 3 * 40
    assert len(result.seconds) == 5
    assert result.seconds.sum() > 5 * STEP_S / 2  # the tokens may be late to be seen, the first of them too
    assert (3, 0) in engine.steps


@pytest.mark.slow
def test_a_prompt_is_in_the_step_that_its_token_ends():
    result, engine = measured(Batch((Prefill(60),), (10, 20)), 3)
    sums = result.batch[0]
    assert (sums["decode_requests"], sums["prefill_tokens"], sums["prefill_cached_tokens"]) == (2, 60, 0)
    assert (2, 60) in engine.steps
    assert max(result.seconds) > 60 * TOKEN_S / 2


@pytest.mark.slow
def test_prefills_alone_are_measured_beside_a_decode_and_within_the_budget():
    result, _ = measured(Batch((Prefill(100, 50), Prefill(100))), 2)
    sums = result.batch[0]
    assert (sums["decode_requests"], sums["prefill_requests"], sums["prefill_tokens"]) == (1, 2, 126)


def test_servers_that_refuse_or_end_early():
    from servegym.adapters.profiling.endpoint import EndpointMeter
    from servegym.adapters.replay.sending import Endpoint

    for answer, word in (
        (Answer(status=400, body='{"error": {"message": "too long"}}'), "400: too long"),
        (Answer([(0, 1)]), "ended a stream early"),
        (Answer([(0, 1)], dies=True), "closed the connection"),
        (Answer(hangs=True), "no token in 0.5 s"),
    ):
        with serving(lambda number, body, answer=answer: answer) as server:
            meter = EndpointMeter(Endpoint(server.url, 0.5), "fake", SPACE)
            with pytest.raises(ProfilingError, match=word):
                meter.measure(Batch(decodes=(10,)), 2)
    with pytest.raises(ProfilingError, match="closed the connection"):
        EndpointMeter(Endpoint("http://127.0.0.1:9"), "fake", SPACE).measure(Batch(decodes=(10,)), 2)
