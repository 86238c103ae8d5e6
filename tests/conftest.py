"""Hypothesis settings: a busy machine must not fail tests."""

from hypothesis import settings

settings.register_profile("carma", deadline=None)
settings.load_profile("carma")
