"""A-SRPT: whose turn it is, by a virtual single machine; and which GPUs, by who talks to whom."""

from policies.asrpt.policy import asrpt

__all__ = ["asrpt"]
