"""What is learned from earlier jobs: models as plain values, their features, those that are trained
here, and their training."""
