"""Checkpoints: nothing of a fake tensor can be written. What the script saves is remembered by its
shapes, so that it can load it again."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from .recording import Recorder
from .values import is_small

_MARK = b"carma, saved value "
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


@dataclass(frozen=True)
class _Saved:
    """A tensor of a checkpoint."""

    is_cuda: bool
    like: Any  # a real tensor with its contents; on meta: they are large, or not known


class Checkpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._saved: list[Any] = []

    def install(self) -> None:
        self._load, torch.load = torch.load, self.load
        self._load_script, torch.jit.load = torch.jit.load, self._load_scripted
        torch.save = torch.jit.save = self.save

    @staticmethod
    def has(file: Any) -> bool:
        """Whether the script has saved it."""
        return _number(file) is not None

    def save(self, value: Any, file: Any, *_: Any, **__: Any) -> None:
        """The file says which of the saved values it stands for, wherever it is copied to."""
        recorder = self._recorder
        recorder.note("checkpoints are not written")
        before = recorder.enter("saving")
        try:
            text = _MARK + str(len(self._saved)).encode()
            if hasattr(file, "write"):
                file.write(text)
            elif not Path(file).parent.is_dir():
                raise RuntimeError(f"Parent directory {Path(file).parent} does not exist.")
            else:
                Path(file).write_bytes(text)
            self._saved.append(tree_map(self._keep, value))
        finally:
            recorder.enter(before)

    def load(self, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """To the device used on the server, where the copy takes memory, too."""
        on_gpu = _on_gpu(map_location)
        number = _number(file)
        if number is not None:
            return tree_map(lambda part: self._restore(part, on_gpu), self._saved[number])
        places: list[str] = []

        def keep(storage: Any, place: str) -> Any:
            places.append(place)
            return storage

        value = self._load(file, keep, *args, **kwargs)
        if on_gpu is None:
            on_gpu = any(place.startswith("cuda") for place in places)
        return tree_map(_move_to_gpu, value) if on_gpu else value

    def _load_scripted(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        """A scripted module that the script has saved was left as it is (see `tensors`)."""
        return (self.load if self.has(file) else self._load_script)(file, *args, **kwargs)

    def _keep(self, part: Any) -> Any:
        """A description of a tensor, which does not keep it alive, or a copy of anything else."""
        if isinstance(part, torch.Tensor):
            if part.layout is not torch.strided or type(part) not in _PLAIN:
                return part
            real = self._recorder.values.of(part) if isinstance(part, FakeTensor) else part.detach()
            if real is not None and is_small(part):
                return _Saved(part.is_cuda, real.clone())
            like = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device="meta")
            return _Saved(part.is_cuda, like)
        try:
            return part if isinstance(part, torch.nn.Module) else copy.deepcopy(part)
        except Exception:  # noqa: BLE001  of the script's own making
            return part

    def _restore(self, part: Any, on_gpu: bool | None) -> Any:
        """`on_gpu`: None: where it was."""
        if not isinstance(part, _Saved):
            return part
        like, is_cuda = part.like, part.is_cuda if on_gpu is None else on_gpu
        tensor = torch.empty_strided(
            like.shape, like.stride(), dtype=like.dtype, device="cuda" if is_cuda else "cpu"
        ).zero_()
        if not like.is_meta:
            return tensor.copy_(like)
        self._recorder.values.forget(tensor)
        return tensor


def _number(file: Any) -> int | None:
    """Of the saved value that a file stands for; None for a file that the script has not saved."""
    try:
        if hasattr(file, "read"):
            at = file.tell()
            head = file.read(len(_MARK) + 20)
            file.seek(at)
        else:
            with Path(file).open("rb") as opened:
                head = opened.read(len(_MARK) + 20)
    except (OSError, ValueError, AttributeError):
        return None
    return int(head[len(_MARK) :]) if head.startswith(_MARK) else None


def _on_gpu(map_location: Any) -> bool | None:
    """None if the file itself says where its tensors go."""
    if isinstance(map_location, dict):
        map_location = next(iter(map_location.values()), None)
    if map_location is None:
        return None
    if callable(map_location):  # `lambda storage, place: storage`, or `storage.cuda()`
        try:
            kept = map_location(torch.UntypedStorage(0), "cpu")
        except Exception:  # noqa: BLE001  the script's own; there is no GPU to move it to
            return True
        return None if kept is None else False
    return torch.device(map_location).type == "cuda"


def _move_to_gpu(part: Any) -> Any:
    if isinstance(part, torch.Tensor):
        return part.to("cuda")
    return part.cuda() if isinstance(part, torch.nn.Module) else part
