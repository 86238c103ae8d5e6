"""Files with the job scripts that attempts and trials run: what was submitted, whatever has become
of the original since."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from carmad.core.types import JobId, JobSpec

NAMELESS = 0xFFFFFFFF
ACL = "system.posix_acl_access"
ENTRY = struct.Struct("<HHI")  # tag, permissions, id
OWNER, USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
R, X = 4, 1


class Copies:
    """One file for each job, replaced for each of its attempts; and one for each trial.

    Users can enter the directory, but not list it. Each can read and execute the copies of their
    own scripts only, and write to none: otherwise they could fill root's file system.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def write(self, name: str, spec: JobSpec) -> None:
        """Copy the spec's script there. Raises OSError."""
        assert spec.script
        path = self._directory / name
        self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._directory.chmod(0o711)  # whatever our umask
        part = path.with_name(f"{name}.part")
        part.unlink(missing_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        with os.fdopen(fd, "wb") as file:
            file.write(spec.script.text.encode())
            file.flush()
            if spec.uid != os.geteuid():
                _share(fd, spec.uid)
        part.replace(path)

    def remove(self, name: str) -> None:
        """Does nothing if it is not there."""
        for each in (name, f"{name}.part"):
            with contextlib.suppress(OSError):
                (self._directory / each).unlink(missing_ok=True)

    def clear_trials(self) -> None:
        """Remove what the trials of a daemon that was killed have left."""
        for path in self._directory.glob("trial*"):
            self.remove(path.name)


def of_job(job: JobId) -> str:
    """The name of its copy."""
    return f"job{job}"


def _share(fd: int, uid: int) -> None:
    """Let this user, and nobody else but us, read and execute it."""
    entries = (
        (OWNER, R | X, NAMELESS),
        (USER, R | X, uid),
        (GROUP, 0, NAMELESS),
        (MASK, R | X, NAMELESS),
        (OTHER, 0, NAMELESS),
    )
    try:
        os.setxattr(fd, ACL, struct.pack("<I", 2) + b"".join(ENTRY.pack(*one) for one in entries))
    except OSError:  # a file system without access control lists
        os.fchown(fd, uid, -1)
