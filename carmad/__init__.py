"""CARMA: a collocation-aware resource manager. The daemon, its core and its simulator."""
