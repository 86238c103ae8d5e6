"""What users and bad days may do to a real daemon."""
