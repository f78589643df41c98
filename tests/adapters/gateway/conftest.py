"""Two fake engines, as those of the proxy's tests."""

from tests.adapters.routing.conftest import engines, shared_engines

__all__ = ["engines", "shared_engines"]
