"""All structured arrays of a run: what every record holds, field by field, with its unit.

A policy is handed REQUEST, ENGINE, RANK and LIMITS records. What a real scheduler cannot know (the true output length,
what will happen) is in OUTCOME, which no policy sees.
"""

# ruff: noqa: F403
from servegym.simulator.records import record as record
from servegym.simulator.records.batch_types import *
from servegym.simulator.records.engine_types import *
from servegym.simulator.records.fleet_types import *
from servegym.simulator.records.request_types import *
from servegym.simulator.records.run_types import *
