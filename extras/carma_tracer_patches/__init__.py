"""Patches to libraries that scripts import, for the tracer: one file for each library."""
