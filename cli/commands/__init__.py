"""The verbs of `carma`, a few related ones to a module."""
