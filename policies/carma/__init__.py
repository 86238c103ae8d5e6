"""CARMA's own policy: least remaining service first, shared wherever memory suffices."""

from policies.carma.policy import carma

__all__ = ["carma"]
