"""Measure the saturations of all profiles that ship, to which loads are relative.

python -m experiments.profiles.saturations
"""

import json
from typing import Any

from servegym.latency_models.profile import load_profile, profile_names
from servegym.scenarios.saturation import TABLE, held_rate_per_s, profile_sha256

COMMAND = "python -m experiments.profiles.saturations"
TRACES = ("azure-code", "azure-conv", "mooncake-conversation", "sharegpt")
SLOS = ("polyserve", "proserve", "qoserve")


def measure() -> dict[str, Any]:
    """Measure each profile with each recipe and trace: the document of saturations.json."""
    devices = {}
    for device in profile_names():
        profile = load_profile(device)
        rates = {slo: {trace: held_rate_per_s(trace, profile, slo) for trace in TRACES} for slo in SLOS}
        devices[device] = {"profile_sha256": profile_sha256(device), "rates_per_s": rates}
    return {"made_by": COMMAND, "what": "requests per second at saturation, of one engine", "devices": devices}


if __name__ == "__main__":
    TABLE.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
