"""A siege of carmad in a booted machine: three hostile users, and what an honest one notices."""
