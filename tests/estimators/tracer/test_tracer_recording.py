"""What the Recorder writes down, and the library call built on it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import fake_tensor  # noqa: E402

import estimators  # noqa: E402
from estimators.look import patches  # noqa: E402
from estimators.tracer import fakecuda, patching  # noqa: E402
from estimators.tracer.fakecuda import _virtual_functions  # noqa: E402
from estimators.tracer.modules import Layers  # noqa: E402
from estimators.tracer.recording import Recorder  # noqa: E402

patching.install(patches("torchvision"), Recorder())  # for timm and transformers
F, nn = torch.nn.functional, torch.nn
MIB = 1 << 20


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def allocated(recorder: Recorder) -> list[int]:
    return [how for what, how in recorder.events if isinstance(what, int) and how >= 0]


def marks(recorder: Recorder) -> list[str]:
    return [how for what, how in recorder.events if what == "mark"]


def test_storages_come_and_go(recorder: Recorder) -> None:
    a = torch.empty(256, 256, device="cuda")
    view = a.t()[3:].unsqueeze(0)
    b = a + 1
    del a
    assert recorder.events == [(1, 256 * 256 * 4), (2, 256 * 256 * 4)], "a view keeps it"
    del view
    assert recorder.events[-1] == (1, -1)
    assert (recorder.live, recorder.peak) == (256 * 256 * 4, 2 * 256 * 256 * 4)
    b.add_(1).mul_(2)
    assert len(recorder.events) == 3, "in place nothing is allocated"


def test_real_tensors_stay_real(recorder: Recorder) -> None:
    x = torch.arange(6.0).view(2, 3)
    assert (x @ x.t()).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    y = x.to("cuda")
    assert y.is_cuda and y.device.index == 0 and y.cpu().shape == (2, 3)
    assert torch.tensor([1, 2], device="cuda").is_cuda
    assert allocated(recorder) == [24, 16]


def test_integers_that_come_from_the_cpu_are_known(recorder: Recorder) -> None:
    mask = torch.tensor([[1, 0, 1], [1, 1, 1]]).cuda()
    assert mask.sum(1).tolist() == [2, 3] and mask.cpu()[0, 1] == 0
    x = torch.empty(2, 3, 7, device="cuda")
    assert x[mask.bool()].shape == torch.masked_select(x, mask.bool()[..., None]).view(-1, 7).shape
    assert x[mask.bool()].shape == (5, 7) and mask.nonzero().shape == (5, 2)
    mask[0, 1] = 1
    assert mask.all() and torch.arange(9, device="cuda").max() == 8
    with torch.device("cuda"):
        assert torch.ones(3, dtype=torch.long).cumsum(0).cpu().tolist() == [1, 2, 3]
    assert not recorder.made_up and not recorder.notes


def test_integers_that_nobody_knows_stay_unknown(recorder: Recorder) -> None:
    drawn = torch.randn(4, 9000, device="cuda").argmax(1)
    known = torch.zeros(4, dtype=torch.long, device="cuda")
    assert known.max() == 0 and not recorder.made_up
    known[2:] = drawn[2:]
    assert (drawn + known).max().item() == 1 and recorder.made_up
    assert known.max().item() == 1, "a part of it is unknown"


def test_random_integers_are_drawn(recorder: Recorder) -> None:
    drawn = torch.randint(3, 9, (4,), device="cuda")
    assert 3 <= int(drawn.min()) <= int(drawn.max()) < 9
    order = torch.randperm(5, device="cuda")
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4] and not recorder.made_up


def test_a_flag_may_be_known_though_not_all_it_is_made_of(recorder: Recorder) -> None:
    """As when a text is generated: it ends with a certain token, or at a certain length."""
    running = torch.ones(4, dtype=torch.long, device="cuda")
    for length in range(1, 9):
        token = torch.randn(4, 9000, device="cuda").argmax(-1)
        done = (token == 7) | torch.full((4,), length >= 5, device="cuda")
        running = running & ~done
        if running.max() == 0:
            break
    assert length == 5


def test_several_threads_may_run_operators(recorder: Recorder) -> None:
    told: list[Any] = []
    tensor = torch.ones(2, device="cuda")
    with fake_tensor.in_kernel_invocation_manager(recorder._mode):
        thread = threading.Thread(target=lambda: told.append((tensor + tensor).device.type))
        thread.start()
        thread.join()
    assert told == ["cuda"]


def test_a_training_step_is_told_in_order(recorder: Recorder) -> None:
    model = nn.Linear(512, 256).to("cuda")
    optimizer = sgd(model.parameters())
    for step in (1, 2):
        model(torch.empty(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        recorder.label_optimizer(optimizer)
        recorder.mark(f"step{step}")
        optimizer.zero_grad()
    assert marks(recorder) == ["forward", "backward", "step1", "forward", "backward", "step2"]
    assert [how for what, how in recorder.events if what == "blas"] == ["forward", "backward"]
    sizes = {what: how for what, how in recorder.events if isinstance(what, int) and how >= 0}
    size = (512 * 256 + 256) * 4
    by_kind = {
        kind: sum(n for id, n in sizes.items() if recorder.kinds.get(id) == kind)
        for kind in ("parameters", "gradients", "optimizer")
    }
    assert by_kind == {"parameters": size, "gradients": 2 * size, "optimizer": size}


def test_gradients_accumulate_in_place(recorder: Recorder) -> None:
    model = nn.Linear(512, 512, bias=False).to("cuda")
    x = torch.empty(4, 512, device="cuda")
    peaks = []
    for _ in range(3):
        model(x).sum().backward()
        peaks.append(recorder.peak)
    weight = 512 * 512 * 4
    assert recorder.live == pytest.approx(2 * weight, rel=0.02)
    assert peaks[1] - peaks[0] == pytest.approx(weight, rel=0.02), "the new one beside the old"
    assert peaks[2] == peaks[1]


def test_convolutions(recorder: Recorder) -> None:
    conv = nn.Conv2d(8, 16, (3, 5), stride=2, padding=1, groups=2, bias=False).to("cuda")
    x = torch.empty(2, 8, 33, 20, device="cuda")
    out = conv(x)
    expected = nn.Conv2d(8, 16, (3, 5), stride=2, padding=1, groups=2).to("meta")(x.to("meta"))
    assert out.shape == expected.shape
    out.sum().backward()
    first, second = recorder.convs
    assert (first.backward, first.input, first.weight) == (False, (2, 8, 33, 20), (16, 4, 3, 5))
    assert (first.output, first.groups, first.itemsize) == (tuple(out.shape), 2, 4)
    assert (first.stride, first.dilation, first.transposed) == ((2, 2), (1, 1), False)
    assert second == first._replace(backward=True)
    kept = [i for i, event in enumerate(recorder.events) if event[0] == "conv"]
    assert recorder.events[kept[0] - 1][1] == out.numel() * 4, "its output is there before it runs"


@pytest.mark.parametrize("kind", ["Conv1d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d"])
def test_shapes_of_convolutions(kind: str, recorder: Recorder) -> None:
    dims = int(kind[-2])
    layer = getattr(nn, kind)(4, 6, 3, stride=2, padding=1)
    x = torch.randn(2, 4, *[9, 10, 11][:dims])
    assert layer.to("cuda")(x.to("cuda")).shape == getattr(nn, kind)(4, 6, 3, 2, 1)(x).shape


def test_channels_last_goes_through_convolutions(recorder: Recorder) -> None:
    last = torch.channels_last
    x = torch.empty(2, 8, 16, 16, device="cuda").to(memory_format=last)
    weight = torch.empty(8, 8, 3, 3, device="cuda")
    before = len(allocated(recorder))
    out = F.conv2d(x, weight, padding=1)
    assert out.is_contiguous(memory_format=last)
    assert allocated(recorder)[before:] == [8 * 8 * 9 * 4, 2 * 8 * 16 * 16 * 4], "weight's copy"


def test_autocast_computes_in_16_bits() -> None:
    class Model(nn.Module):
        def __init__(self, on: bool) -> None:
            super().__init__()
            self.on = on
            self.layers = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)))

        def forward(self, x: Any) -> Any:
            with torch.autocast("cuda", torch.bfloat16, enabled=self.on):
                return self.layers(x).float().mean((2, 3))

    x = torch.empty(8, 16, 64, 64)
    full, half = (estimators.trace(Model(on), x, sgd) for on in (False, True))
    assert 0.5 < half.floor / full.floor < 0.8


def test_checkpointing_saves_activations() -> None:
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self, on: bool) -> None:
            super().__init__()
            self.on = on
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)
            )

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.on else block(x)
            return x

    x = torch.empty(4096, 64)
    plain, saving = (estimators.trace(Model(on), x, sgd) for on in (False, True))
    assert saving.floor < 0.5 * plain.floor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_keeps_no_scores(dtype: Any, masked: bool, recorder: Recorder) -> None:
    q, k, v = (torch.empty(2, 4, 512, 64, device="cuda", dtype=dtype) for _ in range(3))
    q.requires_grad_()
    mask = torch.ones(512, 512, dtype=torch.bool, device="cuda") if masked else None
    F.scaled_dot_product_attention(q, k, v, mask).sum().backward()
    assert max(allocated(recorder)) < 2 * 4 * 512 * 512 * q.element_size()
    recorder.events.clear()
    odd = torch.empty(2, 4, 512, 62, device="cuda", requires_grad=True)
    F.scaled_dot_product_attention(odd, odd, odd)
    assert max(allocated(recorder)) == 2 * 4 * 512 * 512 * 4, "there the GPU has no better way"


@pytest.mark.parametrize("activation", [F.silu, F.mish, F.gelu, F.hardswish])
def test_derivatives_are_one_kernel(activation: Callable[..., Any], recorder: Recorder) -> None:
    x = torch.empty(1 << 16, device="cuda", requires_grad=True)
    out = activation(x)
    before = len(allocated(recorder))
    out.backward(out.detach())
    assert allocated(recorder)[before:] == [4 << 16]


def test_an_operator_that_consists_of_others(recorder: Recorder) -> None:
    """As a DTensor calls it, below autograd."""
    x, like = torch.empty(8, 4, device="cuda"), torch.empty(0, device="cuda", dtype=torch.half)
    with torch._C._AutoDispatchBelowAutograd():
        y = torch.ops.aten.to.other(x, like)
    assert y.dtype is torch.half and allocated(recorder)[-1] == 2 * 8 * 4


def test_values_that_nobody_computed(recorder: Recorder) -> None:
    x = torch.empty(6, 4000, device="cuda")
    mask = x > 0
    read = x.sum().item(), mask.any().item(), bool(mask.all())
    assert read == (1.0, False, False)
    assert mask.any(), "what an assertion wants"
    assert x[mask].shape == (24000,) and x.masked_select(mask[:, :1]).shape == (24000,)
    assert mask.nonzero().shape == (24000, 2)
    assert [t.shape for t in torch.unique(x, return_counts=True)] == [(24000,), (24000,)]
    x[mask] = 0
    assert x.argmax(1).tolist() == [1] * 6 and not torch.isnan(x).any()
    assert any("mask" in note for note in recorder.notes)


def test_layouts_that_kernels_copy(recorder: Recorder) -> None:
    x = torch.empty(2, 64, 8, 8, device="cuda").permute(0, 2, 3, 1)
    before = len(allocated(recorder))
    F.layer_norm(x, (64,))
    size = x.numel() * 4
    assert allocated(recorder)[before : before + 2] == [size, size], "a contiguous copy, the result"
    assert recorder.live == size, "only the input is left"


def test_what_has_no_shape_rule_is_run_once_on_zeros(recorder: Recorder) -> None:
    library = torch.library.Library("carma_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    calls = []
    library.impl("twice", lambda x: calls.append(x.sum().item()) or torch.cat([x, x]), "CPU")
    x = torch.empty(3, 5000, device="cuda")
    assert torch.ops.carma_test.twice(x).shape == torch.ops.carma_test.twice(x).shape == (6, 5000)
    assert calls == [0.0]
    with pytest.raises(RuntimeError):
        x @ x  # the program's own errors stay what they are


def test_recurrent_layers_run_as_a_whole(recorder: Recorder) -> None:
    lstm = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True).to("cuda")
    gru = nn.GRU(128, 16).to("cuda")
    x = torch.empty(8, 20, 32, device="cuda")
    out, (h, c) = lstm(x)
    assert (out.shape, h.shape, c.shape) == ((8, 20, 128), (4, 8, 64), (4, 8, 64))
    packed = nn.utils.rnn.PackedSequence(
        torch.empty(30, 128, device="cuda"), torch.tensor([16, 8, 6])
    )
    assert gru(packed)[0].data.shape == (30, 16)
    count = len(allocated(recorder))
    out.sum().backward()
    assert all(p.grad is not None for p in lstm.parameters())
    assert len(allocated(recorder)) - count < 40, "not step by step"


@pytest.mark.skipif(
    not hasattr(torch.ops.aten, "_fused_rms_norm"),
    reason="this torch composes RMSNorm on GPUs as well",
)
def test_rms_norm_keeps_its_input_alone(recorder: Recorder) -> None:
    size, weight = 4096 * 256 * 4, nn.Parameter(torch.empty(256, device="cuda"))
    x = torch.empty(4096, 256, device="cuda", requires_grad=True) * 1
    before = recorder.live
    out = nn.functional.rms_norm(x, (256,), weight)
    assert recorder.live - before == size + 4096 * 4, "the output, and a number per row"
    del x
    out.sum().backward()
    assert weight.grad is not None and weight.grad.shape == (256,)


def test_layers(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Flatten()), nn.Dropout())
    with Layers(recorder) as layers:
        for _ in range(2):
            model.to("cuda")(torch.empty(5, 3, 8, 8, device="cuda"))
    model(torch.empty(5, 3, 8, 8, device="cuda"))
    assert layers.batch == 5
    assert [(x.kind, x.activations, x.parameters) for x in layers.layers] == [
        ("Conv2d", 144, 112), ("ReLU", 144, 0), ("Flatten", 144, 0), ("Dropout", 144, 0)
    ]  # fmt: skip


class NormAct(nn.BatchNorm2d):
    """As timm's: a module with parameters and a child."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(super().forward(x))


