"""`carma web`: a page of the server, by a process of its user's own. It asks the daemon on the
user's behalf, so it shows and may do what the user may."""
