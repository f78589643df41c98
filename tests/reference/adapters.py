"""LoRA adapters at an engine: docs/feature_rules.md, "LoRA adapters"."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Adapters:
    """The adapters in an engine's memories by number, the least recently used first. 0 is the model itself."""

    max_loras: int  # in device memory, hence in a batch
    max_cpu_loras: int  # in host memory, those in device memory among them
    load_s: float  # of an adapter that is not in host memory
    activate_s: float  # of one that is not in device memory, from host memory
    in_host: list[int] = field(default_factory=list)
    in_device: list[int] = field(default_factory=list)
    loads: int = 0
    activations: int = 0

    def has_room(self, batch: Iterable[int], adapter: int) -> bool:
        """Return whether a request with this adapter may join a batch of requests with these."""
        there = set(batch) - {0}
        return adapter in there | {0} or len(there) < self.max_loras

    def use(self, batch: Iterable[int]) -> float:
        """Return the seconds until a starting batch has its adapters in device memory. batch: adapters, in order."""
        took_s = 0.0
        for load_s, activate_s in self.bring_in(batch):
            took_s += load_s + activate_s
        return took_s

    def bring_in(self, batch: Iterable[int]) -> list[tuple[float, float]]:
        """Bring the adapters of a batch into device memory: seconds to load and to activate each that was not there."""
        took = []
        wanted = [adapter for adapter in dict.fromkeys(batch) if adapter]
        for adapter in wanted:  # adapters of the batch that are there are not dropped for others of it
            for place in (self.in_host, self.in_device):
                if adapter in place:
                    place.remove(adapter)
                    place.append(adapter)
        for adapter in wanted:
            load_s = activate_s = 0.0
            if adapter not in self.in_host:
                load_s = self.load_s
                self.loads += 1
                if len(self.in_host) == self.max_cpu_loras:
                    given_up = self.in_host.pop(0)
                    self.in_device = [other for other in self.in_device if other != given_up]
                self.in_host.append(adapter)
            if adapter not in self.in_device:
                activate_s = self.activate_s
                self.activations += 1
                if len(self.in_device) == self.max_loras:
                    self.in_device.pop(0)
                self.in_device.append(adapter)
            took.append((load_s, activate_s))
        return took

    def forget(self) -> None:
        """Drop all adapters: the engine has failed."""
        self.in_host, self.in_device = [], []
