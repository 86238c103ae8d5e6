"""CARMA from Python: what other tools submit with."""
