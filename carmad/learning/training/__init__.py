"""Trains the models of `carmad.learning.models` from plain tables. It needs the part `policies`,
takes time, and runs in a separate process: the daemon never imports it."""
