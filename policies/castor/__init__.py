"""Castor: which two jobs share GPUs, from when, and in what parts the newer one runs its batch."""

from policies.castor.policy import castor

__all__ = ["castor"]
