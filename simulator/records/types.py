"""All record types of a run, field by field, with units.

Policies get REQUEST, ENGINE, RANK and LIMITS records. What a real scheduler cannot know, such as true output lengths,
is in OUTCOME, which no policy sees.
"""

# ruff: noqa: F403
from servegym.simulator.records import record as record
from servegym.simulator.records.batch_types import *
from servegym.simulator.records.engine_types import *
from servegym.simulator.records.fleet_types import *
from servegym.simulator.records.request_types import *
from servegym.simulator.records.run_types import *
