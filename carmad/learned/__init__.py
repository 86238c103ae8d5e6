"""What estimators and policies are told of earlier runs, and how they are asked."""
