"""GPU memory estimators: a job's words in, MiB per GPU out."""
