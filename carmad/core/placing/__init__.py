"""What is decided: what policies see, what they propose, how that is checked and carried out."""
