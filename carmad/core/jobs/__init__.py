"""What a job is, where it stands in line, and what follows when it ends."""
