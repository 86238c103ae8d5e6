"""What all measurements share: one entry point, reports, rows with targets, timing."""
