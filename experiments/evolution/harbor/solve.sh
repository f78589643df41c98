#!/bin/bash
# The seed program: the score to start from.
cp /solution/program.py /app/program.py
