"""Placement policies. Most are values: an order, filters that may refuse a GPU, and a rank."""
