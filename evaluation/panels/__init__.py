"""`servegym evaluate`: heuristic, learned and tuned policies on cases that none of them was made with."""
