"""The `carma` command. It talks to the daemon over its socket and decides nothing itself."""
