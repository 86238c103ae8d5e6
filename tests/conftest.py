"""How Hypothesis tries examples: a busy machine is not a fault."""

from hypothesis import settings

settings.register_profile("carma", deadline=None)
settings.load_profile("carma")
