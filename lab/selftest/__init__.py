"""What CARMA relies on and has read, not seen. `facts` has all of it, with those that `carma doctor
--gpu` checks because settings depend on them; the checks of the others are here."""

PROBE = "lab.selftest.probe"  # the module of the processes that checks run
