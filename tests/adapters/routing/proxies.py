"""What tests ask of a proxy."""

import httpx

from servegym.adapters.routing.proxy import OPENING
from tests.adapters.routing.fakes import TOKENS, Served, until

ALL = [f"word{number} " for number in range(TOKENS)]


def idle(proxy: Served) -> None:
    """Nothing is left of any request."""
    state = proxy.proxy
    until(lambda: not state.router.rows.used and not any(one.attempts for one in state.backends.all), "all is over")
    assert state.router.rows.used == 0 and state.router.held == 0 and state._waiting == 0 and not state._held
    assert not any(one.attempts for one in state.backends.all)
    assert state.opening._value == OPENING and state._room._value == state.settings.max_in_flight
    snapshots = state.router.snapshots
    for field in ("requests", "prefills", "prefill_tokens", "decodes", "decode_tokens"):
        assert not snapshots[field].any(), field


def counted(proxy: Served, name: str) -> float:
    lines = httpx.get(f"{proxy.url}/metrics", trust_env=False).text.splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"servegym_proxy_{name}")]
    assert values, f"no metric {name}"
    return sum(map(float, values))
