"""Score a program as task.yaml, beside this file, says: reward.txt is its combined_score, answer.json all of it.

A program that is refused gets 0, less than any that runs to its end with one token in time. If the score itself breaks,
no reward is written: that trial failed, whatever the program is worth.
"""

import json
import sys
from pathlib import Path

from servegym.evaluation.scoring.evolution import evaluated, settings_of

program, logs = Path(sys.argv[1]), Path(sys.argv[2])
answer = evaluated(program, settings_of(Path(__file__).resolve().parent))
(logs / "answer.json").write_text(json.dumps(answer, indent=2), encoding="utf-8")
(logs / "reward.txt").write_text(f"{answer['combined_score']:.6f}\n", encoding="utf-8")
