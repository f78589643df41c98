"""Power and price of devices: what is said has a source, and every device that a profile names is there."""

import math

from servegym.latency_models.profile import DEVICE_FIELDS as FIELDS
from servegym.latency_models.profile import costs_of, devices, load_profile, profile_names
from servegym.simulator.inputs.costs import Costs


def test_what_is_said_has_a_source_and_what_is_not_known_is_said_to_be():
    for name, device in devices().items():
        assert set(FIELDS) <= set(device) <= {*FIELDS, *(f"{field}_source" for field in FIELDS)}, name
        for field in FIELDS:
            known = device[field] is not None
            assert known == (f"{field}_source" in device), f"{name}: {field}"
            assert not known or (0 < device[field] < math.inf and len(device[f"{field}_source"]) > 20)


def test_every_device_of_a_profile_is_there():
    assert {load_profile(name).hardware for name in profile_names()} == set(devices())


def test_an_engine_costs_as_much_as_its_devices():
    assert costs_of("NVIDIA H100-SXM5-80GB", 1) == Costs(most_w=700)
    assert load_profile("a100-llama3-70b-tp4").deployment(2).costs == Costs(most_w=1600)
    assert costs_of("of my own", 2) == Costs()
