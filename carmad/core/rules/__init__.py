"""What may be: which GPUs a job may use, whether it may start, and what it was promised."""
