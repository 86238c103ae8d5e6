"""`hydra/launcher=submitit_carma`: Hydra's submitit launcher with CARMA's executor.

Hydra imports every module of this namespace when it starts, and accepts launchers from nowhere
else. Without hydra-submitit-launcher there is nothing to offer.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

if find_spec("hydra_plugins.hydra_submitit_launcher"):
    from hydra.core.config_store import ConfigStore
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    class CarmaLauncher(BaseSubmititLauncher):
        _EXECUTOR = "carma"

    @dataclass
    class CarmaQueueConf(BaseQueueConf):
        """What `carma submit` calls --gpu-mem, --exclusive, … has its name here, too."""

        _target_: str = f"{__name__}.CarmaLauncher"
        timeout_min: int | None = None  # type: ignore[assignment]  # no limit
        max_num_timeout: int = 0
        array_parallelism: int | None = None
        signal_delay_s: int = 90

    ConfigStore.instance().store(
        group="hydra/launcher",
        name="submitit_carma",
        node=CarmaQueueConf(),
        provider="carma_launcher",
    )
