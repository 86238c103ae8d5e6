"""`carma logs` on a login node: the file that Slurm writes, read as the user."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from carma_client.logs import last_lines
from carmad.readable import clean
from cli import output
from cli.cluster import accounts, jobs, slurm
from cli.problems import Problem, Unreachable

if TYPE_CHECKING:
    from argparse import Namespace
    from typing import BinaryIO

LOOK_S = 0.5  # between checks for new output
ASK_S = 5.0  # between questions to Slurm's controller


def logs(options: Namespace) -> int:
    """Print a job's output; -f follows it."""
    row, more = accounts.record(jobs.resolve(options.job))
    label = str(row.id)
    path = more.get("StdErr" if options.stderr else "StdOut", "")
    if row.never_ran:
        raise Problem(f"job {row.label} never ran: it has no output")
    if not path:
        raise Problem(
            f"Slurm's accounts do not tell the output file of job {row.label}",
            f"if it is no other, it is slurm-{row.label}.out in {clean(more['WorkDir'])}",
        )
    if path == "(null)":
        raise Problem(f"job {row.label} has no output file: it runs at a terminal")
    if options.follow and not os.path.exists(path) and not row.state.ended:  # noqa: PTH110
        output.note(f"job {row.label} has no output yet; waiting for it")
        while not os.path.exists(path) and not _has_ended(label):  # noqa: PTH110
            time.sleep(ASK_S)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - as everywhere that logs are read
            if options.tail is not None:
                size = os.fstat(file.fileno()).st_size
                sys.stdout.buffer.write(last_lines(file, [(0, size)], options.tail))
                file.seek(size)
            _copy(file)
            if options.follow:
                _follow(file, label)
    except FileNotFoundError:
        if row.state.code in ("PD", "H"):
            raise Problem(
                f"job {row.label} has not started: there is no output yet",
                f"see carma why {row.label}",
            ) from None
        raise Problem(
            f"{clean(path)} is not here",
            "is its folder shared with the nodes? if not, it is on the node that ran the job",
        ) from None
    except OSError as error:
        raise Problem(f"cannot read {clean(path)}: {error.strerror}") from None
    return 0


def _has_ended(label: str) -> bool:
    """Also if Slurm has forgotten it. While its controller is away, nothing has."""
    try:
        return slurm.row(label).state.ended
    except slurm.Gone:
        return True
    except Unreachable:
        return False


def _copy(file: BinaryIO) -> None:
    shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _follow(file: BinaryIO, label: str) -> None:
    asked = 0.0
    ended = False
    while True:
        if time.monotonic() - asked >= ASK_S:
            ended, asked = _has_ended(label), time.monotonic()
        if os.fstat(file.fileno()).st_size < file.tell():  # it was truncated
            file.seek(0)
        _copy(file)
        if ended:
            return
        time.sleep(LOOK_S)