def test_modules_with_children_and_parameters_are_layers(recorder: Recorder) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), NormAct(4)).to("cuda")
    with Layers(recorder) as layers:
        model(torch.empty(5, 3, 8, 8, device="cuda"))
    assert [(x.kind, x.activations, x.parameters, x.inner) for x in layers.layers] == [
        ("Conv2d", 256, 16, False), ("ReLU", 256, 0, False), ("NormAct", 256, 8, True)
    ]  # fmt: skip


# -- the library call ------------------------------------------------------------------------------


def test_the_callers_module_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.utils.weight_norm(nn.Linear(8, 2)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    estimators.trace(model, torch.ones(4, 8))
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(p.grad is None and p.device.type == "cpu" for p in model.parameters())
    assert model(torch.ones(4, 8)).sum().item() != 0
    assert not torch.cuda.is_available() or torch.backends.cuda.is_built()


def test_models_may_be_made_on_the_spot_or_without_memory() -> None:
    def make(device: str = "cpu") -> Any:
        return nn.Linear(3000, 2000, device=device)

    x = torch.empty(16, 3000)
    reports = [estimators.trace(model, x, sgd) for model in (make(), make("meta"), make)]
    assert len({report.floor for report in reports}) == 1
    size = (3000 * 2000 + 2000) * 4
    report = reports[0]
    assert 3 * size < report.floor < 3.1 * size and report.reserved >= report.floor
    assert (report.steps, report.batch, len(report.layers)) == (2, 16, 1)


def test_frozen_parameters_have_no_gradients() -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 10))
    model[0].requires_grad_(False)
    report = estimators.trace(model, torch.empty(2, 1000), sgd)
    assert report.parts["parameters"] == pytest.approx(4.04e6, rel=0.01)
    assert report.parts["gradients"] < 0.1e6


