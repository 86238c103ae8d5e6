"""Everything that talks to GPUs: telemetry sources, MPS, MIG, and emulated cards."""
