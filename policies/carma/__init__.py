"""CARMA's own policy: least remaining service first, shared where the jobs end sooner."""

from policies.carma.policy import carma

__all__ = ["carma"]
