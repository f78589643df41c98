"""Pages on simulated beside measured engines: which runs, which terms are wrong, what a few points tell."""
