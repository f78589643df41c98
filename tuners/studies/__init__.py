"""Studies on panels: from candidates to a winner and its test (`servegym tune`)."""
