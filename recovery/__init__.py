"""How jobs that ran out of memory are retried."""
