"""Traces training steps without a GPU, using fake tensors and recording every allocation.

Runs inside the job's own Python, which may be 3.9 with torch 2.6, and imports nothing but the
standard library, torch and itself, relatively: the same folder is `estimators.tracer` here and
`carma_tracer` there.
"""
