"""Fleets: routing, KV transfers, failures, scaling, role changes. Batches are formed in batching/."""
