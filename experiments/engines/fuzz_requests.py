"""Requests of a fuzz run: what a client may ask of vLLM, drawn at random, and what its front end would make of it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np

from experiments.engines.vllm_driving import block_hasher
from servegym.errors import VllmError

FEATURES = ("drafts", "aborts", "stop tokens", "stop strings", "n > 1", "grammars", "LoRA", "images", "malformed terms")
STOP_TOKEN = 3
FIRST_OUTPUT_ID = 1000  # token k of an answer has the id FIRST_OUTPUT_ID + k: what comes out of turn is seen
MALFORMED = {"ttft_slo_s": "soon", "tpot_slo_s": -1, "weight": [1], "client": {"a": 1}}
ADAPTERS, MOST_ADAPTERS = 4, 2  # that requests name, and that a step may have
ENCODER_TOKENS, ENCODER_CACHE = 256, 512  # of images: in a step, and kept


@dataclasses.dataclass
class Asked:
    """A request of a run. ends_after: tokens after which it is over; None: when it has max_tokens. stops: "token" (the
    last one says so), "string" (the front end sees it, and takes the request back), "abort" (the client has gone).
    """

    request_id: str
    arrival_s: float
    prompt: list[int]
    max_tokens: int
    ends_after: int | None = None
    stops: str = ""
    grammar_s: float | None = None  # when its grammar is ready
    adapter: int = 0  # 0: none
    images: tuple[tuple[int, int], ...] = ()  # place and length of each
    terms: dict[str, Any] = dataclasses.field(default_factory=dict)
    priority: int = 0

    @property
    def tokens(self) -> int:
        """Tokens that come out at most; but for those that are taken back, at least too."""
        return self.max_tokens if self.ends_after is None else min(self.max_tokens, self.ends_after)


class FakeGrammar:
    """It takes any token. (A real one needs a tokenizer; when it is ready is what a scheduler sees of it.)"""

    def accept_tokens(self, *_: Any) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def is_terminated(self) -> bool:
        return False


def draw(random: np.random.Generator, features: frozenset[str], count: int, rate_per_s: float) -> list[Asked]:
    """Requests in order of arrival: some begin alike, and each may have some of the features."""
    systems = [random.integers(10, 500, int(n)).tolist() for n in random.integers(16, 200, 3)]
    most_prompt, most_output = ((30, 300), (100, 300), (400, 20), (400, 120))[int(random.integers(4))]
    asked: list[Asked] = []
    for number, arrival_s in enumerate(np.cumsum(random.exponential(1 / rate_per_s, count)).tolist()):
        prompt = list(systems[random.integers(3)]) if random.random() < 0.6 else []
        prompt += random.integers(10, 500, int(random.integers(1, most_prompt))).tolist()
        one = Asked(str(number), arrival_s, prompt, int(random.integers(1, most_output)))
        one.priority = int(random.integers(3))
        one.terms = {"ttft_slo_s": float(random.choice([0.3, 1.0])), "weight": float(random.integers(1, 4))}
        said = {feature for feature in FEATURES if random.random() < 0.3} & features
        for feature, stops in (("aborts", "abort"), ("stop tokens", "token"), ("stop strings", "string")):
            if feature in said:
                one.ends_after, one.stops = int(random.integers(1, most_output)), stops
        if "grammars" in said:
            one.grammar_s = arrival_s + float(random.exponential(0.1))
        if "LoRA" in said:
            one.adapter = int(random.integers(1, ADAPTERS + 1))
        if "images" in said and len(one.prompt) > 60:
            one.images = ((int(random.integers(len(one.prompt) - 50)), int(random.integers(5, 50))),)
        if "malformed terms" in said:
            one.terms |= MALFORMED
        asked.append(one)
        if "n > 1" in said:
            for sample in range(int(random.integers(1, 4))):
                longer = int(random.integers(1, most_output))
                asked.append(dataclasses.replace(one, request_id=f"{number}_{sample}", max_tokens=longer))
    return asked


def prepare(scheduler: Any, features: frozenset[str]) -> None:
    """Give a scheduler the configuration that a server with these features has."""
    if "grammars" in features:
        from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

        StructuredOutputGrammar.register(FakeGrammar)  # vLLM 0.28 asserts that a grammar is one
    if "LoRA" in features:
        scheduler.lora_config = SimpleNamespace(max_loras=MOST_ADAPTERS)
    if "images" in features:
        from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

        scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=ENCODER_CACHE)


class Maker:
    """Makes requests as vLLM's front end hands them to the engine core."""

    def __init__(self, block_tokens: int, caching: bool):
        self.hasher = block_hasher(block_tokens) if caching else None

    def request(self, asked: Asked) -> Any:
        from vllm.lora.request import LoRARequest
        from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
        from vllm.sampling_params import SamplingParams, StructuredOutputsParams
        from vllm.v1.request import Request

        sampling = SamplingParams(max_tokens=asked.max_tokens, stop_token_ids=[STOP_TOKEN], extra_args=asked.terms)
        if asked.grammar_s is not None:
            sampling.structured_outputs = StructuredOutputsParams(json='{"type": "object"}')
        name = f"adapter {asked.adapter}"
        return Request(
            request_id=asked.request_id,
            prompt_token_ids=asked.prompt,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=asked.arrival_s,
            priority=asked.priority,
            block_hasher=self.hasher,
            lora_request=LoRARequest(name, asked.adapter, "/nowhere") if asked.adapter else None,
            mm_features=[
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=f"{asked.request_id} {place}",
                    mm_position=PlaceholderRange(offset=place, length=length),
                )
                for place, length in asked.images
            ]
            or None,
        )


def answer(asked: Asked, number: int) -> int:
    """The id of token `number` (from 0) of the answer."""
    if asked.stops == "token" and asked.ends_after is not None and number == asked.ends_after - 1:
        return STOP_TOKEN
    return FIRST_OUTPUT_ID + number


def check_answer(asked: Asked, got: list[int], taken_back: bool) -> None:
    """Raise VllmError where a token is lost, came twice or out of turn."""
    expected = [answer(asked, number) for number in range(len(got))]
    if got != expected:
        raise VllmError(f"request {asked.request_id}: tokens {got}; they should be {expected}")
    if not taken_back and len(got) != asked.tokens:
        raise VllmError(f"request {asked.request_id} has ended with {len(got)} tokens of {asked.tokens}")
