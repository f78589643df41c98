"""`EPISODES`: the scenarios that environments draw by default."""

from servegym.scenarios.demand import BURST, STEADY, Demand
from servegym.scenarios.ranges import Range
from servegym.scenarios.spec import ServingSpec

# Half of the episodes are steady, the others calm, a burst, calm again, so that overload builds up and drains.
EPISODES = ServingSpec(
    Demand(
        trace=("azure-conv", "sharegpt"),
        load=Range(1.0, 1.8),  # below, nearly all tokens are in time under any policy
        requests=Range(200, 400),
        load_profile=(STEADY, BURST),
        split="train",
    )
)
