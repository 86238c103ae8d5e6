"""What goes along into the Python of a job that was submitted with `--watch-stages`.

This folder is put on its PYTHONPATH, so that `sitecustomize` is found. Runs in the job's own
Python, which may be 3.8, and imports nothing but the standard library and the job's own torch.
"""
