"""A prefix store in plain Python (docs/simulation.md, "Prefix stores")."""

from servegym.simulator.inputs.deployment import Deployment
from servegym.simulator.inputs.workload import Workload

WAYS = 16


class ReplayedStore:
    """Sets of chunks, each in order of their last use."""

    def __init__(self, tokens: int, workload: Workload):
        assert workload.prefixes is not None
        self.chunk_tokens = workload.prefixes.chunk_tokens
        self.offsets, self.all_chunks = workload.prefixes.offsets, workload.prefixes.chunks
        self.most = workload.table["prompt_tokens"] // self.chunk_tokens  # what follows is of the answer
        self.sets: list[list[int]] = [[] for _ in range(max(1, tokens // (WAYS * self.chunk_tokens)))]

    def chunks(self, r: int) -> list[int]:
        return self.all_chunks[self.offsets[r] : self.offsets[r + 1]].tolist()[: self.most[r]]

    def use(self, chunk: int) -> None:
        places = self.sets[chunk % len(self.sets)]
        if chunk in places:
            places.remove(chunk)
        elif len(places) == WAYS:
            places.pop(0)
        places.append(chunk)

    def look_up(self, r: int, most: int) -> int:
        """Tokens of the leading chunks of request r that are here, but at most `most`; each is used."""
        found = 0
        for chunk in self.chunks(r):
            if chunk not in self.sets[chunk % len(self.sets)]:
                break
            self.use(chunk)
            found += 1
        return min(found * self.chunk_tokens, most)

    def put(self, r: int) -> None:
        for chunk in self.chunks(r):
            self.use(chunk)

    def clear(self) -> None:
        self.sets = [[] for _ in self.sets]


def store_of(pool: Deployment, workload: Workload) -> ReplayedStore | None:
    """None too for an engine that caches prefixes: it keeps blocks there, which no line tells."""
    if pool.prefix_store is None or workload.prefixes is None or pool.caches_prefixes(workload):
        return None
    if pool.role == "decode":
        return None
    return ReplayedStore(pool.prefix_store.tokens, workload)
