"""Theorem 1 and the sharing benefit (Castor paper, 5.1 and 9): what the policy's choices are judged
by."""

from __future__ import annotations

from policies.castor.pairing import Ratios, Start, at_once, later


def best_start(running_s: float, new_s: float, ratios: Ratios) -> Start:
    """Theorem 1. In a tie the new job waits, as in its "otherwise": sharing would gain nothing, and
    is a risk."""
    starts = later(running_s, new_s), at_once(running_s, new_s, ratios)
    return min(starts, key=lambda start: start.pair_jct_s)


def sharing_benefit(waiting_jct_s: float, jct_s: float) -> float:
    """Equation 24: how many times sooner the new job ends than if it waits for its own GPUs."""
    return waiting_jct_s / jct_s
