"""The words of errors about names."""

import pytest

from servegym.errors import unknown_name
from servegym.latency_models.building.gpus import gpu
from servegym.latency_models.profile import ProfileError, load_profile


@pytest.mark.parametrize(("name", "meant"), [
    ("H100", "(did you mean 'h100'?)"),
    ("h10", "(did you mean 'h100'?)"),
    ("MI", "(did you mean 'MI300x'?)"),
    ("tp", "(did you mean 'tp-1' or 'tp-2' or 'tp-3'?)"),
    ("", None),
    ("elephant", None),
])  # fmt: skip
def test_an_unknown_name_is_told_with_what_was_meant(name, meant):
    names = ["h100", "MI300x", "tp-1", "tp-2", "tp-3", "tp-4"]
    message = unknown_name("GPU", name, names)
    assert message.startswith(f"unknown GPU '{name}'") and message.endswith(f"there are: {', '.join(names)}")
    assert meant in message if meant else "did you mean" not in message


def test_of_gpus_and_devices():
    with pytest.raises(ProfileError, match=r"unknown GPU 'H100' \(did you mean 'h100'\?\)"):
        gpu("H100")
    with pytest.raises(ProfileError, match="did you mean 'h200-"):
        load_profile("H200")
