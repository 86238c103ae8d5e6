"""A step of the build of CARMA's wheel: puts the client's wheel into it, from where programs on the
server install it. It fits the daemon, and no package index is asked for a name."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder


class ClientWheel(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = TemporaryDirectory()
        if version != "editable":
            client = WheelBuilder(str(Path(self.root, "packaging/client")))
            (wheel,) = client.build(directory=self._folder.name, versions=["standard"])
            build_data["shared_data"][wheel] = f"share/carma/{Path(wheel).name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()
