"""Calls aiconfigurator-core for steps of a model on GPUs with measured operators, and for its KV cache."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from servegym.errors import ProfileError, unknown_name
from servegym.extras import install_command
from servegym.latency_models.building.specifications import REQUEST_TOKENS, STEP_TOKENS
from servegym.latency_models.model_configs.kv_groups import BLOCK_TOKENS, grouped, kept_by
from servegym.latency_models.model_configs.reading import Architecture
from servegym.latency_models.step_models.known_configs import architecture_of, kv_precision, model_of, own_config
from servegym.latency_models.step_models.naming import Served

PACKAGE = "aiconfigurator-core"
MS = 1e-3
ATTENTION = re.compile("attention|mla")  # in names of operators; the time of others depends on a step's tokens only
OF_TOTAL, OF_FREE = "of_total", "of_free"  # whether an engine's share is of total or of free memory
ENDLESS_BYTES = 2**50  # memory of a GPU that holds any model
CURRENT = "current"  # the library's name of the newest complete version of an engine's tables
GEMM = {"bf16": "bfloat16"}  # the library's names that differ from ours
COMPRESSED = "compress_ratios"  # of DeepSeek-V4, whose layers keep a key for each 4 or 128 tokens
MESSAGE_CHARACTERS = 300  # kept of the library's messages
MOST_TOKENS, MOST_SEQUENCES = 16384, 1024  # tokens of a step, for the memory of activations


def module(name: str) -> Any:
    """Import a module of the library's SDK. Raises ProfileError if it is not installed."""
    try:
        return importlib.import_module(f"aiconfigurator_core.sdk.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] != "aiconfigurator_core":
            raise
        raise ProfileError(f"devices by SYSTEM:MODEL need {PACKAGE}: {install_command('devices')}") from None


def library_version() -> str:
    """Return the version of the installed library. Raises ProfileError if it is not installed."""
    module("common")
    return importlib.metadata.version(PACKAGE)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence the library's messages about fallback tables inside the with block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@functools.cache
def support() -> tuple[dict[str, str], ...]:
    """Load the library's table of tested models: HuggingFaceID, System, Backend, Version, Status, ..."""
    return tuple(module("common").get_support_matrix())


def systems() -> list[str]:
    return sorted({row["System"] for row in support()})


def models(system: str) -> list[str]:
    """List the models that passed its tests on a system, under any engine. Raises ProfileError for unknown systems."""
    if system not in systems():
        raise ProfileError(unknown_name("system", system, systems()))
    return sorted({row["HuggingFaceID"] for row in support() if row["System"] == system and row["Status"] == "PASS"})


def arguments(served: Served) -> dict[str, Any]:
    """Make the arguments of the library's functions, without model, system and engine."""
    weights = GEMM.get(served.weights or "", served.weights)
    kv = kv_precision(served)
    return {
        "backend_version": served.version or CURRENT,
        "tp_size": served.tp,
        "attention_dp_size": served.dp,
        "moe_tp_size": served.tp * served.dp // served.ep,
        "moe_ep_size": served.ep,
        "gemm_quant_mode": weights,
        "moe_quant_mode": weights,
        "kvcache_quant_mode": GEMM.get(kv or "", kv),
        "fmha_quant_mode": GEMM["bf16"] if kv == "bf16" else None,  # else the library's choice
    }


def sum_of(operators: list[tuple[str, float, float, str]]) -> tuple[float, float]:
    """Sum a step's operators: (all but attention, attention), s."""
    rest_ms = attention_ms = 0.0
    for name, took_ms, *_ in operators:
        if ATTENTION.search(name):
            attention_ms += took_ms
        else:
            rest_ms += took_ms
    return rest_ms * MS, attention_ms * MS


class StepModel:
    """The library's predictions of the parts of a step, in seconds, for one model on one system.

    Raises ProfileError if the library has no data for it, with the library's message and the known names.
    """

    def __init__(self, served: Served) -> None:
        engine = module("engine")
        models(served.system)
        known = architecture_of(served)
        if isinstance(known, Architecture) and not known.by_token():
            raise ProfileError(
                f"device '{served.text}': {PACKAGE} has no models of states alone; servegym profile from-config "
                "composes them"
            )
        self.served = served
        with self._failures(named=True), quietly():
            self._handle = engine.EngineHandle.compile(
                model_of(served), served.system, served.engine, **arguments(served)
            )
            self._handle.predict_prefill_latency(1, 128, 0)  # tables are read at the first steps
            self._handle.predict_decode_latency(1, 128)
        if served.dp > 1 and not self.has_experts:
            raise ProfileError(
                f"device '{served.text}': dp is for models with experts, which its ranks share; the model has none: "
                "take more engines"
            )

    @contextlib.contextmanager
    def _failures(self, named: bool = False) -> Iterator[None]:
        """Convert the library's errors to ProfileErrors. named: the model's name may be wrong."""
        try:
            yield
        except ProfileError:
            raise
        except Exception as error:  # of many types, some of them plain RuntimeErrors
            message = " ".join(str(error).split()) or type(error).__name__
            message = f"the config has no {message}" if isinstance(error, KeyError) else message
            known = models(self.served.system) if named and not own_config(self.served) else [self.served.model]
            hint = "" if self.served.model in known else "; " + unknown_name("model", self.served.model, known)
            text = f"{PACKAGE} says: {message[:MESSAGE_CHARACTERS]}{hint}"
            raise ProfileError(f"device '{self.served.text}': {text}") from None

    @functools.cached_property
    def has_experts(self) -> bool:
        prefills, _ = self._handle.run_static_per_op(batch_size=1, isl=16, osl=1, mode="static_ctx")
        return any("moe" in name for name, *_ in prefills)

    def rest_s(self, tokens: int) -> float:
        """Time all but attention of a step with a prefill that computes `tokens` tokens, s."""
        return self._of_prefills(1, tokens, 0)[0]

    def prefill_attention_s(self, requests: int, chunk: int, prefix: int) -> float:
        """Time attention of `requests` prefills, each of `chunk` tokens after `prefix` cached ones, s."""
        return self._of_prefills(requests, chunk, prefix)[1]

    def decode_attention_s(self, requests: int, context: int) -> float:
        """Time attention of decodes with `context` cached tokens each, s."""
        with self._failures():
            _, decodes = self._handle.run_static_per_op(batch_size=requests, isl=context, osl=2, mode="static_gen")
        return sum_of(decodes)[1]

    def prefill_s(self, requests: int, chunk: int, prefix: int) -> float:
        """Time a step of prefills, each of `chunk` tokens after `prefix` cached ones, s."""
        with self._failures():
            return float(self._handle.predict_prefill_latency(requests, chunk + prefix, prefix)) * MS

    def decode_s(self, requests: int, context: int) -> float:
        """Time a step of decodes with `context` cached tokens each, s."""
        with self._failures():
            return float(self._handle.predict_decode_latency(requests, context)) * MS

    def _of_prefills(self, requests: int, chunk: int, prefix: int) -> tuple[float, float]:
        with self._failures():
            prefills, _ = self._handle.run_static_per_op(
                batch_size=requests, isl=chunk + prefix, osl=1, prefix=prefix, mode="static_ctx"
            )
        return sum_of(prefills)

    def kv_cache(self, memory_share: float = 0.9) -> dict[str, Any]:
        """Count `kv` of a profile, for an engine that takes a share of each GPU's memory.

        If all layers keep every token, it is the library's estimate, in bytes as if every token were kept once (with
        MLA each GPU keeps all of a token). Else that memory is divided into blocks of KV cache groups.
        """
        of_one = self._estimate(memory_share, self.served)
        usable, per_token = int(of_one["total_kv_size_bytes"]), float(of_one["kv_size_per_token_bytes"])
        model = architecture_of(self.served)
        if isinstance(model, str) and COMPRESSED in model:
            raise ProfileError(
                f"device '{self.served.text}': {PACKAGE} has step times of it, and counts {per_token:,.0f} bytes of KV "
                f"for each token, {int(usable / per_token):,} tokens in all; what its layers keep ({COMPRESSED} of its "
                "config) is far less, and is not read; take a model without compressed keys"
            )
        if isinstance(model, Architecture) and model.keeps_less:
            groups = grouped(kept_by(model, self.served.tp), usable, f"device '{self.served.text}'")
            tokens = groups.tokens(REQUEST_TOKENS, STEP_TOKENS)
            whole = model.kv_bytes_per_token or usable // max(1, tokens)
            layers = ", ".join(f"{count} {kind}" for kind, count in model.kinds.items())
            counted = (
                f"layers: {layers}; as vLLM groups them; block_tokens and usable_bytes are for requests of "
                f"{REQUEST_TOKENS} tokens, of which one computes {STEP_TOKENS} at once"
            )
            memory = groups.in_profile(REQUEST_TOKENS, STEP_TOKENS)
        else:
            everything = dataclasses.replace(self.served, tp=1, dp=1, ep=1)
            whole = round(float(self._estimate(1.0, everything, ENDLESS_BYTES)["kv_size_per_token_bytes"]))
            tokens = int(usable / per_token)
            why = f"; all layers count alike: {model}" if isinstance(model, str) else ""
            counted = f"{per_token:g} bytes a token there{why}"
            memory = {"block_tokens": BLOCK_TOKENS, "total_blocks": tokens // BLOCK_TOKENS}
        if tokens < BLOCK_TOKENS:
            raise ProfileError(f"device '{self.served.text}': the weights leave no memory for keys and values")
        kind = "of total" if self._memory_kind == OF_TOTAL else "of free"
        return {
            "bytes_per_token": whole,
            "usable_bytes": tokens * whole,
            **memory,
            "arithmetic": f"{PACKAGE}'s estimate, {memory_share:g} {kind} memory, {of_one['total_gpu_capacity_bytes']} "
            f"bytes a GPU: {usable} bytes for KV on each, {counted}; "
            f"{json.dumps(of_one['memory_breakdown'], default=str)}",
        }

    @property
    def _memory_kind(self) -> str:
        return OF_FREE if self.served.engine == "trtllm" else OF_TOTAL

    def _estimate(self, memory_share: float, served: Served, gpu_bytes: int | None = None) -> dict[str, Any]:
        with self._failures(), quietly():
            found: dict[str, Any] = module("memory").estimate_kv_cache(
                model_of(served), served.system, served.engine, max_num_tokens=MOST_TOKENS,
                max_batch_size=MOST_SEQUENCES, memory_fraction_kind=self._memory_kind,
                memory_fraction_value=memory_share, gpu_memory_capacity_bytes_override=gpu_bytes,
                **arguments(served),
            )  # fmt: skip
            return found
