"""LoRA adapters of live engines: which adapter a request names, which engines list it, and which of them run.

An engine serves an adapter as a model of its own, whose card in /v1/models has a `parent`. vLLM's gauge
vllm:lora_requests_info has the adapters of running and of waiting requests as labels, and the time at which they were
last these as its value (vllm/v1/metrics/loggers.py). vLLM 0.32 has the same adapters in both: those of all requests
with output (vllm/v1/metrics/stats.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from servegym.adapters.routing.backends import Backend, Backends
from servegym.adapters.routing.refusals import Refused
from servegym.simulator.features.adapters import MOST_LORAS

LOG = logging.getLogger("servegym.proxy")
GAUGE = b"vllm:lora_requests_info"
MODELS = "/v1/models"
LONGEST_NAME = 200  # characters of a name in a message


def cards_of(body: bytes | None) -> dict[str, dict[str, Any]] | None:
    """Return the cards of an engine's models by name; None: the body is no list of models."""
    try:
        return {str(card["id"]): dict(card) for card in json.loads(body or b"")["data"]}
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def running_and_waiting(metrics: bytes) -> tuple[list[str], list[str], int] | None:
    """Return the adapters of running requests, of waiting ones, and max_loras; None: the gauge has no value yet."""
    samples = [line.decode(errors="replace") for line in metrics.splitlines() if line.startswith(GAUGE + b"{")]
    try:
        newest = max(samples, key=lambda line: float(line.rpartition(" ")[2]), default="")
        for family in text_string_to_metric_families(newest):
            labels = family.samples[0].labels
            running, waiting = (
                [name for name in labels[f"{kind}_lora_adapters"].split(",") if name] for kind in ("running", "waiting")
            )
            return running, waiting, min(max(1, int(labels["max_lora"])), MOST_LORAS["max_loras"])
    except (ValueError, LookupError):
        return None
    return None


class Loras:
    """Numbers the adapters of a proxy's engines.

    report(e, running, waiting, max_loras): is called with what engine e reports, adapters by number. headers: sent with
    requests for lists of models.
    """

    def __init__(self, backends: Backends, poll_s: float, report: Callable[[int, list[int], list[int], int], None]):
        self._backends, self._poll_s, self._report = backends, poll_s, report
        self.headers: list[tuple[str, str]] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of an adapter, from 1 in the order of asking."""
        return self._numbers.setdefault(name, len(self._numbers) + 1)

    def name(self, number: int) -> str:
        """Return the name of an adapter; empty for 0, the model itself."""
        return next((name for name, one in self._numbers.items() if one == number), "")

    def named_by(self, model: Any) -> tuple[int, set[int]]:
        """Return the adapter that a request's `model` names, 0: none, and the engines that do not list this model.

        An engine whose list is not known may serve it. Raises Refused (404) if every list is known and none has it.
        """
        if not isinstance(model, str) or not model:
            return 0, set()  # vLLM serves its own model then
        engines = [one for one in self._backends.all if not one.gone]
        lacking = {one.index for one in engines if one.models is not None and model not in one.models}
        if engines and len(lacking) == len(engines):
            message = f"The model `{model[:LONGEST_NAME]}` does not exist."
            raise Refused(404, message, "NotFoundError")  # as vLLM (entrypoints/openai/models/serving.py)
        adapted = any((one.models or {}).get(model, {}).get("parent") for one in engines)
        return self.number(model) if adapted else 0, lacking

    def cards(self) -> list[dict[str, Any]]:
        """Return the cards of all models that engines list."""
        found: dict[str, dict[str, Any]] = {}
        for one in self._backends.all:
            found |= {} if one.gone else one.models or {}
        return list(found.values())

    async def follow(self, backend: Backend) -> None:
        """Read the models that an engine lists, and the adapters that it reports, until it is gone."""
        complaints: Sequence[str] = ()
        while not backend.gone:
            if backend.up:
                found = await self._read(backend)
                for complaint in found:
                    if complaint not in complaints:
                        LOG.warning("engine %s (%s): %s", backend.name, backend.url, complaint)
                complaints = found
            await asyncio.sleep(self._poll_s)

    async def _read(self, backend: Backend) -> list[str]:
        """Read them once. Returns what is wrong with them."""
        complaints = []
        cards = cards_of(await self._backends.get(backend, MODELS, self.headers))
        if cards is None:
            complaints.append(f"GET {MODELS} gives no list; if it takes a key, set SERVEGYM_ENGINE_KEY")
        else:
            backend.models = cards
        metrics = await self._backends.get(backend, "/metrics")
        if metrics is None or GAUGE not in metrics:
            complaints.append(f"/metrics has no {GAUGE.decode()}; the router goes by the adapters that it sends there")
        elif (state := running_and_waiting(metrics)) is not None:
            running, waiting = ([self.number(name) for name in names] for names in state[:2])
            self._report(backend.index, running, waiting, state[2])
        return complaints
