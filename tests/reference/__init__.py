"""The reference simulator: small, slow and plain. The fast one is checked against it."""
