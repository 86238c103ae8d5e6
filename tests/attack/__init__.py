"""What hostile users and bad days do to CARMA, with the real daemon."""
