"""Parameters of schedulers with a time budget: whether batches end at the steps of a device."""

from servegym.policy import ByWord, Fact, Parameter

WHERE = ("ignore", "device")


def steps(default: str | ByWord = "device") -> tuple[Parameter, Parameter]:
    """`steps` with a default, and `step_tokens`, which follows from it."""
    return (
        Parameter("steps", default, "device: a batch may end at a multiple of the device's step, where a token costs "
                  "least; ignore: it takes all that fits its time budget", choices=WHERE),
        Parameter("step_tokens", ByWord("steps", {"ignore": 0, "device": Fact("step_tokens")}),
                  "the step: a batch takes as long as one of the next multiple of so many tokens; 0: no steps",
                  0, 2**14, "tokens", integer=True),
    )  # fmt: skip
