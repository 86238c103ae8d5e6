"""The self-test's kernels are real PTX. The fakes run none of it: CUDA's assembler tells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from carmad.selftest.probe import PTX

PTXAS = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")


@pytest.mark.skipif(PTXAS is None, reason="ptxas, of the CUDA toolkit, is not installed")
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90"])  # known to every toolkit since 11.8
def test_the_kernels_assemble(tmp_path: Path, gpu: str) -> None:
    source = tmp_path / "kernels.ptx"
    source.write_bytes(PTX.rstrip(b"\0"))
    command = [str(PTXAS), "--gpu-name", gpu, "--output-file", str(tmp_path / "cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
