"""Asks estimators how much memory a job needs: earlier runs, and trials of its program."""
