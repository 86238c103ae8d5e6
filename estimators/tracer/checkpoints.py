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
from .values import Values, is_small

_MARK = b"carma, saved value "


@dataclass(frozen=True)
class _Saved:
    """A tensor of a checkpoint."""

    shape: Any
    stride: Any
    dtype: torch.dtype
    device: torch.device
    contents: Any  # a real tensor; None: large, or not known

    def load(self, on_gpu: bool | None, values: Values) -> Any:
        """`on_gpu`: None: where it was."""
        on_gpu = self.device.type == "cuda" if on_gpu is None else on_gpu
        tensor = torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device="cuda" if on_gpu else "cpu"
        ).zero_()
        if self.contents is not None:
            return tensor.copy_(self.contents)
        values.forget(tensor)
        return tensor


class Checkpoints:
    """Stands in for `torch.save` and `torch.load`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._saved: list[Any] = []

    def install(self) -> None:
        self._load, torch.load = torch.load, self.load
        torch.save = self.save

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
            self._saved.append(_keep(value, recorder.values))
        finally:
            recorder.enter(before)

    def load(self, file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """To the device used on the server, where the copy takes memory, too."""
        on_gpu = _on_gpu(map_location)
        number = _number(file)
        if number is not None:
            return _restore(self._saved[number], on_gpu, self._recorder.values)
        places: list[str] = []

        def keep(storage: Any, place: str) -> Any:
            places.append(place)
            return storage

        value = self._load(file, keep, *args, **kwargs)
        if on_gpu is None:
            on_gpu = any(place.startswith("cuda") for place in places)
        return _move_to_gpu(value) if on_gpu else value


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


def _keep(value: Any, values: Values) -> Any:
    """The value, with descriptions of tensors: it keeps none of them alive."""

    def keep(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if part.layout is not torch.strided or type(part) not in _PLAIN:
                return part
            real = values.of(part) if isinstance(part, FakeTensor) else part.detach()
            contents = real.clone() if real is not None and is_small(part) else None
            return _Saved(part.shape, part.stride(), part.dtype, part.device, contents)
        try:
            return part if isinstance(part, torch.nn.Module) else copy.deepcopy(part)
        except Exception:  # noqa: BLE001  of the script's own making
            return part

    return tree_map(keep, value)


_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def _restore(value: Any, on_gpu: bool | None, values: Values) -> Any:
    def restore(part: Any) -> Any:
        return part.load(on_gpu, values) if isinstance(part, _Saved) else part

    return tree_map(restore, value)


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


def _move_to_gpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("cuda")
    if isinstance(value, dict):
        for key in value:
            value[key] = _move_to_gpu(value[key])
        return value
    if isinstance(value, torch.nn.Module):
        return value.cuda()
    if type(value) in (list, tuple):
        return type(value)(_move_to_gpu(item) for item in value)
    return value
