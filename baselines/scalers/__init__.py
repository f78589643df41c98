"""Scalers: one file a system, each a registered policy. `static` does nothing."""

from servegym.policy import Policy, register, stay

register(
    Policy(
        "static", "scaler", "Engines stay where routers put them; all are in service.", "ours", stay,
    )
)  # fmt: skip
