"""evaluate(program_path): what OpenEvolve, SkyDiscover and the like call."""

from servegym.evaluation.scoring.evolution import evaluator

evaluate = evaluator(__file__)
