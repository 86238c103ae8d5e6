"""What simulated runs came to, side by side: for a terminal, a browser, and other programs."""
