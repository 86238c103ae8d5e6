"""Makes the weights that the estimator gpumemnet ships: networks are drawn (`synthesis`), built and
labelled (`networks`), kept (`data`), and learned from (`training`)."""
