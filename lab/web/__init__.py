"""How fast the page of `carma web` is."""
