"""The Cuckoo paper's tables 9 to 14, and what is thought to be behind our differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Told(NamedTuple):
    """A row: times over Cuckoo's, and the share of deadlines that were met."""

    jct: float
    met: float  # %
    tail: float


CUCKOO_MET = 77.16  # %
TABLES: Mapping[str, Mapping[str, Told]] = {
    "tables 9 and 14": {"Muri": Told(1.81, 32.44, 0.61)},
    "table 10": {"Muri-P": Told(1.07, 76.58, 1.23)},
    "table 12": {"Blossom": Told(1.32, 47.02, 1.11), "None": Told(1.79, 48.56, 1.77)},
    "table 13": {"FIFO": Told(1.30, 41.46, 0.79), "EDF": Told(1.22, 64.88, 1.35)},
    "table 14": {
        "Cuckoo-Homo": Told(1.16, 71.29, 1.36),
        "Muri-Hetero": Told(1.60, 38.20, 1.56),
    },
}
FIFO_JCT_S, FIFO_MET = 3953.0, 49.14  # table 1, non-packing
PREDICTED = {"Cuckoo": (98.73, 97.74), "Muri-P": (91.80, 93.72)}  # precision and F1, figure 11
ERRORS = {"AM": 13.5, "Muri-P": 20.2}  # % (figure 10)
BEST_WEIGHTS = (0.5, 0.7)  # figure 12
