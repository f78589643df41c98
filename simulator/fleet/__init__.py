"""Many engines: routing, transfers, failures, scaling. An engine's own batch is formed in batching."""
