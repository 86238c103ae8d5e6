"""Lightning: the other processes are not started, as the first stands for all."""

from __future__ import annotations

from typing import Any

MADE_FOR = "2.6"


def start_none(module: Any, tracer: Any) -> None:
    launcher = module._SubprocessScriptLauncher
    tracer.replace(launcher, _call_children_scripts=lambda self: None)
    if hasattr(module, "_launch_process_observer"):  # Lightning 2.1
        module._launch_process_observer = lambda *_: None


PATCHES = {
    "lightning.fabric.strategies.launchers.subprocess_script": start_none,
    "lightning_fabric.strategies.launchers.subprocess_script": start_none,
}
