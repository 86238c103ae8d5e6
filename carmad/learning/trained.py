"""The models that policies and predictors use, trained on this server's past jobs by a separate
process (`carmad.learning.training`)."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from carmad import apart, beats
from carmad.errors import CarmaError
from carmad.installed import how_to_add
from carmad.learning.files import decode_model
from carmad.learning.models import Model
from carmad.store.sql import SqlStore

log = logging.getLogger(__name__)

NEEDED = {"interpret": "interpret-core", "sklearn": "scikit-learn"}  # of the part `policies`
TRAINED = "trained"  # a file whose modification time is that of the last training
APART = "training"  # the directory of the database's copy during training
DAY_S = 86_400.0
TRAIN_LATE_S = DAY_S / 2


def missing_packages() -> str:
    """The packages for training that are not installed; "" if all are."""
    return ", ".join(package for module, package in NEEDED.items() if find_spec(module) is None)


class Models:
    """Models trained here are files in `directory`. `tell` gets all of them after each training, in
    the training's thread; `last_words` has the output of the last training."""

    def __init__(
        self,
        directory: Path,
        store: SqlStore,
        retrain_days: float,
        tell: Callable[[Mapping[str, Model]], None],
    ) -> None:
        self._directory = directory
        self._store = store
        self._retrain_days = retrain_days
        self._tell = tell
        self._at_it = threading.Lock()
        self._stopping = threading.Event()
        self._failed_at: float | None = None  # monotonic
        self.last_words: tuple[str, ...] = ()

    def load(self) -> Mapping[str, Model]:
        """Read the trained models, and remove leftovers of a training that was killed."""
        if not self.under_way:
            shutil.rmtree(self._directory / APART, ignore_errors=True)
            for draft in self._directory.glob("*.new"):
                with contextlib.suppress(OSError):  # it does no harm
                    draft.unlink()
        return dict(self._read())

    def has(self, name: str) -> bool:
        return (self._directory / f"{name}.json").exists()

    @property
    def under_way(self) -> bool:
        return self._at_it.locked()

    @property
    def last_training_at(self) -> float | None:
        """When the last training was completed (Unix s)."""
        try:
            return (self._directory / TRAINED).stat().st_mtime
        except OSError:
            return None

    def train_if_due(self) -> None:
        """Call it regularly."""
        last = self.last_training_at
        due = last is None or time.time() - last >= self._retrain_days * DAY_S
        failed = self._failed_at is not None and time.monotonic() - self._failed_at < DAY_S
        if self._retrain_days and due and not failed:
            self.train()

    def begin(self) -> None:
        """Train in a new thread. Raises CarmaError if packages are missing."""
        if packages := missing_packages():
            raise CarmaError(f"{packages} is not installed", how_to_add("policies"))
        beats.thread("training", TRAIN_LATE_S, self.train).start()

    def train(self) -> None:
        """Train, unless a training is running. Errors are logged."""
        if not self._at_it.acquire(blocking=False):
            return
        beats.at("a training", TRAIN_LATE_S)
        try:
            self._failed_at = time.monotonic()
            self._directory.mkdir(mode=0o700, exist_ok=True)
            if packages := missing_packages():
                log.info(
                    "no models are trained: that needs %s (%s)", packages, how_to_add("policies")
                )
                return
            if self._train():
                (self._directory / TRAINED).touch()
                self._failed_at = None
                self._tell(dict(self._read()))
        except (OSError, CarmaError) as error:
            log.error("no models were trained: %s", error)
        finally:
            self._at_it.release()

    def stop(self) -> None:
        """Abort a running training."""
        self._stopping.set()
        with self._at_it:
            pass

    def _read(self) -> Iterator[tuple[str, Model]]:
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield path.stem, decode_model(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                log.error("%s is not a model, and is ignored: %.200s", path, error)

    def _train(self) -> bool:
        """Whether the process succeeded."""
        folder = self._directory / APART  # a killed process leaves SQLite files there
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            self._store.copy_to(folder / "past.db")
            words = str(folder / "past.db"), str(self._directory)
            code, said, alarms = apart.run(
                "carmad.learning.training", *words, stopping=self._stopping
            )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in alarms:
            log.warning("training: %s", line)
        for line in said:
            log.info("training: %s", line)
        if code and not self._stopping.is_set():
            log.error("training ended with %d", code)
        self.last_words = (*said, *alarms)
        return code == 0
