"""What hostile users and bad days did to CARMA, through the real daemon."""
