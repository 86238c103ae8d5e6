"""The tutorials, followed by the letter."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.publish import DOCS
from tests.attack.booted import booted
from tests.daemon import QUICK, clean_environment
from tests.tutorial import Shell, blocks, shows

ROOT = Path(__file__).parents[2]
TUTORIALS = DOCS / "tutorials"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """In a directory that has what of the checkout the tutorials use."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / ".venv").symlink_to(sys.prefix)
    (checkout / "examples").symlink_to(ROOT / "examples")
    (checkout / "demo.py").write_text("", encoding="utf-8")  # as if it had been run
    own = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CARMA_SOCKET": str(tmp_path / "sock"),
        "CARMA_STATE_DIR": str(tmp_path / "state"),
        "CARMA_CONFIG": os.devnull,
        "PS1": "",
        "SHELL": "/bin/bash",  # reads its input line by line, and leaves the rest
    }
    made = Shell(["bash"], checkout, clean_environment() | QUICK | own)
    try:
        yield made
    finally:
        made.run("carma daemon stop >/dev/null 2>&1 || true")
        made.close()


def test_a_student_can_follow_the_tutorial(shell: Shell) -> None:
    shell.follow(TUTORIALS / "student.md", faster=10)


@pytest.mark.long
def test_a_researcher_can_follow_the_tutorial(shell: Shell, tmp_path: Path) -> None:
    """With a made-up trace of Philly's form, and without what pip would download."""
    installed = tmp_path / "installed"
    (tmp_path / "tight-fit").mkdir()
    days = [f"2017-10-{3 + i // 24:02}T{i % 24:02}:00:00" for i in range(100)]
    rows = [f"{day},{600 + 60 * i},{1 + i % 2},0,{i % 3}" for i, day in enumerate(days)]
    philly = "\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows, ""])
    (tmp_path / "tight-fit/philly.csv").write_text(philly, encoding="utf-8")
    shell.run("export PIP_QUIET=1 PIP_NO_INDEX=1 PIP_NO_DEPS=1 PIP_NO_BUILD_ISOLATION=0")
    shell.run(f"export PIP_TARGET={installed} PYTHONPATH={installed}")
    # CARMA's own programs take nothing from PYTHONPATH; here, that is where pip has installed.
    shell.run("carma() { python3 -c 'from cli.main import main; main()' \"$@\"; }")
    shell.run('mkdir() { command mkdir -p "$@"; }')  # the trace is there already
    shell.follow(TUTORIALS / "researcher.md")


def test_what_is_printed_is_compared() -> None:
    printed = "job            6  greedy\nuser  ada\nstate          succeeded\n"
    assert shows(printed, "job   12  greedy\n…\nstate  succeeded\n")
    assert shows(printed, "job 6 gr…\n")
    assert not shows(printed, "state  succeeded\njob  6  greedy\n")
    assert not shows(printed, "state  failed\n")


SUDO = """#!/bin/sh
[ "$1" = -u ] || exec "$@"
user=$2; shift 2
exec runuser -u "$user" -- "$@"
"""
PYTHON3 = """#!/bin/sh
{python} "$@" --without-pip
for packages in "$3"/lib/python3*/site-packages; do echo {needs} > "$packages/needs.pth"; done
ln -s {tools}/pip "$3/bin/pip"
"""
PIP = """#!/bin/sh
exec {python} -m pip --python "${{0%pip}}python" "$@"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Shell]:
    """A root shell in the checkout, on a machine with systemd and emulated GPUs. pip finds what
    CARMA needs where the tests have it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    python, needs = f"{sys.base_prefix}/bin/python3", sysconfig.get_path("purelib")
    scripts = {
        "sudo": SUDO,
        "python3": PYTHON3.format(python=python, needs=needs, tools=tools),
        "pip": PIP.format(python=sys.executable),
    }
    for name, text in scripts.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    tmp_path.chmod(0o755)
    with booted(tmp_path) as machine:
        machine.systemctl("stop", "carmad.socket")
        for where in ("/opt", "/usr/local/bin"):
            machine.run("mount", "-t", "tmpfs", "-o", "mode=755", "none", where)
        drop_in = "/etc/systemd/system/carmad.service.d/test.conf"
        carmad = Path(sys.executable).with_name("carmad")
        machine.run("sed", "--in-place", f"s|{carmad}|/opt/carma/bin/carmad|", drop_in)
        machine.run("sed", "--in-place", "/KILL_GRACE/d", drop_in)  # a setting of the tutorial's
        path = f"{tools}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        pip = {"QUIET": "1", "NO_INDEX": "1", "NO_DEPS": "1", "NO_BUILD_ISOLATION": "0"}
        pip |= {"NO_COMPILE": "1", "DISABLE_PIP_VERSION_CHECK": "1", "ROOT_USER_ACTION": "ignore"}
        env = {"PATH": path, "HOME": str(tmp_path), **{f"PIP_{k}": v for k, v in pip.items()}}
        shell = Shell([*machine.enter(wd=str(ROOT)), "bash"], ROOT, env)
        try:
            yield shell
        finally:
            shell.close()


@pytest.mark.long
def test_the_service_can_be_tried_on_emulated_gpus(server: Shell) -> None:
    install, *_ = blocks(TUTORIALS / "admin.md")
    server.run(install.commands)
    server.run("sed -i '/^ExecStart/d' /etc/systemd/system/carmad.service.d/test.conf")
    server.follow(DOCS / "guides/try-service.md", faster=10)
    assert "emulated" not in server.run("carma daemon status; systemctl cat carmad")


@pytest.mark.long
def test_an_administrator_can_follow_the_tutorial_to_the_end(server: Shell) -> None:
    server.follow(TUTORIALS / "admin.md")
    server.follow(DOCS / "guides/uninstall.md")
    left = server.run("find /opt /usr/local/bin /etc /var/lib /run -name '*carma*'")
    assert not left
