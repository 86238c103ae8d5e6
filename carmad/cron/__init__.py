"""Recurring jobs: a user's crontab, each entry of which submits a job at its times."""
