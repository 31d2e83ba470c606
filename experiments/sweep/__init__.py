"""Many experiments from one config: a grid, workers on one machine or a cluster, one collected result."""
