"""The simulator's verbs."""
