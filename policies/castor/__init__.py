"""Castor: which two jobs share GPUs, from when, and how the newer one's batch is split."""

from policies.castor.policy import castor

__all__ = ["castor"]
