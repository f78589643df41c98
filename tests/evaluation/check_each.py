"""Checks each policy of harmful_policies.py by itself, in this process: `python check_each.py`, a line of JSON each."""

import json
import sys
from pathlib import Path

from servegym.baselines import registry
from servegym.errors import ServegymError
from servegym.evaluation.policy_checks import worker
from servegym.evaluation.policy_checks.scenes import scenes_for
from servegym.evaluation.policy_files import load_policy_files
from servegym.simulator.compilation.settings import check_bounds
from servegym.simulator.policies import policy as policies
from servegym.simulator.runs.loops import WHOLE

WHOLE.entry  # noqa: B018
check_bounds()
registry.load()
before = policies.registered()
load_policy_files([Path(sys.argv[1])])
for key, policy in policies.registered().items():
    if key in before:
        continue
    said = ""
    for name, scenario in scenes_for(policy):
        try:
            worker.serve(policy, scenario, 120)
        except ServegymError as error:
            said = f"{name}: {error}"
            break
    print(json.dumps([policy.name, said]), flush=True)
