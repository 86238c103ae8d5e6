"""Imports the workloads of papers' artifacts; `carma simulate KIND:PATH` finds them here."""
