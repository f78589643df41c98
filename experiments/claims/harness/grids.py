"""Cells of claims that run every scheduler at every load: the schedulers and the loads are all there is to say."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from experiments.claims.harness.cells import Cell
from experiments.claims.harness.registry import Cells
from experiments.claims.harness.settings import Setting, Size, saturation_per_s

Requests = Callable[[Setting, Size, float], int]


def grid(
    schedulers: Iterable[str] | Callable[[str], Iterable[str]],
    loads: Iterable[float],
    requests: Requests | None = None,
    slo: str | Callable[[str], str] = "",
    **fields: Any,
) -> Cells:
    """With every seed of the size. schedulers, slo: the same on every device, or by the device's name. requests: of a
    run (None: the size's); `of_hours`, `longer`. fields: others of `Cell`."""

    def cells(setting: Setting, size: Size) -> Iterator[Cell]:
        of_device = list(schedulers(setting.device) if callable(schedulers) else schedulers)
        recipe = slo(setting.device) if callable(slo) else slo
        for seed in size.seeds:
            for load in loads:
                number = size.requests if requests is None else requests(setting, size, load)
                for scheduler in of_device:
                    yield Cell(*setting, scheduler, load, seed, number, slo=recipe, **fields)

    return cells


def longer(setting: Setting, size: Size, load: float) -> int:
    """As many requests as runs have whose claims set no length (`Size.requests_of`)."""
    return size.requests_of(setting)


def of_hours(hours: float) -> Requests:
    """The requests that arrive in so long a time in full size."""
    return lambda setting, size, load: round(load * saturation_per_s(setting) * hours * 3600 * size.requests / 1000)
