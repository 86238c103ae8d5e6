"""Hostile output: whatever a job prints, its end is reported and its GPU is freed."""

from __future__ import annotations

from pathlib import Path

from tests.daemon import NO_KERNELS, running

OOM = b"CUDA error: out of memory Tried to allocate "
SAID = {
    "a number with two points": OOM + b"1.2.3 MiB",
    "a number that is infinite": OOM + b"9" * 400 + b" MiB",
    "65,000 digits": OOM + b"9" * 65_000,
    "65,000 digits before the text": b"9" * 65_000 + b"\n" + OOM,
    "as many lines as fit": OOM + b"\n" * 65_000,
    "as many progress bars as fit": OOM + b"\n" + b"\r\n" * 32_000,
    "other people's digits": OOM + "٣٤٥".encode() + b" MiB",
    "control characters": b"\x1b]0;pwned\x07\x1b[2J\0 the end",
    "no text at all": bytes(range(256)) + b"\xed\xa0\x80\xff",
    "half a pattern, again and again": b"ResourceExhaustedError" * 3000,
}


def test_no_line_keeps_a_gpu(tmp_path: Path) -> None:
    with running(tmp_path, f"{len(SAID)}xA100-40GB", **NO_KERNELS) as daemon:
        jobs = {}
        for number, (what, said) in enumerate(SAID.items()):
            (daemon.work / f"said-{number}").write_bytes(said)
            script = f"cat said-{number}; cat said-{number} >&2; exit 1"
            jobs[what] = daemon.sh(script, exclusive=True, stderr=f"errors-{number}")
        honest = daemon.sh("exit 0", exclusive=True, gpus=len(SAID))  # all of them
        assert daemon.ended(honest)["state"] == "succeeded"
        for what, job in jobs.items():
            found = daemon.ended(job)
            state = "out_of_memory" if OOM in SAID[what] else "failed"
            assert (found["state"], found["exit"]["code"]) == (state, 1), what
            assert found["exit"]["evidence"].isprintable(), what
        shown = daemon.carma("show", str(jobs["control characters"]))
        assert shown.replace("\n", "").isprintable()
        log = daemon.log.read_text()
        assert "the shepherd failed" not in log and "cannot tell" not in log
        assert log.replace("\n", "").isprintable()
