"""The scaler that does nothing."""

from servegym.simulator.policies import Policy, register
from servegym.simulator.scaling import stay

register(
    Policy(
        "static", "scaler", "Engines stay where routers put them; all are in service.", "ours", stay,
    )
)  # fmt: skip
