"""Everything that talks to GPUs: telemetry sources, MPS, MIG, and cards that are only emulated."""
