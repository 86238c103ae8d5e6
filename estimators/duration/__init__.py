"""Predictors of how long a job will run. A declared duration (`--expect`) takes precedence."""
