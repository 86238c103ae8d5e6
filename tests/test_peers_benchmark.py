"""The side-by-side benchmark, with CARMA alone: the peers are installed on few machines."""

from __future__ import annotations

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.systems import Carma, Gflow


class Absent(Gflow):
    needs = ("no-such-program",)


def test_what_is_absent_is_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_SOCKET", "/nowhere")  # a `Daemon` sets it for the client
    monkeypatch.setattr(peers, "SYSTEMS", (Carma, Absent))
    monkeypatch.setattr(peers, "STARTS", 1)
    monkeypatch.setattr(peers, "NEAR_EMPTY", 3)
    page = peers.measure(rounds=1, queued=2, tasks=10).page({})
    assert "gflow is left out: no no-such-program here" in page
    for what in ("daemon: start", "submit to start", "why, near-empty", "cancel, 2 queued"):
        assert what in page
