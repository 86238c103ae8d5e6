"""What follows a crash: telling its cause from its traces, and how to try again."""
