"""A-SRPT: queue order from a virtual single machine, placement by communication between parts."""

from policies.asrpt.policy import asrpt

__all__ = ["asrpt"]
