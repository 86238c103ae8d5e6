"""The CARMA paper's results for GPUMemNet, for comparison."""

TABLE_3 = {  # family, kind of ensemble, width of a bin in GB: accuracy and F1 (appendix A.2)
    ("mlp", "mlp", 1): (0.95, 0.93),
    ("mlp", "mlp", 2): (0.97, 0.96),
    ("mlp", "transformer", 1): (0.97, 0.96),
    ("mlp", "transformer", 2): (0.98, 0.97),
    ("cnn", "mlp", 8): (0.83, 0.83),
    ("cnn", "transformer", 8): (0.81, 0.81),
    ("transformer", "mlp", 8): (0.88, 0.88),
    ("transformer", "transformer", 8): (0.86, 0.86),
}

BINS = {  # family: their test networks in each bin of 8 GB, the last of which is above 40 GB or
    # crashed for want of memory (rows of the first confusion matrix in `Ensemble/k_fold_results`)
    "cnn": (421, 199, 149, 111, 119, 521),
    "transformer": (554, 318, 159, 53, 30, 55),
}
