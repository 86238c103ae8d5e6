"""Cuckoo: which two jobs share GPUs, and in what order groups run, to meet deadlines. Its
dependencies (numpy, scipy, rustworkx) are loaded with `policies.cuckoo.policy`."""
