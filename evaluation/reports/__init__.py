"""Reports of runs and comparisons: Perfetto timelines, pictures, HTML pages."""
