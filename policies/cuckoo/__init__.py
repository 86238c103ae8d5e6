"""Cuckoo: which two jobs share GPUs, and in what order groups take them, for deadlines' sake."""

from policies.cuckoo.policy import cuckoo

__all__ = ["cuckoo"]
