"""An engine that caches prefixes and does what a caching mirror plans: a slow block pool, written from
docs/feature_rules.md, whose operations are told to the mirror as the plug-in tells it vLLM's."""

from __future__ import annotations

import numpy as np

from experiments.engines.cached_blocks import Name, name_of
from experiments.engines.vllm_driving import Limits, Step
from servegym.adapters.vllm import block_kernels as kinds
from servegym.adapters.vllm.caching_mirror import CachingMirror, names
from servegym.latency_models.profile import Profile
from servegym.simulator.features.disturbances import Correction
from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.scenario import Scenario
from servegym.simulator.inputs.settings import clients_of
from servegym.simulator.inputs.workload import Workload
from servegym.simulator.policies.policy import Policy
from tests.adapters.vllm.mirror_engine import MOST, terms_of


class Pool:
    """Blocks with names, and what was done to them since `told` was emptied."""

    def __init__(self, blocks: int):
        self.free = list(range(blocks))
        self.references = [0] * blocks
        self.name: list[Name | None] = [None] * blocks
        self.named: dict[Name, list[int]] = {}
        self.told: list[tuple[int, int, int]] = []

    def take(self) -> int:
        block = self.free.pop(0)
        old = self.name[block]
        if old is not None:
            self.named[old].remove(block)
            self.name[block] = None
        self.references[block] = 1
        self.told.append((kinds.TAKEN, block, 0))
        return block

    def touch(self, block: int) -> None:
        if self.references[block] == 0:
            self.free.remove(block)
        self.references[block] += 1
        self.told.append((kinds.TOUCHED, block, 0))

    def give_up(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.insert(0 if self.name[block] is None else len(self.free), block)
            self.told.append((kinds.FREED, block, 0))

    def give_name(self, block: int, name: Name, number: int) -> None:
        if self.name[block] is None:
            self.name[block] = name
            self.named.setdefault(name, []).append(block)
            self.told.append((kinds.NAMED, block, int(names(np.array([number], "i4"), name[1])[0])))

    def found(self, wanted: list[Name], most: int) -> list[int]:
        blocks: list[int] = []
        for name in wanted[:most]:
            if not self.named.get(name):
                break
            blocks.append(self.named[name][0])
        return blocks


class Engine:
    """Serves a workload by a mirror's plans. Raises AssertionError where a request does not find what was planned."""

    def __init__(self, workload: Workload, limits: Limits, policy: Policy, profile: Profile):
        deployment = Deployment(
            profile.device, profile.estimator, limits.blocks, block_tokens=limits.block_tokens, prefix_caching=True
        )
        scenario = Scenario(workload, deployment, policy)
        first = float(workload.table["prompt_tokens"].mean() / workload.table["output_tokens"].mean())
        self.workload, self.table = workload, workload.table
        self.device, self.size = profile.device, limits.block_tokens
        most = int((self.table["prompt_tokens"] + self.table["output_tokens"]).max())
        self.mirror = CachingMirror(
            policy, policy.numbers(scenario.fact), profile.estimator, limits.blocks, self.size, 0, Correction(), first,
            context_blocks=most // self.size + 2,
        )  # fmt: skip
        self.pool, self.numbers = Pool(limits.blocks), dict[Name, int]()
        self.row_of: dict[int, int] = {}
        self.request_of: dict[int, int] = {}
        self.held: dict[int, list[int]] = {}
        self.computed = np.zeros(len(workload), int)
        self.emitted = np.zeros(len(workload), int)

    def names(self, request: int) -> list[Name]:
        """Of its blocks that are full of tokens which are known."""
        full = (self.table["prompt_tokens"][request] + self.emitted[request]) // self.size
        return [name_of(self.workload, request, i, self.size) for i in range(full)]

    def know(self, request: int) -> None:
        wanted = self.names(request)
        self.mirror.know(self.row_of[request], 0, np.array([self.number(name) for name in wanted], "i4"))

    def number(self, name: Name) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def tell(self) -> None:
        self.mirror.replay(np.array(self.pool.told, "i8").reshape(-1, 3))
        self.pool.told.clear()
        assert self.mirror.free_blocks == len(self.pool.free)

    def drop(self, request: int) -> None:
        self.pool.give_up(self.held.pop(request))
        self.pool.told.append((kinds.GIVEN_UP, self.row_of[request], 0))

    def admit(self, request: int, planned: int) -> None:
        wanted = self.names(request)
        most = (int(self.table["prompt_tokens"][request] + self.emitted[request]) - 1) // self.size
        found = self.pool.found(wanted, most)
        assert len(found) * self.size == planned
        for block in found:
            self.pool.touch(block)
        self.held[request], self.computed[request] = found, planned

    def compute(self, request: int, tokens: int) -> None:
        self.computed[request] += tokens
        blocks, wanted = self.held[request], self.names(request)
        blocks += [self.pool.take() for _ in range(-(-int(self.computed[request]) // self.size) - len(blocks))]
        for block, name in zip(blocks[: self.computed[request] // self.size], wanted, strict=False):
            self.pool.give_name(block, name, self.number(name))

    def serve(self) -> list[Step]:
        steps: list[Step] = []
        now_s, arrived, table = 0.0, 0, self.table
        clients = clients_of(table)
        while arrived < len(table) or self.row_of:
            if not self.row_of:
                now_s = max(now_s, float(table["arrival_s"][arrived]))
            while arrived < len(table) and table["arrival_s"][arrived] <= now_s:
                sent = table[arrived]
                row = self.mirror.add(
                    float(sent.arrival_s), int(sent.prompt_tokens), MOST, int(sent.priority),
                    terms_of(sent, int(clients[arrived])),
                )  # fmt: skip
                self.row_of[arrived], self.request_of[row] = row, arrived
                self.know(arrived)
                self.mirror.join(row)
                arrived += 1
            steps.append(self.step(now_s))
            now_s = steps[-1].end_s
        return steps

    def step(self, now_s: float) -> Step:
        mirror, table = self.mirror, self.table
        self.tell()
        plan = mirror.plan(now_s, len(self.pool.free), MOST, MOST, MOST)
        assert plan is not None
        evicted = [self.request_of[row] for row in plan.evicted]
        for request in evicted:
            if request in self.held:  # else it was admitted and evicted while the batch was formed
                self.drop(request)
            self.computed[request] = 0
        batch = [(self.request_of[s], int(n)) for s, n in zip(plan.rows, plan.tokens, strict=True)]
        had: dict[int, int] = {}
        for (request, tokens), planned in zip(batch, plan.cached.tolist(), strict=True):
            if request not in self.held:
                self.admit(request, planned)
            had[request] = int(self.computed[request])
            assert had[request] == planned
            self.compute(request, tokens)
        self.tell()
        requests = [request for request, _ in batch]
        estimate_s, scale = mirror.settle(
            plan.evicted, plan.rows, plan.tokens, self.computed[requests].astype("i4"),
            self.emitted[requests].astype("i4"), now_s,
        )  # fmt: skip
        for row, request in zip(plan.rows.tolist(), requests, strict=True):
            known = int(mirror.run.requests["blocks"][row])
            self.pool.told += [(kinds.HELD, row, block) for block in self.held[request][known:]]
        end_s = now_s + float(self.device.batch_s(mirror.run.sums[0], self.device.coefficients))
        used = len(self.pool.references) - len(self.pool.free)
        mirror.correct(estimate_s, scale, end_s - now_s)
        talking = [r for r in requests if self.computed[r] == table["prompt_tokens"][r] + self.emitted[r]]
        self.emitted[talking] += 1
        rows = np.array([self.row_of[r] for r in talking], "i4")
        mirror.deliver(rows, np.ones(len(rows), "i4"), self.emitted[talking].astype("i4"), end_s)
        for request in talking:
            self.know(request)
        done = [r for r in talking if self.emitted[r] == table["output_tokens"][r]]
        for request in done:
            self.drop(request)
        self.tell()
        if done:
            mirror.leave([self.row_of.pop(r) for r in done], finished=True)
        return Step(now_s, end_s, batch, set(evicted), used, had)
