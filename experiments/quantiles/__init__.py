"""What makes the quantile tables in `traces/quantiles` from public traces."""
