"""Little programs, each with operators or values of a kind, traced in one process."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

pytest.importorskip("torch")

START = """
import torch
from torch import nn
from torch.nn import functional as F
cuda = torch.device("cuda")
x = torch.randn(64, 256, device=cuda)
net = nn.Linear(256, 256).to(cuda)
"""

# What they read is known: none of them is told anything that is made up.
KNOWN = {
    "a mask by comparing floats": """
        at = torch.linspace(0, 1, 64, device=cuda)
        assert x[at < 0.5].shape == (32, 256)
        assert torch.where(at < 0.25)[0].shape == (16,)
        y = x.clone()
        y[at < 0.5] = net(x[:32])
        y.sum().backward()
    """,
    "rows by their positions": """
        keep = torch.tensor([0.1, 0.9, 0.8]).cuda() > 0.5
        rows = x.index_select(0, keep.nonzero().squeeze(1))
        assert rows.shape == (2, 256) and net(rows).shape == (2, 256)
        assert x[keep.nonzero(as_tuple=True)].shape == (2, 256)
    """,
    "a mask of several dimensions": """
        valid = (torch.arange(16, device=cuda) < torch.tensor([[3], [16]], device=cuda))
        y = torch.zeros(2, 16, 256, device=cuda)
        y[valid] = net(x[:19])
        out = y.masked_scatter(valid[..., None], net(x[:19]))
        (out + y).sum().backward()
        assert out[~valid].shape == (13, 256)
    """,
    "a schedule": """
        betas = torch.linspace(1e-4, 0.02, 1000, device=cuda)
        kept = torch.cumprod(1 - betas, 0)
        t = torch.randint(0, 1000, (64,), device=cuda)
        assert 0 < kept[t].min() and kept[0].item() > 0.99 and kept[-1] < 0.01
        sigma, turns = torch.tensor(80.0, device=cuda), 0
        while sigma > 0.01:
            sigma, turns = sigma / 2, turns + 1
        assert turns == 13
    """,
    "accumulators of what is known": """
        seen = torch.zeros(1, device=cuda)
        for rows in (64, 64, 32):
            seen += rows
        assert seen.item() == 160 and int(seen) == 160 and seen.tolist() == [160.0]
        lr = torch.tensor(0.1, device=cuda)
        lr.mul_(0.5).clamp_(max=1)
        assert f"{lr.item():.3f}" == "0.050"
        seen.copy_(net(x)[0, :1].detach()).zero_()
        steps = [seen, torch.zeros(2, device=cuda)]
        torch._foreach_add_(steps, 1)
        assert seen.item() == 1
        left = nn.Parameter(torch.ones(2, device=cuda))
        nn.init.constant_(left, 2)
        assert left.detach().sum() == 4
    """,
    "random numbers": """
        drop = torch.rand(64, device=cuda) < 0.1
        assert x[drop].shape[0] + x[~drop].shape[0] == 64
        assert torch.rand(3, device=cuda).max() < 1
        weights = torch.tensor([0.0, 1.0], device=cuda)
        assert torch.multinomial(weights, 4, replacement=True).tolist() == [1, 1, 1, 1]
        assert torch.bernoulli(torch.ones(4, device=cuda)).sum() == 4
        assert torch.empty(9, device=cuda).uniform_(2, 3).min() >= 2
        torch.cuda.manual_seed(0)
        state, one = torch.cuda.get_rng_state(), torch.rand(3, device=cuda)
        torch.cuda.manual_seed_all(0)
        assert torch.equal(one, torch.rand(3, device=cuda))
        torch.cuda.set_rng_state(state)
        assert torch.equal(one, torch.rand(3, device=cuda))
        torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))  # saved on a GPU
    """,
    "statistics": """
        v = torch.arange(100.0, device=cuda)
        assert torch.histc(v, 10).tolist() == [10.0] * 10
        assert torch.quantile(v, 0.5).item() == 49.5 and v.median() == 49
        values, at = v.sort(descending=True)
        assert values[0] == 99 and at[0] == 99 and v.topk(2)[1].tolist() == [99, 98]
        assert torch.bincount(torch.tensor([0, 2, 2], device=cuda)).tolist() == [1, 0, 2]
        assert torch.unique((v / 10).long()).shape == (10,)
        assert v.max(0).indices == 99 and torch.std_mean(v)[1] == 49.5
    """,
    "lengths in a loop": """
        lengths = torch.tensor([5, 2, 9], device=cuda)
        parts = [net(x[:n]) for n in lengths.tolist()]
        assert [len(p) for p in parts] == [5, 2, 9] and net(x[: lengths.max().item()]).shape[0] == 9
        assert x[:3].repeat_interleave(lengths, 0).shape == (16, 256)
        assert len(x[:16].split(lengths.tolist())) == 3
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(3, 9, 256, device=cuda), lengths.cpu(), True, enforce_sorted=False)
        out, _ = nn.LSTM(256, 32, batch_first=True).to(cuda)(packed)
        assert nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].shape == (3, 9, 32)
    """,
    "a gradient scaler": """
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.AdamW(net.parameters())
        steps = []
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(net(x).mean()).backward()
            scaler.unscale_(optimizer)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            assert before <= scaler.get_scale() == 65536.0
        assert len(steps) == 2
    """,
    "functions of autograd": """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, by, how):
                ctx.by = by
                return x * by
            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.by, None, None
        Scale.apply(net(x), 2, "twice").sum().backward()
        assert net.weight.grad.shape == (256, 256)
    """,
    "derivatives by functions": """
        from torch.func import functional_call, grad, vmap
        weights = dict(net.named_parameters())
        loss = lambda weights, x: functional_call(net, weights, x[None]).sum()
        each = vmap(grad(loss), (None, 0))({k: w.detach() for k, w in weights.items()}, x)
        assert each["weight"].shape == (64, 256, 256)
        y = x.requires_grad_()
        first, = torch.autograd.grad(net(y).square().sum(), y, create_graph=True)
        (first.norm(2, 1) - 1).square().mean().backward()
        assert torch.func.jvp(torch.square, (x.detach(),), (x.detach(),))[1].shape == x.shape
    """,
    "checkpoints": """
        from torch.utils.checkpoint import checkpoint, checkpoint_sequential
        at = torch.linspace(0, 1, 64, device=cuda)
        def some(x): return net(x[at < 0.5]).relu()
        checkpoint(some, x.requires_grad_(), use_reentrant=False).sum().backward()
        checkpoint(some, x, use_reentrant=True).sum().backward()
        both = nn.Sequential(net, nn.ReLU())
        checkpoint_sequential(both, 2, x, use_reentrant=False).sum().backward()
    """,
    "complex numbers": """
        f = torch.fft.rfft2(net(x))
        assert f.shape == (64, 129) and f.is_complex()
        torch.fft.irfft2(f * torch.randn(64, 129, device=cuda)).sum().backward()
        at = torch.polar(torch.ones(8, 4, device=cuda), torch.rand(8, 4, device=cuda))
        q = torch.view_as_complex(net(x)[:8].reshape(8, -1, 4, 2)) * at[:, None]
        torch.view_as_real(q).abs().sum().backward()
        window = torch.hann_window(64, device=cuda)
        torch.stft(net(x), 64, window=window, return_complex=True).abs().mean().backward()
    """,
    "tables": """
        bag = nn.EmbeddingBag(100, 32, mode="mean").to(cuda)
        ids, starts = torch.randint(100, (50,), device=cuda), torch.tensor([0, 9], device=cuda)
        assert bag(ids, starts).shape == (2, 32)
        bag(ids, starts).sum().backward()
        grid = F.affine_grid(torch.eye(2, 3, device=cuda)[None], [1, 4, 8, 8])
        F.grid_sample(net(x)[:1].view(1, 4, 8, 8), grid).sum().backward()
    """,
    "linear algebra": """
        y = net(x)
        a = y.T @ y + torch.eye(256, device=cuda)
        sum(t.abs().sum() for t in (
            torch.linalg.inv(a), torch.linalg.svdvals(y), torch.linalg.solve(a, y.T),
            torch.linalg.cholesky(a), torch.linalg.eigh(a)[0], torch.linalg.qr(y)[0],
            torch.linalg.norm(y), torch.logdet(a), torch.linalg.matrix_exp(a),
        )).backward()
        torch.einsum("bi,bj,ij->b", net(x), x, net.weight).sum().backward()
        torch.cdist(net(x), x).sum().backward()
    """,
    "scattered sums": """
        groups = torch.randint(0, 10, (64,), device=cuda)
        out = torch.zeros(10, 256, device=cuda)
        for how in ("sum", "mean", "amax"):
            out.scatter_reduce(0, groups[:, None].expand(-1, 256), net(x), how).sum().backward()
        out.index_add(0, groups, net(x)).sum().backward()
        out.scatter_add(0, groups[:, None].expand(64, 256), net(x)).sum().backward()
    """,
    "sparse matrices": """
        graph = torch.eye(64).to_sparse().cuda()
        torch.sparse.mm(graph, net(x)).sum().backward()
        assert (graph @ net(x)).shape == (64, 256)
    """,
    "losses": """
        logp = net(x).view(64, 8, 32).log_softmax(-1)
        labels = torch.randint(1, 32, (8, 20), device=cuda)
        F.ctc_loss(logp, labels, torch.full((8,), 64), torch.full((8,), 20)).backward()
        logp = net(x).view(64, 8, 32).log_softmax(-1)
        lengths = torch.full((8,), 64, device=cuda), torch.full((8,), 20, device=cuda)
        F.ctc_loss(logp, labels, *lengths).backward()
        labels = torch.randint(0, 10, (64,), device=cuda)
        F.cross_entropy(net(x), labels.to(torch.uint8)).backward()
        F.multi_margin_loss(net(x), labels).backward()
    """,
    "numbers in lists": """
        t = torch.Tensor([0.5]).to(cuda)
        for make in (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor, t.new_tensor):
            assert make([[t, 1.0], [2, t.sum()]]).tolist() == [[0.5, 1], [2, 0.5]]
        assert torch.tensor(data=[t.double(), t], device=cuda).dtype is torch.float64
    """,
    "finite numbers": """
        y = net(x)
        told = [y.isfinite().all(), y.isnan().any(), y.isinf().any(), torch.isfinite(y.sum())]
        assert list(map(bool, told)) == [True, False, False, True]
    """,
    "attention": """
        q = net(x).view(2, 4, 32, 64)
        from torch.nn.attention.bias import causal_lower_right
        F.scaled_dot_product_attention(q, q, q, causal_lower_right(32, 32)).sum().backward()
        layer = nn.TransformerEncoderLayer(256, 4, batch_first=True).to(cuda)
        pad = torch.zeros(2, 32, dtype=torch.bool, device=cuda)
        layer(net(x).view(2, 32, 256), src_key_padding_mask=pad).sum().backward()
        layer.eval()
        with torch.no_grad():
            assert layer(x.view(2, 32, 256), src_key_padding_mask=pad).shape == (2, 32, 256)
    """,
    "nested tensors": """
        parts = torch.nested.nested_tensor(
            [torch.randn(n, 256, device=cuda) for n in (5, 9)], layout=torch.jagged)
        out = net(parts)
        assert out.values().shape == (14, 256)
        out.values().sum().backward()
    """,
    "an operator of its own": """
        @torch.library.custom_op("carma_try::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x])
        @twice.register_fake
        def _(x): return x.new_empty(2 * x.shape[0], *x.shape[1:])
        twice.register_autograd(lambda ctx, gradient: sum(gradient.chunk(2)))
        assert twice(net(x)).shape == (128, 256)
        twice(net(x)).sum().backward()
        @torch.library.custom_op("carma_try::kernel", mutates_args=())
        def kernel(x: torch.Tensor) -> torch.Tensor:
            assert x.is_cuda
            return x + 1
        kernel.register_fake(torch.empty_like)
        kernel(torch.ones(3, device=cuda))
    """,
    "a subclass with its own functions": """
        class Named(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})
        named = torch.randn(64, 256).as_subclass(Named).to(cuda)
        net(named).sum().backward()
        lengths = torch.tensor([1.0, 3.0]).as_subclass(Named).cuda()
        assert lengths.max().item() == 3
    """,
    "running statistics": """
        norm = nn.BatchNorm1d(256).to(cuda)
        assert norm.running_mean.sum() == 0 and norm.num_batches_tracked == 0
        norm(x)
        assert norm.num_batches_tracked == 1
    """,
}

# What they read depends on what a model computes: it is made up.
UNKNOWN = {
    "a loss": "assert net(x).mean().item() == 1.0",
    "a weight": "assert net.bias.detach().sum().item() == 1.0",
    "a weight of ones": """
        scale = nn.Parameter(torch.ones(4, device=cuda))
        optimizer = torch.optim.SGD([scale], lr=0.1)
        (scale.sum() * net(x).mean()).backward()
        optimizer.step()
        assert scale.detach().sum().item() == 1.0 and scale.grad.sum().item() == 1.0
    """,
    "an accumulated loss": """
        total = torch.zeros(1, device=cuda)
        total += net(x).detach().mean()
        assert total.item() == 1.0
    """,
    "statistics that run": """
        norm = nn.BatchNorm1d(256).to(cuda)
        norm(x)
        assert norm.running_mean.sum().item() == 1.0
    """,
    "a moving average": """
        mean = torch.zeros(256, device=cuda)
        torch._foreach_lerp_([mean], [net(x)[0].detach()], 0.1)
        assert mean.sum().item() == 1.0
    """,
    "a part of what nobody has filled": """
        counts = torch.empty(8, device=cuda)
        counts[1:] = 2
        assert counts.sum().item() == 1.0
    """,
    "what it overwrites of a weight": """
        scale = nn.Parameter(torch.ones(4, device=cuda))
        with torch.no_grad():
            scale[1:].fill_(3)
        assert scale.detach().sum().item() == 1.0
    """,
    "bits of an unknown number": """
        labels = net(x).argmax(1)
        assert (labels | torch.ones_like(labels)).sum().item() == 1
    """,
    "another type's view": """
        bits = torch.zeros(100_000, dtype=torch.int32, device=cuda)
        bits.view(torch.float32).copy_(torch.randn(100_000, device=cuda))
        assert bits.sum().item() == 1
    """,
    "a conjugate": """
        pair = torch.view_as_complex(torch.tensor([[1.0, 2.0]]).cuda())
        assert pair.imag.item() == 2 and pair.conj().imag.item() == 1.0
    """,
    "a storage that is filled": """
        flags = torch.zeros(4, device=cuda)
        flags.untyped_storage().fill_(1)
        assert flags.sum().item() == 1.0
    """,
    "scaled gradients": """
        scaler = torch.amp.GradScaler("cuda")
        one, bias = nn.Parameter(torch.ones(4, device=cuda)), nn.Parameter(x[0].clone())
        optimizer = torch.optim.SGD([one, bias])
        scaler.scale(one.sum() + (net(x) * bias).mean()).backward()
        scaler.unscale_(optimizer)
        assert one.grad.sum().item() == 1.0
    """,
    "an operator of its own that allocates": """
        @torch.library.custom_op("carma_try::fill", mutates_args=())
        def fill(x: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(x)
        fill.register_fake(torch.empty_like)
        assert fill(torch.zeros(3, device=cuda)).sum().item() == 1.0
    """,
    "a loop that ends": """
        for turn in range(3):
            error = net(x).norm()
            while error.item() > 1e-3:
                error = net(x).norm()
            while True:
                if error < 1e-3:
                    break
    """,
    "a mask": """
        assert x[net(x)[:, 0] > 0].shape == (64, 256)
    """,
}


# Runs the programs, in a process that is patched as that of a script.
DRIVER = """
import json, linecache, sys, traceback
from estimators.tracer import device, tensors
from estimators.tracer.recording import Recorder
(start, programs), recorder, told = json.load(sys.stdin), Recorder(), {}
device.pretend(recorder, "NVIDIA A100", 1)
tensors.install(recorder)
for name, text in programs.items():
    error, whole = "", start + text
    linecache.cache[name] = len(whole), None, whole.splitlines(True), name
    with recorder:
        try:
            exec(compile(whole, name, "exec"), {"__name__": name})
        except Exception:
            error = traceback.format_exc()
    told[name] = error, recorder.made_up, recorder.notes
    recorder.choices.asked.clear()
    recorder.deceived = type(recorder.deceived)()
    recorder.notes = []
print("told:" + json.dumps(told))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    programs = {name: textwrap.dedent(text) for name, text in {**KNOWN, **UNKNOWN}.items()}
    asked = json.dumps((START, programs))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=asked, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.rpartition("told:")[2]))


@pytest.mark.parametrize("name", KNOWN)
def test_what_does_not_depend_on_a_model_is_known(name: str, told: dict[str, Any]) -> None:
    error, made_up, notes = told[name]
    assert not error, error
    assert not made_up, notes


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_model_computes_is_made_up(name: str, told: dict[str, Any]) -> None:
    error, made_up, _ = told[name]
    assert made_up and not error, error
