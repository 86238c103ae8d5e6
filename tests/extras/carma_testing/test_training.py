"""The pytest helper for other repositories: does their training still fit?"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from carma_testing.training import assert_fits  # noqa: E402
from carmad.config import CONTEXT_MIB as DAEMONS_CONTEXT_MIB  # noqa: E402
from estimators.tracer.report import CONTEXT_MIB, _bytes  # noqa: E402


def net() -> Any:
    layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * 10**9), ("24G", 24 << 30), ("24 GiB", 24 << 30), ("900M", 900 << 20)],
)
def test_sizes(text: str, size: int) -> None:
    assert _bytes(text) == size


@pytest.mark.parametrize("text", ["", "24", "a lot", "24 KB", "-1G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        _bytes(text)


def test_the_context_is_the_daemons() -> None:
    assert CONTEXT_MIB == DAEMONS_CONTEXT_MIB


def test_the_page_says_what_its_lines_print() -> None:
    """The example of docs/guides/fits.md, as it stands there."""
    page = (Path(__file__).parents[3] / "docs/guides/fits.md").read_text()
    lines, printed = (
        block.split("```")[0] for block in re.split(r"```(?:python|text)\n", page)[1:3]
    )
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(lines, {})
    assert out.getvalue() == printed


def test_what_fits_and_what_does_not() -> None:
    inputs = torch.empty(4096, 2048, device="meta")
    report = assert_fits("4GB", net, inputs)
    assert report.steps == 2 and report.explanation
    with pytest.raises(AssertionError, match="more than 1500MB") as failed:
        assert_fits("1500MB", net, inputs)
    text = str(failed.value)
    assert "activations" in text and "* Linear" in text and "half the batch: 2048" in text
    assert_fits("2GB", net, inputs[:64], context_mib=300)
