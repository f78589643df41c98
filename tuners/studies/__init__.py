"""Studies on panels: from candidates to a winner, and what the test says of it (`servegym tune`)."""
