"""Traces a training step without a GPU: fake tensors, every allocation on record.

Runs inside the job's own Python, which may be 3.8 with torch 2.1, and imports nothing but the
standard library, torch and itself, relatively: the same folder is `estimators.tracer` here and
`carma_tracer` there.
"""
