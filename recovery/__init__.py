"""What follows a crash: finding its cause, and deciding on a retry."""
