"""Asking estimators, and what they and policies can learn from earlier runs."""
