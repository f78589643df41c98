"""What determines a run, checked once, then only read: workload, deployment, policies' settings, seeds."""
