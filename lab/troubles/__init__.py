"""Troubles that people reported of queues for GPU jobs, played again on CARMA."""
