"""Whether the caller's podman has an image: a job would find out only when it holds GPUs."""

from __future__ import annotations

import shutil
import subprocess

from cli.problems import Usage

MISSING = 1  # how `podman image exists` ends; otherwise if it cannot tell
WITHIN_S = 20.0  # the first call of a user's podman prepares its storage


def refuse_missing(image: str) -> None:
    """Raises Usage if podman is here and says that it does not have the image."""
    podman = shutil.which("podman")
    if podman is None:
        return
    asked = [podman, "--remote=false", "image", "exists", image]
    try:
        ran = subprocess.run(asked, capture_output=True, check=False, timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        return
    if ran.returncode == MISSING:
        raise Usage(f"you have no image {image} on this server", f"podman pull {image}")
