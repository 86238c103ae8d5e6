"""Settings of `policy = "asrpt"`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

_NotNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class AsrptSettings:
    """`policy = "asrpt"` (A-SRPT paper, IV)."""

    reserve: bool = False  # keep GPUs idle for shorter jobs that may come, as in the paper
    patience: _NotNegative = 0.5  # τ: wait for GPUs close together, × the server's time for the job
