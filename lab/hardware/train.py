"""Train one of the campaign's networks on synthetic data: `train.py NAME [--steps N]`.

A plain training script, which needs torch, timm and transformers only. It prints a JSON line when
it is warm ("ready"), one for each window of steps with the times at which they ended on the device
("steps"), and one at its end with the allocator's peaks ("done"). Times are the system's monotonic
clock, so that those of two processes can be compared. With `--losses` it prints the loss of each
step instead ("loss"), to the last bit and when; two runs have the same.

In a window the host does not wait for the device after each step: it is at most two steps ahead,
and CUDA events tell when each ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from workloads import ALL, Workload, small  # type: ignore[import-not-found]

WARM_UP = 3  # steps before "ready": the optimizer has its state, and cudnn has chosen
AHEAD = 2  # steps
REST_S = 0.005  # after a step on the CPU, which others need, too
WINDOW_S = 1.0
CLASSES = 1000
BEGAN = time.monotonic()


class Training:
    """A network with its batch and optimizer; each call is a step."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        torch.backends.cudnn.benchmark = workload.benchmark
        network = build(workload).to(device).train()
        if workload.channels_last:
            network = network.to(memory_format=torch.channels_last)
        if workload.checkpoint:
            checkpointed(network)
        self._inputs, self._targets = batch(workload, device)
        self._optimizer = optimizer(workload, network)
        self._network = torch.compile(network) if workload.compile else network
        self._device = device.type
        self._wait_s = workload.wait_s
        self._amp = {"": None, "fp16": torch.float16, "bf16": torch.bfloat16}[workload.amp]
        self._scaler = torch.amp.GradScaler(self._device, enabled=workload.amp == "fp16")

    def __call__(self) -> torch.Tensor:
        """Returns the loss."""
        time.sleep(self._wait_s)
        with torch.autocast(self._device, self._amp, enabled=self._amp is not None):
            loss = self._loss()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        return loss.detach()

    @property
    def shape(self) -> torch.Size:
        """Of a batch."""
        return self._inputs.shape

    def train_on(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A step with another batch. Returns the loss."""
        assert self._targets is not None
        self._inputs.copy_(images, non_blocking=True)
        self._targets.copy_(targets, non_blocking=True)
        return self()

    def _loss(self) -> torch.Tensor:
        if self._targets is None:  # a language model, which computes it itself
            return self._network(input_ids=self._inputs, labels=self._inputs).loss
        return torch.nn.functional.cross_entropy(self._network(self._inputs), self._targets)


def build(workload: Workload) -> torch.nn.Module:
    if workload.kind in ("cnn", "vit"):
        import timm

        chosen = {"model_name": workload.model, **workload.options}
        return timm.create_model(**chosen, num_classes=CLASSES)
    if workload.kind == "mlp":
        return mlp(**workload.options)
    import transformers

    if workload.kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**workload.options))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**workload.options))


def mlp(width: int, depth: int, norm: str = "") -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        layers += [torch.nn.RMSNorm(width)] if norm else []
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES))


def checkpointed(network: Any) -> None:
    if hasattr(network, "set_grad_checkpointing"):
        network.set_grad_checkpointing(True)
    else:
        network.gradient_checkpointing_enable()


def batch(workload: Workload, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """It stays on the device: no loader is part of the campaign."""
    count, size = workload.batch, workload.size
    if workload.kind in ("bert", "gpt2"):
        return torch.randint(0, CLASSES, (count, size), device=device), None
    shape = (count, size) if workload.kind == "mlp" else (count, 3, size, size)
    inputs = torch.randn(shape, device=device)
    if workload.channels_last:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs, torch.randint(0, CLASSES, (count,), device=device)


def optimizer(workload: Workload, network: torch.nn.Module) -> torch.optim.Optimizer:
    parameters = network.parameters()
    if workload.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[workload.optimizer]
    return kind(parameters, lr=1e-4)


def window(step: Training, cuda: bool, seconds: float, steps: float) -> int:
    """Steps for so long, and not more than so many. Prints when each ended, answers how many."""
    events: list[Any] = []
    ended: list[float] = []
    if cuda:
        torch.cuda.synchronize()
        base = torch.cuda.Event(enable_timing=True)
        base.record()
        base.synchronize()
    began = time.monotonic()
    while time.monotonic() - began < seconds and max(len(events), len(ended)) < steps:
        step()
        if not cuda:
            ended.append(time.monotonic())
            time.sleep(REST_S)
            continue
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > AHEAD:
            events[-1 - AHEAD].synchronize()
    if cuda:
        torch.cuda.synchronize()
        ended = [began + base.elapsed_time(event) / 1000 for event in events]
    say("steps", began=began, ended=[round(at, 6) for at in ended])
    return len(ended)


def say(what: str, **more: object) -> None:
    print(json.dumps({"event": what, **more}), flush=True)


def freely(step: Training, cuda: bool, seconds: float, steps: float) -> None:
    until = time.monotonic() + seconds
    while steps > 0 and (left := until - time.monotonic()) > 0:
        steps -= window(step, cuda, min(WINDOW_S, left), steps)


def held(step: Training, cuda: bool) -> None:
    """A window for each line on standard input, which says how many seconds long."""
    for line in sys.stdin:
        window(step, cuda, float(line), float("inf"))


class Images(torch.utils.data.Dataset[Any]):
    """Made up by the workers of a data loader, each by its number."""

    def __init__(self, shape: torch.Size) -> None:
        self._shape = shape

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        random = torch.Generator().manual_seed(number)
        return torch.randn(self._shape, generator=random), number % CLASSES


def batches(shape: torch.Size, workers: int, cuda: bool) -> Iterator[Any]:
    count, *of_one = shape
    images = Images(torch.Size(of_one))
    return iter(torch.utils.data.DataLoader(images, count, num_workers=workers, pin_memory=cuda))


def losses(step: Training, cuda: bool, steps: float, workers: int) -> None:
    """Prints that of each step. `workers`: of a data loader; 0: the batch stays the same."""
    loaded = batches(step.shape, workers, cuda) if workers else None
    while steps > 0:
        steps -= 1
        loss = step.train_on(*next(loaded)) if loaded else step()
        say("loss", loss=loss.item().hex(), at=time.monotonic())
        if not cuda:
            time.sleep(REST_S)


def repeatable() -> None:
    """Two runs compute the same, at least of networks whose kernels do."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True


def without_compiler() -> None:
    """The first step of an optimizer imports torch's compiler, which takes longer than a rehearsal
    trains."""
    stub: Any = types.ModuleType("torch._dynamo")
    stub.disable = lambda function, *_, **__: function
    stub.graph_break = lambda *_, **__: None
    sys.modules["torch._dynamo"] = torch._dynamo = stub


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a network on synthetic data.")
    parser.add_argument("name", choices=ALL, metavar="NAME")
    parser.add_argument("--steps", type=int, help="20, unless --seconds is given")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--held", action="store_true", help="train when told on standard input")
    parser.add_argument("--losses", action="store_true", help="print them; without benchmarks")
    parser.add_argument("--workers", type=int, default=0, help="with --losses: of a data loader")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="the smallest network of its kind")
    chosen = parser.parse_args()
    workload = ALL[chosen.name]
    cuda = chosen.device == "cuda"
    if not cuda:
        torch.set_num_threads(1)
    if chosen.small and not workload.compile:
        without_compiler()
    if chosen.losses:
        repeatable()
        workload = replace(workload, benchmark=False)
    step = Training(small(workload) if chosen.small else workload, torch.device(chosen.device))
    for _ in range(WARM_UP):
        step()
    if cuda:
        torch.cuda.synchronize()
    say("ready", name=chosen.name, pid=os.getpid(), seconds=time.monotonic() - BEGAN)
    unlimited = float("inf")
    if chosen.held:
        held(step, cuda)
    elif chosen.losses:
        losses(step, cuda, chosen.steps or unlimited, chosen.workers)
    else:
        default = 20 if chosen.seconds is None else unlimited
        freely(step, cuda, chosen.seconds or unlimited, chosen.steps or default)
    peaks = {}
    if cuda:
        peaks["allocated_mib"] = torch.cuda.max_memory_allocated() / 2**20
        peaks["reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    say("done", **peaks)


if __name__ == "__main__":
    main()
