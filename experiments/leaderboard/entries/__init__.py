"""A file for each entry of the leaderboard, and the Python file of each policy that does not ship."""
