"""Tells owners of jobs and administrators what happened, through Apprise."""
