"""How long a job will run: the predictors. The user's own word goes before all that they know."""
