"""Whether `servegym shadow` says what is so: its estimates beside what was measured, before and after a switch.

    python -m experiments.engines.shadow_check

Hypotheses, written before the first run:
- of the policy that runs, the TDG ratio of the second half is simulated within 0.03 of what was measured, its mean
  TTFT within 15 % and its mean TPOT within 10 %;
- of the other policy, the difference that shadow gives is within 0.05 of the difference that is measured when the proxy
  is switched to it and the same requests come again.

Two engines run in real time (timed_engine.py), 1.25 times as slow as the profile that shadow is given; before them the
proxy, with round-robin. Requests are of azure-conv. Then `servegym switch`, and the same requests once more. Beside
what shadow says of the first pass stands what a simulation without any calibration says at factors that are given, to
tell what a wrong factor is worth.

The profile is one that ships, made four times as slow: so few requests a second keep the engines busy that proxy,
engines and clients have time on two cores with other work on them. (A first run without that, 8 requests a second,
measured the machine: TTFT in the second pass was three times that of the first, and the error 0.08.)
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.engines.proxy_load import HOST, running
from servegym.adapters.replay.bodies import Bodies
from servegym.adapters.replay.sending import Endpoint, replay
from servegym.evaluation.markdown import header, row
from servegym.evaluation.measured.serving import scenario_of
from servegym.evaluation.shadow import GAIN, NOTHING_BESIDE, Candidate, read_served, shadow
from servegym.latency_models.documents import latency, to_text
from servegym.latency_models.profile import load_profile, profile_document
from servegym.scenarios.spec import ServingSpec
from servegym.simulator.runs.simulation import Simulation

BASE, SLOWER, FACTOR = "ascend910b-qwen3-8b-eager", 4.0, 1.25
RUNNING, OTHER = "round-robin", "gorouting"
ENGINES, REQUESTS, LOAD = 2, 200, 0.65
FACTORS = (1.20, 1.23, FACTOR, 1.27, 1.29, 1.31)
PORT, ADMIN = 18400, "of-this-run"


def slow_profile(folder: Path) -> str:
    """The file of BASE with every batch SLOWER times as long."""
    document, base = profile_document(BASE), load_profile(BASE)
    device = base.device.plus_constant(-base.cpu_overhead_s).times(SLOWER)
    made = {**document, "name": "slow", "device": latency(device), "estimator": latency(base.estimator.times(SLOWER))}
    path = folder / "slow.json"
    path.write_text(to_text({key: value for key, value in made.items() if key != "operators"}), encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def deployment(port: int, device: str, log: Path) -> Iterator[str]:
    """The proxy's address."""
    with contextlib.ExitStack() as stack:
        urls = []
        for k in range(1, ENGINES + 1):
            module = [sys.executable, "-P", "-m", "experiments.engines.timed_engine"]
            stack.enter_context(running([*module, str(port + k), device, str(FACTOR)], port + k))
            urls += ["--backend", f"http://{HOST}:{port + k}"]
        command = [sys.executable, "-P", "-m", "servegym", "proxy", "--router", RUNNING, "--device", device, *urls]
        stack.enter_context(running([*command, "--port", str(port), "--request-log", str(log)], port))
        yield f"http://{HOST}:{port}"


def serve(url: str, device: str) -> None:
    """All requests, when they are due."""
    words = {"requests": REQUESTS, "load": LOAD, "device": device, "engines": ENGINES}
    replay(ServingSpec().with_overrides(words).build(0).workload, Endpoint(url), Bodies("timed"))


def shadowed(log: Path, device: str, router: str) -> dict[str, Any]:
    """What shadow says of another router."""
    return dataclasses.asdict(shadow(read_served(log), load_profile(device), [Candidate(router=router)]))


def at_factors(log: Path, device: str, factors: Sequence[float] = FACTORS) -> dict[float, float]:
    """TDG ratio of the second half of the requests under the policy that runs, by the factor of batch times."""
    run, profile = read_served(log).run, load_profile(device)
    judged, found = run.of_stage("2"), {}
    for factor in factors:
        slower = dataclasses.replace(profile, device=profile.device.times(factor))
        requests = Simulation(scenario_of(run, slower, NOTHING_BESIDE, gain=GAIN)).run().requests[judged]
        found[factor] = float(requests["gain"].sum() / requests["ideal_gain"].sum())
    return found


def factor_table(found: dict[float, float]) -> str:
    """As Markdown."""
    heads = header("factor", *(f"{factor:.2f}" for factor in found))
    return "\n".join([*heads, row("TDG ratio", *(f"{ratio:.3f}" for ratio in found.values()))])


def main() -> None:
    """Print what was said and what was measured, as JSON, and the table of factors."""
    os.environ["SERVEGYM_ADMIN_KEY"] = ADMIN
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "requests.jsonl"
        device = slow_profile(Path(folder))
        with deployment(PORT, device, log) as url:
            serve(url, device)
            before, factors = shadowed(log, device, OTHER), at_factors(log, device)
            switch = [sys.executable, "-P", "-m", "servegym", "switch", url, "--router", OTHER]
            subprocess.run([*switch, "--device", device], check=True, stdout=sys.stderr)
            serve(url, device)
            after = shadowed(log, device, RUNNING)
    print(json.dumps({"before": before, "after": after, "realised": realised(before, after)}, indent=2))
    print(f"\n{factor_table(factors)}")


def realised(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """The difference that was said, and the one that was measured."""
    return {
        "said": before["others"][0]["against"][0],
        "measured": after["measured"]["tdg"] - before["measured"]["tdg"],
        "error_of_what_ran": before["error"][0],
    }


if __name__ == "__main__":
    main()
