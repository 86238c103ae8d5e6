"""`hydra/launcher=submitit_carma`: Hydra's submitit launcher with CARMA's executor.

Hydra imports every module of this namespace when it starts, and accepts launchers from nowhere
else. Without hydra-submitit-launcher there is nothing to offer.
"""

from importlib.util import find_spec

if find_spec("hydra_plugins.hydra_submitit_launcher"):
    from hydra.core.config_store import ConfigStore
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    class CarmaLauncher(BaseSubmititLauncher):
        _EXECUTOR = "carma"

    ConfigStore.instance().store(
        group="hydra/launcher",
        name="submitit_carma",
        # Not a dataclass, so that all of CARMA's options can be added to it.
        node={
            **vars(BaseQueueConf()),
            "_target_": f"{__name__}.{CarmaLauncher.__name__}",
            "timeout_min": None,
            "max_num_timeout": 0,
        },
        provider="carma_launcher",
    )
