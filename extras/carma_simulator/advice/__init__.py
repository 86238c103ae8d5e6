"""Advice on the policy, once a week: whether another would have been better for the past jobs."""
