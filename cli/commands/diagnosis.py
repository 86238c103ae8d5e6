"""`doctor` checks this machine and the daemon; `config` shows and checks the settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carmad import installed, paths
from carmad.errors import CarmaError
from carmad.threads import Threads
from cli import client, cluster, output
from cli.app import Json, group
from cli.problems import Usage

if TYPE_CHECKING:
    from carmad.api.service import CheckOut

LOW_DISK_BYTES = 1 << 30
NOBODY = 65534  # an ordinary user, on every machine
PYTHON_WITHIN_S = 20.0
DRIVER_WITHIN_S = 20.0  # without persistence, it takes seconds to wake each GPU

config = group("Show the daemon's settings, or check a settings file.")


def doctor(
    json: Json = False,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu", help="Test an idle GPU instead: takes up to five minutes, needs no daemon."
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", help="With --gpu: its index, as in carma gpus, or its UUID."),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="With --gpu: write the proposed settings to the settings file."
        ),
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Check instead that Slurm and CARMA fit each other.")
    ] = False,
) -> None:
    """Check this machine and, if one is running, the daemon. Exits with 1 if a check fails."""
    if gpu:
        from cli import selftest

        selftest.run(device or "", json, write)
        return
    if device or write:
        raise Usage("--device and --write need --gpu")
    checks = list(_of_slurm() if slurm else _all())
    answer = {"schema": 1, "checks": checks}
    if json:
        output.print_json(answer)
    else:
        from cli import render

        output.show(render.doctor({"schema": 1, "checks": checks}))
    if any(check["ok"] is False for check in checks):
        raise typer.Exit(1)


def _all() -> Iterator[CheckOut]:
    if not paths.is_served() and cluster.setting("engine"):  # a login node
        yield _python()
        yield from _of_slurm()
        return
    yield from _local()
    try:
        yield from client.get("/v1/doctor")["checks"]
    except CarmaError as error:
        yield from _without_daemon()
        yield _check("daemon", False, error.message, error.hint)
        return
    from cli import job_check

    yield job_check.check()


def _of_slurm() -> Iterator[CheckOut]:
    from cli import slurm_checks

    yield from slurm_checks.checks()


def _local() -> Iterator[CheckOut]:
    yield _python()
    if error := installed.conflict():
        yield _check("installation", False, error.message, error.hint)
    yield _driver()


def _without_daemon() -> Iterator[CheckOut]:
    """Checks that the daemon would otherwise report itself."""
    yield _settings()
    yield _mps()
    yield _disk()


def _check(name: str, ok: bool | None, detail: str, hint: str = "") -> CheckOut:
    return {"name": name, "ok": ok, "detail": detail, "hint": hint}


def _python() -> CheckOut:
    version = ".".join(str(n) for n in sys.version_info[:3])
    if os.geteuid() == 0 and (why := _why_unusable()):
        hint = f"see `namei -lv {sys.executable}`; install CARMA and its Python in /opt"
        return _check("python", False, f"only root can run {sys.executable}: {why}", hint)
    return _check("python", sys.version_info >= (3, 11), f"{version} in {sys.prefix}")


def _why_unusable() -> str:
    """Why an ordinary user cannot run `carma`; "" if they can, or if root cannot become one."""
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-B", "-c", "import cli.main"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PYTHON_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        return str(error)
    except OSError as error:
        return (error.strerror or str(error)) if error.filename else ""  # no name: not its exec
    return "" if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["it failed"])[-1]


def _driver() -> CheckOut:
    """In a thread: what hangs in the driver cannot be ended."""
    try:
        return Threads(1, "driver", DRIVER_WITHIN_S).submit(_driver_check).result(DRIVER_WITHIN_S)
    except TimeoutError:
        detail = f"the driver has not answered for {DRIVER_WITHIN_S:g} s"
        return _check("driver", False, detail, "does `nvidia-smi` answer? See `dmesg`")


def _driver_check() -> CheckOut:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        version = pynvml.nvmlSystemGetDriverVersion()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        hint = "see `nvidia-smi`; without GPUs: carma daemon start --emulated 3xA100-40GB"
        return _check("driver", None, f"no NVIDIA driver answers: {error}", hint)
    return _check("driver", count > 0, f"{version}, {count} GPUs", "see `nvidia-smi -L`")


def _mps() -> CheckOut:
    found = shutil.which("nvidia-cuda-mps-control")
    if found:
        return _check("mps", True, found)
    return _check("mps", None, "no nvidia-cuda-mps-control", "jobs share GPUs by time-slicing")


def _settings() -> CheckOut:
    try:
        return _check("settings", True, _check_settings(None))
    except CarmaError as error:
        return _check("settings", False, error.message, error.hint)


def _check_settings(file: Path | None) -> str:
    """Load the settings as carmad does when it starts. Returns a description of them."""
    from carmad import registry
    from carmad.configfile import load
    from carmad.learned.experience import Experience

    path = file or Path(paths.config_path())
    there = file or os.environ.get("CARMA_CONFIG") or path.exists()
    settings = load(path if there else None, os.environ)
    for plugin in (registry.policy, registry.predictor, registry.recovery):
        plugin(settings)
    registry.estimator(settings.estimator, settings, Experience(settings).server())
    return f"{path} is fine" if there else "no file: the defaults"


def _disk() -> CheckOut:
    path = Path(paths.state_dir())
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    detail = f"{free / (1 << 30):.1f} GiB free for {path}"
    return _check("disk", free > LOW_DISK_BYTES or None, detail, "free space, or jobs are refused")


@config.command("show")
def show(json: Json = False) -> None:
    """Print the settings in effect."""
    answer = client.get("/v1/config")
    if json:
        output.print_json(answer)
        return
    print(f"# {answer['path'] or 'no file: all defaults'}")
    print((answer["toml"] or "").rstrip())


@config.command("check")
def check(
    file: Annotated[
        Path | None, typer.Argument(help="Default: the file that carmad would read.")
    ] = None,
) -> None:
    """Check a settings file, together with the CARMA_… variables set here. Starts nothing."""
    print(_check_settings(file))
