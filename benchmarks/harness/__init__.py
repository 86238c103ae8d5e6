"""What all benchmarks share: one entry point, reports, rows with targets, data, processes."""
