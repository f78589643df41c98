"""The inputs of a run, checked once and then only read: workload, deployment, settings of policies, seeds."""
