"""Cuckoo: which two jobs share GPUs, and in what order groups take them, for deadlines' sake. What
it needs (numpy, scipy, rustworkx) is loaded with `policies.cuckoo.policy`."""
