"""CARMA: a collocation-aware resource manager. The daemon, its core and its simulator."""

DISTRIBUTION = "carma-gpu"  # its name for pip: `carma` is another project's
CLIENT = "carma-client"  # the same of the client alone (packaging/client)
