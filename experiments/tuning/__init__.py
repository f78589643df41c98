"""`servegym tune`: studies of policies on panels, and what comes of them."""
