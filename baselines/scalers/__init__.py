"""Scalers, a file for each system; each registers its policy. `static` changes nothing."""

from servegym.policy import Policy, register, stay

register(
    Policy(
        "static", "scaler", "Engines stay where routers put them; all are in service.", "ours", stay,
    )
)  # fmt: skip
