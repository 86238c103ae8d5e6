"""Caches outcomes by what determines them: the experiment and the code that simulates it.

Entries may be lost or damaged at any time; then they are computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from carmad.sim.experiment import Experiment
from carmad.sim.outcome import Outcome
from carmad.sim.task import Trace

KEPT_DAYS = 30  # since an outcome was last used
_NO_TRACE = Trace(name="", tasks=())
_DIGEST_BYTES = 32


class Cache:
    """One file per outcome, in a directory created when the first one is stored."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, key: str) -> Outcome | None:
        path = self._directory / key
        try:
            if path.stat().st_uid != os.getuid():  # whoever writes a pickle runs code in its reader
                return None
            content = path.read_bytes()
            path.touch()
        except OSError:
            return None
        packed = content[_DIGEST_BYTES:]
        if hashlib.sha256(packed).digest() != content[:_DIGEST_BYTES]:
            return None
        outcome: Outcome = pickle.loads(zlib.decompress(packed))
        return outcome

    def put(self, key: str, outcome: Outcome) -> None:
        """Ignores a full disk or an unwritable directory."""
        packed = zlib.compress(pickle.dumps(outcome), level=1)
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._forget_old()
            _write(self._directory / key, hashlib.sha256(packed).digest() + packed)

    def _forget_old(self) -> None:
        """Delete old outcomes: after a change of the code, they are never used again."""
        oldest = time.time() - KEPT_DAYS * 86_400
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process may delete it, too
                if path.stat().st_mtime < oldest:
                    path.unlink()


def keys(experiments: Sequence[Experiment]) -> list[str]:
    """For each experiment, a hash of its contents and of the code that runs it."""
    code = _digest(_sources())
    # Most experiments of a sweep share one trace, and that may have 100,000 rows.
    traces = {id(e.trace): e.trace for e in experiments}
    digests = {known: _digest(_words(trace)) for known, trace in traces.items()}
    return [_digest((code, digests[id(e.trace)], *_rest(e))).hex() for e in experiments]


def _rest(experiment: Experiment) -> Iterator[bytes]:
    """Everything but the trace."""
    yield repr(replace(experiment, trace=_NO_TRACE)).encode()
    _, _, file = experiment.interference.partition(":")
    if file:
        yield Path(file).read_bytes()


def _words(trace: Trace) -> Iterator[bytes]:
    yield repr((trace.name, trace.rejected)).encode()
    for task in trace.tasks:
        yield repr(task).encode()


def _sources() -> Iterator[bytes]:
    """CARMA's own source and data files, and those of plugins that the core may call."""
    yield sys.version.encode()
    packages = {"carmad"}
    for group in ("carma.policies", "carma.recoveries"):
        packages |= {point.module.partition(".")[0] for point in entry_points(group=group)}
    for package in sorted(packages):
        for path in sorted(_files(package)):
            yield path.read_bytes()


def _files(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    if spec is None:
        return
    if spec.origin and spec.submodule_search_locations is None:
        yield Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        yield from (p for p in Path(root).rglob("*") if p.is_file() and p.suffix != ".pyc")


def _digest(parts: Iterable[bytes]) -> bytes:
    """A digest of the parts and of the boundaries between them."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big"))
        whole.update(part)
    return whole.digest()


def _write(path: Path, content: bytes) -> None:
    """Write atomically, even if others write the same file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise
