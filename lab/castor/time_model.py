"""Fits Castor's time model (`policies.castor.pairing`) to measured step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from policies.castor.pairing import StepModel

Floats = NDArray[np.float64]

HIGHEST_DELTA = 10.0  # at most 8 % of the shorter part is visible: as good as full overlap
LEAST_S = 1e-9  # of alpha, beta and communication, whose logarithms are fitted


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured training step without gradient accumulation."""

    placement: str  # a name, such as "44": steps on one placement share the wait for gradients
    batch: int  # samples on each GPU
    step_s: float
    sync_s: float  # of that, waiting for gradients; less than `step_s`


def fit(measured: Sequence[Measured]) -> Mapping[str, StepModel]:
    """A model per placement of one job on one kind of GPU.

    As in the paper, alpha_comp, beta_comp and delta are the same for all of them; the paper allows
    delta to differ between batch sizes, here it does not. A step minus its wait is computation
    only. Least squares on logarithms, so that errors are relative.
    Raises ValueError if fewer than two batch sizes were measured.
    """
    batch = np.array([each.batch for each in measured], dtype=float)
    if len(set(batch)) < 2:
        raise ValueError("the fit needs two batch sizes")
    placements = sorted({each.placement for each in measured})
    at = np.array([placements.index(each.placement) for each in measured])
    step_s = np.array([each.step_s for each in measured])
    compute_s = step_s - np.array([each.sync_s for each in measured])

    def errors(parameters: Floats) -> Floats:
        alpha, beta, delta, comm_s = _unpacked(parameters)
        compute = alpha + beta * batch
        together = np.logaddexp(delta * np.log(compute), delta * np.log(comm_s[at])) / delta
        return np.concatenate([together - np.log(step_s), np.log(compute / compute_s)])

    slope, intercept = np.polyfit(batch, compute_s, 1)
    slowest = np.array([(step_s - compute_s)[at == n].max() for n in range(len(placements))])
    begin = np.log(np.maximum([intercept, slope, *slowest], 10 * LEAST_S))
    lowest = np.full(len(begin), np.log(LEAST_S))
    found = least_squares(
        errors,
        np.insert(begin, 2, 2.0),
        bounds=(np.insert(lowest, 2, 1.0), np.insert(-lowest, 2, HIGHEST_DELTA)),
        x_scale="jac",
        jac_sparsity=_depends(at),
        ftol=1e-6,  # of the squared errors, which hardly change by then
    )
    alpha, beta, delta, comm_s = _unpacked(found.x)
    return {
        placement: StepModel(float(alpha), float(beta), float(comm), float(delta))
        for placement, comm in zip(placements, comm_s, strict=True)
    }


def _unpacked(parameters: Floats) -> tuple[float, float, float, Floats]:
    """Seconds are fitted as logarithms: they are positive and differ by orders of magnitude."""
    alpha, beta = np.exp(parameters[:2])
    return alpha, beta, parameters[2], np.exp(parameters[3:])


def _depends(at: Floats) -> Floats:
    """Sparsity of the Jacobian: each error depends on one placement's communication only. With it,
    fitting 108 placements takes a tenth of a second instead of several seconds."""
    depends = np.zeros((2 * len(at), 3 + max(at) + 1))
    depends[:, :3] = 1
    depends[np.arange(len(at)), 3 + at] = 1
    return depends
