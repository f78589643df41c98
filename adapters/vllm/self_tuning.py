"""Self-tuning in vLLM: parameters are chosen anew, in a thread, by the requests that have come (docs/self_tuning.md).

What is known of them is written down as they come and go; at a choice they are served again in simulations of this
engine, as the estimator has it now, each in one go (nothing is known of what prompts found in the prefix cache).
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from servegym.adapters.vllm.metrics import Metrics
from servegym.adapters.vllm.mirror import Mirror
from servegym.simulator.inputs.deployment import Deployment, EstimatorModel
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.workload import FIELDS, Workload
from servegym.simulator.policies.gains import Gain
from servegym.simulator.policies.policy import Policy
from servegym.simulator.policies.self_tuning import with_setting
from servegym.simulator.records.types import NO_LIMIT, WORKLOAD
from servegym.simulator.runs.simulation import serve_with
from servegym.simulator.runs.tuner import Believed, best_setting, likely_lengths

COPIED = tuple(name for name in FIELDS if name != "output_tokens")  # those that the mirror has of a request


@dataclasses.dataclass
class Known:
    """A request that has come.

    row: WORKLOAD, but for output_tokens. most: tokens that its answer can have. slot: in the mirror; None: it is gone,
    with `emitted` tokens out.
    """

    row: np.void
    most: int
    slot: int | None
    emitted: int = 0


class EngineTuning:
    """Has a mirror's policy tune itself.

    present: index of the setting in use; 0: its own. Choices, and those that changed it, are counted in the metrics.
    The engine goes on whatever happens in the thread: after an error, which is logged, nothing is chosen any more.
    """

    def __init__(
        self,
        mirror: Mirror,
        policy: Policy,
        numbers_of: Callable[[Policy], np.ndarray],
        estimator: EstimatorModel,
        metrics: Metrics,
        warn: Callable[[str], None],
    ):
        assert policy.self_tuning is not None
        self.mirror, self.policy, self.tuning = mirror, with_setting(policy, {}), policy.self_tuning
        self.estimator, self.metrics, self.warn = estimator, metrics, warn
        self.numbers = [numbers_of(one)[None, :] for one in self.tuning.policies(policy)]
        self.known: deque[Known] = deque(maxlen=self.tuning.window)
        self.of_slot: dict[int, Known] = {}
        self.came, self.present = 0, 0
        self.next: float = self.tuning.first  # it chooses when so many have come; inf: no more
        self.thread: threading.Thread | None = None
        self.chosen: int | None = None  # by the thread, and not in use yet
        two = Workload.from_columns({"arrival_s": [0.0, 0.0], "prompt_tokens": [1, 1], "output_tokens": [2, 2]})
        serve_with(self._scenario(two), self.numbers[0])  # compiled, or read from the cache, before any request waits

    def enter(self, slot: int) -> None:
        """A request has come to the mirror."""
        request, row = self.mirror.run.requests[slot], np.zeros(1, WORKLOAD)[0]
        for name in COPIED:
            row[name] = request[name]
        self.of_slot[slot] = known = Known(row, int(self.mirror.most_output_tokens[slot]), slot)
        self.known.append(known)
        self.came += 1
        if self.came >= self.next and self.thread is None:
            self.next = self.tuning.after(self.came)
            self.thread = threading.Thread(target=self._choose, args=(self.seen(),), daemon=True)
            self.thread.start()

    def leave(self, slots: Sequence[int]) -> None:
        """Requests are about to leave the mirror. One that was taken back had the answer that it got."""
        for slot in slots:
            known = self.of_slot.pop(slot)
            known.slot, known.emitted = None, int(self.mirror.delivered[slot])

    def look(self) -> None:
        """Before a decision, apply the setting that has been chosen meanwhile."""
        if self.thread is None or self.thread.is_alive():
            return
        self.thread = None
        if self.chosen is None:
            self.next = np.inf
            return
        self.metrics.add("choices")
        self.metrics.add("changes", self.chosen != self.present)
        self.present, self.chosen = self.chosen, None
        numbers = self.numbers[self.present]
        self.mirror.run.parameters[:, : numbers.shape[1]] = numbers

    def seen(self) -> Scenario:
        """A scenario of this engine with the latest requests, as far as they are known."""
        known = [one for one in self.known if one.slot is not None or one.emitted > 0]
        table = np.array([one.row for one in known], WORKLOAD)
        finished = np.array([one.slot is None for one in known])
        emitted = np.array([one.emitted if one.slot is None else self.mirror.delivered[one.slot] for one in known])
        memory = self.mirror.total_blocks * int(self.mirror.run.engines["block_tokens"][0])
        most = np.minimum(np.array([one.most for one in known]), memory + 1 - table["prompt_tokens"])
        lengths = np.minimum(likely_lengths(emitted, emitted, finished), most)
        table["output_tokens"] = np.maximum(lengths, 1)
        table = table[np.argsort(table["arrival_s"], kind="stable")]
        table["arrival_s"] -= table["arrival_s"][0]
        return self._scenario(Workload(table))

    def _scenario(self, workload: Workload) -> Scenario:
        run, estimator = self.mirror.run, self.estimator
        most_tokens, max_num_seqs = (int(n) if n < NO_LIMIT else None for n in run.engine_limits[0])
        believed = Believed(estimator.batch_s, run.estimate[0][: len(estimator.coefficients)].copy())
        engine = Deployment(
            believed,
            estimator,
            self.mirror.total_blocks,
            block_tokens=int(run.engines["block_tokens"][0]),
            watermark=int(run.engines["watermark_blocks"][0]) / self.mirror.total_blocks,
            name="vLLM's engine",
            max_num_batched_tokens=most_tokens,
            max_num_seqs=max_num_seqs,
        )
        return Scenario(workload, engine, self.policy, Gain(first_weight=self.mirror.first_token_weight))

    def _choose(self, seen: Scenario) -> None:
        try:
            self.chosen = best_setting(seen, self.tuning, self.numbers, self.present, serve_with)
        except Exception as error:  # whatever the error, the engine goes on
            self.warn(f"{self.policy.label} could not be tuned ({error}): its parameters stay as they are")