def test_inputs_and_losses_of_all_shapes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, pair: Any, *, scale: Any) -> Any:
            a, b = pair
            return {"out": (self.layer(a) * scale, b), "extra": [self.layer(b)]}

    inputs = {"pair": (torch.ones(2, 4), torch.ones(3, 4)), "scale": torch.ones(())}
    assert estimators.trace(Model(), inputs).floor > 0
    own = estimators.trace(Model(), inputs, sgd, loss=lambda out: out["extra"][0].sum(), steps=1)
    assert own.steps == 1


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
def test_remembered_answers_are_those_of_the_slow_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = pytest.importorskip("timm")

    def trace() -> Any:
        return estimators.trace(lambda: timm.create_model(name), torch.empty(2, 3, 224, 224), sgd)

    quick = trace()
    run = Recorder.run
    monkeypatch.setattr(
        Recorder, "run", lambda self, func, args, kwargs, key=None: run(self, func, args, kwargs)
    )
    slow = trace()
    assert (quick.floor, quick.reserved, quick.parts) == (slow.floor, slow.reserved, slow.parts)


def test_transformers_from_their_configuration() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=1000)
    ids = torch.zeros(4, 128, dtype=torch.long)
    report = estimators.trace(
        lambda: transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}
    )
    logits = 4 * 128 * 1000 * 4
    assert 2 * logits < report.floor < 12 * logits and report.batch == 4


def test_the_table_of_virtual_functions(tmp_path: Any) -> None:
    base, derived = tmp_path / "base.h", tmp_path / "derived.h"
    base.write_text(
        "struct Base {\n  // virtual calls (made\n  virtual ~Base() = default;\n"
        "  virtual bool isBuilt() const { return false; }\n  virtual void init() const = 0;\n};"
    )
    derived.write_text(
        "struct D : Base {\n  ~D() override;\n  virtual void init() const override {}\n"
        "  virtual const long& hasIt(\n      int /*index*/) const;\n};"
    )
    assert _virtual_functions(base, derived) == [
        "~", "~", "isBuilt", "init", "hasIt"
    ]  # fmt: skip


def test_an_old_pytorch_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakecuda, "_installed", [])
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    with pytest.raises(fakecuda.Unfit, match=r"torch 2\.5\.1\+cu121 is too old"):
        fakecuda.install()


def test_a_process_that_has_trained_without_a_gpu_is_told_so() -> None:
    words = """
import torch, estimators
model = torch.nn.Linear(4, 4)
model(torch.zeros(2, 4)).sum().backward()
try:
    estimators.trace(model, torch.zeros(2, 4))
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert told.stdout.startswith("Unfit PyTorch went backward in this process"), told
