"""Code that runs inside the Python of a job submitted with `--watch-stages`.

This folder is put on the job's PYTHONPATH, so that Python finds `sitecustomize`. The job's own
Python may be 3.8. Imports nothing but the standard library and the job's own torch.
"""
