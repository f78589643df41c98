#!/bin/bash
# Score /app/program.py: /logs/verifier/reward.txt has combined_score, answer.json all of it.
SERVEGYM_CACHE=/var/cache/servegym python -P /tests/verify.py /app/program.py /logs/verifier
