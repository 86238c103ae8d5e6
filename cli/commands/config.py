"""`carma config …`: the settings in effect, and checks of a settings file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from carmad import paths
from carmad.config import POLICY
from carmad.errors import CarmaError
from cli import client, output
from cli.app import Json, argument
from cli.problems import Usage

if TYPE_CHECKING:
    from carmad.api.server import ConfigOut

CONFIG_WITHIN_S = 5.0


def config_show(json: Json = False) -> int:
    answer = client.get("/v1/config")
    if json:
        output.print_json(answer)
        return 0
    print(f"# {answer['path'] or 'no file'}; what is not the default says where it comes from")
    print((answer["toml"] or "").rstrip())
    return 0


def config_check(
    file: Annotated[
        Path | None, argument("FILE", "default: the file that carmad would read")
    ] = None,
) -> int:
    print(check_settings(file))
    with suppress(CarmaError):
        answer = client.get("/v1/config", within_s=CONFIG_WITHIN_S)
        if answer["path"] == str((file or Path(paths.config_path())).absolute()):
            _tell_waiting_settings(answer)
    return 0


def _tell_waiting_settings(answer: ConfigOut) -> None:
    """Those that the running carmad applies only when it restarts."""
    for each in answer.get("waiting") or ():  # an older carmad sends none
        print(f"restart carmad to change {each}; running jobs continue")


def config_set(
    setting: Annotated[str, argument("SETTING", "so far: policy")],
    value: Annotated[str, argument("VALUE", "the name of a policy")],
) -> int:
    if setting != "policy":
        hint = "change the file that carma config show names, and then: systemctl reload carmad"
        raise Usage(f"{setting} cannot be set by a command", hint)
    answer = client.post("/v1/config", {"policy": value})
    print(f"the policy {value} decides from now on")
    if its := [name for name, origin in answer.get("origins", {}).items() if origin == POLICY]:
        print(f"its system also sets {', '.join(its)}: see `carma config show`")
    _tell_waiting_settings(answer)
    return 0


def check_settings(file: Path | None) -> str:
    """Load the settings as carmad does when it starts. Returns a description of them."""
    from carmad import registry
    from carmad.configfile import load
    from carmad.estimates.experience import Experience

    path = file or Path(paths.config_path())
    there = file or os.environ.get("CARMA_CONFIG") or path.exists()
    settings = load(path if there else None, os.environ)
    for plugin in (registry.bare_policy, registry.bare_predictor, registry.bare_recovery):
        plugin(settings)
    registry.estimator(settings.estimator, settings, Experience(settings).server())
    return f"{path} is fine" if there else "no file: the defaults"
