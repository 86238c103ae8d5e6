"""Unmodified scripts, traced in a process each.

The shapes of popular training scripts are in `scripts/`. Each is traced, or refused with a reason;
so are scripts that mean no good. Most are forked from a process that has imported torch; those of
`cold` tests start as the daemon would start them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from carma_testing import a_spec
from carmad.config import Collocation, Estimation, Settings
from carmad.plugin import Refusal
from estimators.look import look
from estimators.tracer.report import Report, loads
from tests.here import Here
from tests.warm_tracer import Tracers

SCRIPTS = Path(__file__).parents[2] / "scripts"
PATIENT = Estimation(within_s=120.0)  # these machines may be busy
MIB = 2**20
TRACERS = Tracers()  # they end with this process
_tracers: Tracers | None = TRACERS


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An empty working directory."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start everything as the daemon would."""
    monkeypatch.setitem(globals(), "_tracers", None)


def looked(
    job: Path,
    *words: str,
    estimation: Estimation = PATIENT,
    explain: bool = False,
    mps: bool = False,
    **fields: object,
) -> object:
    fields = {"argv": (sys.executable, *words), "cwd": str(job), **fields}
    here = Here(job.parent / "answer", tracers=_tracers)
    here.explain = explain
    settings = Settings(estimation=estimation, collocation=Collocation(mps=mps))
    return look(a_spec(**fields), settings, here)


def report(job: Path, *words: str, **fields: object) -> Report:
    answer = looked(job, *words, **fields)
    assert isinstance(answer, Report), answer
    assert not any(job.iterdir()), "it left something behind"
    return answer


def refusal(job: Path, *words: str, **fields: object) -> str:
    answer = looked(job, *words, **fields)
    assert isinstance(answer, Refusal), answer
    return answer.why


def written(job: Path, text: str) -> str:
    """A script beside the job's directory, which stays empty."""
    script = job.parent / "script.py"
    script.write_text(textwrap.dedent(text))
    return str(script)


MLP = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.randn(64, 1024, device="cuda")).mean().backward()
        optimizer.step()
"""
PARAMETERS = 4 * (2 * 1024 * 4096 + 4096 + 1024)  # bytes


def loop(text: str) -> str:
    return textwrap.dedent(MLP) + textwrap.dedent(text)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}")


@pytest.mark.parametrize(
    ("words", "batch", "kinds"),
    [
        pytest.param(
            ["image_training.py", "--amp", "--channels-last", "--model-ema"],
            64,
            {"Conv2d", "BatchNorm2d", "SiLU", "Linear"},
            id="timm",
        ),
        pytest.param(["classification.py"], 32, {"Conv2d", "MaxPool2d"}, id="torchvision"),
        pytest.param(
            ["gpt.py", "--eval_iters=50", "--gradient_accumulation_steps=10"],
            4,
            {"Embedding", "GELU", "LayerNorm"},
            id="nanogpt",
        ),
        pytest.param(["detection.py"], 16, {"Upsample", "Conv2d"}, id="yolo"),
        pytest.param(["gan.py"], 32, {"ConvTranspose2d", "LeakyReLU"}, id="gan"),
        pytest.param(["ppo.py"], 8, {"Linear", "Tanh"}, id="rl"),
        pytest.param(["dlrm.py", "--dense"], 128, {"EmbeddingBag", "Linear"}, id="dlrm"),
        pytest.param(["diffusion.py"], 16, {"GroupNorm", "SiLU"}, id="diffusion"),
        pytest.param(
            ["run_glue.py", "--output_dir=out", "--fp16", "--per_device_train_batch_size=16"],
            16,
            {"Embedding", "Linear", "Dropout"},
            id="run_glue",
            marks=(needs("transformers", "accelerate"), pytest.mark.long),
        ),
        pytest.param(
            ["run_clm.py"],
            4,
            {"Embedding", "Conv1D"},
            id="run_clm",
            marks=needs("transformers", "accelerate"),
        ),
        pytest.param(
            ["lightning_module.py"],
            64,
            {"Conv2d", "ReLU"},
            id="lightning",
            marks=needs("lightning"),
        ),
    ],
)
def test_popular_scripts(words: list[str], batch: int, kinds: set[str], job: Path) -> None:
    told = report(job, str(SCRIPTS / words[0]), *words[1:])
    assert told.steps == 2
    assert told.batch == batch
    assert kinds <= {layer.kind for layer in told.layers}
    assert 0 < told.faketensor <= told.floor <= told.reserved
    assert sum(told.parts.values()) == told.reserved
    assert told.parts["parameters"] > 0


@pytest.mark.usefixtures("cold")
def test_the_steps_are_those_of_the_script(job: Path) -> None:
    """The second step holds parameters, gradients, Adam's two moments, and for a while another."""
    told = report(job, written(job, loop("while True: step()")))
    assert (told.steps, told.batch) == (2, 64)
    assert 4 * PARAMETERS <= told.floor <= 5.1 * PARAMETERS


def test_a_sparse_matrix_is_moved_and_multiplied(job: Path) -> None:
    text = """
        at = torch.randint(0, 1000, (2, 5_000_000))
        graph = torch.sparse_coo_tensor(at, torch.ones(5_000_000), (1000, 1024)).cuda()
        for _ in range(2):
            model(torch.spmm(graph, torch.randn(1024, 1024, device="cuda"))).sum().backward()
            optimizer.step()
        """
    assert report(job, written(job, loop(text))).reserved > 5_000_000 * (2 * 8 + 4)


def test_the_default_tensor_type_is_that_of_new_tensors(job: Path) -> None:
    text = """
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        far = torch.Tensor([1e10]).expand(64, 1)
        assert far.is_cuda and torch.Tensor(2, 3).shape == (2, 3)
        for _ in range(2):
            model(torch.cat([far, torch.randn(64, 1023)], -1)).sum().backward()
            optimizer.step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_sparse_gradients_are_as_large_as_what_was_looked_up(job: Path) -> None:
    text = """
        import torch
        table = torch.nn.Embedding(100_000, 64, sparse={}).cuda()
        optimizer = torch.optim.{}(table.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            table(torch.randint(0, 100_000, (256,), device="cuda")).mean().backward()
            optimizer.step()
        """
    table = 4 * 100_000 * 64
    assert report(job, written(job, text.format(False, "SGD"))).floor >= 2 * table
    assert table <= report(job, written(job, text.format(True, "SGD"))).floor < 1.1 * table
    adam = report(job, written(job, text.format(True, "SparseAdam")))
    assert 3 * table <= adam.floor < 3.1 * table


def test_a_module_and_a_command(job: Path) -> None:
    (job.parent / "training.py").write_text(loop("while True: step()"))
    by_name = report(job, "-m", "training", env=(("PYTHONPATH", str(job.parent)),))
    by_text = report(job, "-c", loop("while True: step()"))
    assert by_name.reserved == by_text.reserved


def test_ddp_holds_its_gradients_twice(job: Path) -> None:
    text = """
        import os, sys
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (0, 4) and len(sys.argv) == 2
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        model = DDP(model, device_ids=[0])
        seen = torch.zeros(1, device="cuda")
        dist.all_reduce(seen)
        dist.all_gather([torch.zeros_like(seen) for _ in range(4)], seen)
        dist.barrier()
        while True: step()
        """
    script = written(job, loop(text))
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "4", script, "x")
    several = report(job, *launcher, gpus=4)
    assert any("NCCL" in note for note in several.notes)
    assert 5 * PARAMETERS <= several.floor <= 6.1 * PARAMETERS


def test_data_parallel_shares_the_batch_and_gathers_the_outputs(job: Path) -> None:
    """Of 4,096 samples on the host the first of four GPUs gets 1,024, and all outputs."""
    text = """
        model = nn.DataParallel(model)
        while True:
            optimizer.zero_grad()
            out = model(torch.randn(4096, 1024))
            assert out.shape == (4096, 1024) and out.is_cuda
            out.mean().backward()
            optimizer.step()
        """
    one = report(job, written(job, loop(text)))
    four = report(job, written(job, loop(text)), gpus=4)
    hidden, out = 4 * 4096 * 4096, 4 * 4096 * 1024
    assert one.floor - four.floor >= hidden * 3 / 4
    assert four.floor >= 4 * PARAMETERS + out
    assert any("DataParallel over 4 GPUs" in note for note in four.notes)


def test_fsdp_holds_a_share_and_frees_what_it_gathers(job: Path) -> None:
    text = """
        import torch
        from torch import nn
        import torch.distributed as dist
        from torch.distributed.fsdp import {0}
        dist.init_process_group("nccl", rank=0, world_size=4)
        blocks = [nn.Linear(2048, 2048, bias=False) for _ in range(8)]
        {1}
        optimizer = torch.optim.Adam(model.parameters())
        while True:
            optimizer.zero_grad()
            model(torch.randn(4, 2048, device="cuda")).mean().backward()
            optimizer.step()
        """
    ways = {
        "fully_shard": "model = nn.Sequential(*blocks).cuda(); "
        "[fully_shard(block) for block in blocks]; fully_shard(model)",
        "FullyShardedDataParallel as FSDP": "model = FSDP(nn.Sequential(*map(FSDP, "
        "(block.cuda() for block in blocks))))",
    }
    block = 4 * 2048 * 2048
    for name, wrapped in ways.items():
        told = report(job, written(job, text.format(name, wrapped)), gpus=4)
        assert 4 * 8 * block / 4 <= told.floor < 4 * 8 * block / 4 + 6 * block, name


def test_parameters_that_are_moved_by_their_data_stay_themselves(job: Path) -> None:
    text = """
        import torch
        model = torch.nn.Linear(1024, 1024)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.data = parameter.data.cuda()
        assert isinstance(model.weight, torch.nn.Parameter) and model.weight.is_cuda
        while True:
            model(torch.randn(8, 1024).cuda()).sum().backward()
            optimizer.step()
        """
    assert report(job, written(job, text)).parts["parameters"] == 4 * (1024 * 1024 + 1024)


@pytest.mark.parametrize("error", ["torch.cuda.OutOfMemoryError", "RuntimeError"])
def test_a_search_for_the_largest_batch_finds_it(error: str, job: Path) -> None:
    text = f"""
        tried, batch = [], 1 << 12
        while True:
            try:
                model(torch.randn(batch, 1024, device="cuda")).mean().backward()
                tried.append(batch)
                batch *= 2
            except {error} as caught:
                assert "out of memory" in str(caught)
                break
        assert len(tried) > 4 and torch.cuda.max_memory_allocated() > 10 << 30
        while True: step()
        """
    told = report(job, written(job, loop(text)))
    assert (20 << 30) < told.floor <= told.reserved <= 40 << 30
    assert sum(told.parts.values()) == told.reserved
    assert any("until the GPU is full" in note for note in told.notes)


def test_a_script_that_needs_more_than_the_gpu_has_is_told_how_much(job: Path) -> None:
    text = """
        while True:
            try:
                model(torch.randn(1 << 22, 1024, device="cuda")).mean().backward()
                optimizer.step()
            except ValueError:
                pass
        """
    assert report(job, written(job, loop(text))).floor > 60 << 30


def test_what_was_set_on_a_parameter_moves_with_it(job: Path) -> None:
    text = """
        import torch, weakref
        model = torch.nn.Linear(1024, 1024)
        model.weight.tag, known, seen = "mine", weakref.ref(model.weight), []
        model.bias.register_post_accumulate_grad_hook(seen.append)
        model.cuda()
        assert known() is model.weight and model.weight.is_cuda and model.weight.tag == "mine"
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            model(torch.randn(8, 1024).cuda()).sum().backward()
            optimizer.step()
            assert seen.pop() is model.bias
        """
    assert report(job, written(job, text)).steps == 2


def test_inference_is_traced_to_its_end(job: Path) -> None:
    """Its keys and values grow by a token at a time."""
    text = """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda().eval()
        with torch.inference_mode():
            cache = torch.empty(1, 0, 1024, device="cuda")
            for _ in range({}):
                cache = torch.cat([cache, model(torch.randn(1, 1, 1024, device="cuda"))], 1)
        """
    few, many = (report(job, written(job, text.format(count))) for count in (10, 60))
    assert few.steps == many.steps == 0
    assert any("without an optimizer step" in note for note in many.notes)
    assert 4 * 1024 * 80 <= many.floor - few.floor <= 4 * 1024 * 120


@pytest.mark.long
@pytest.mark.skipif(find_spec("transformers") is None, reason="not installed: transformers")
def test_texts_are_generated_to_their_full_length(job: Path) -> None:
    text = """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        config = GPT2Config(vocab_size=500, n_embd=64, n_layer=1, n_head=2, n_positions=64)
        model = GPT2LMHeadModel(config).cuda().eval()
        calls = []
        model.register_forward_hook(lambda *_: calls.append(1))
        for how in ({}, {"num_beams": 3}):
            model.generate(torch.randint(0, 500, (2, 16)).cuda(), max_new_tokens=12, **how)
            assert len(calls) == 12, (how, len(calls))
            calls.clear()
        """
    assert report(job, written(job, text)).steps == 0


def test_a_ctc_loss(job: Path) -> None:
    """It keeps a probability for each step, label and blank."""
    text = """
        import torch
        model = torch.nn.Linear(64, 32).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            logp = model(torch.randn(500, 16, 64, device="cuda")).log_softmax(-1)
            labels = torch.randint(1, 32, (16, {0}))
            lengths = torch.full((16,), 500), torch.full((16,), {0})
            torch.nn.functional.ctc_loss(logp, labels, *lengths).backward()
            optimizer.step()
        """
    few, many = (report(job, written(job, text.format(count))).floor for count in (20, 200))
    assert many - few >= 2 * (4 * 500 * 16 * 2 * 180)


@pytest.mark.parametrize(("kind", "each"), [("GRU", 1 + 5), ("LSTM", 2 + 4)])
def test_single_recurrent_cells(kind: str, each: int, job: Path) -> None:
    """For each step, a state and what its gates were are kept."""
    text = f"""
        import torch
        cell = torch.nn.{kind}Cell(64, 256).cuda()
        optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
        for _ in range(2):
            state = None
            for _ in range(COUNT):
                state = cell(torch.randn(128, 64, device="cuda"), state)
            optimizer.zero_grad()
            (state[0] if isinstance(state, tuple) else state).sum().backward()
            optimizer.step()
        """
    few, many = (
        report(job, written(job, text.replace("COUNT", str(count)))).floor for count in (10, 60)
    )
    assert many - few >= 50 * each * 4 * 128 * 256


def test_a_notebook(job: Path) -> None:
    cells = [
        ("markdown", "# training"),
        ("code", "%matplotlib inline\n!pip install torch\nfiles = !ls"),
        ("code", ["%%time\n", textwrap.dedent(MLP)]),
        ("code", "%%bash\nrm -rf everything"),
        ("code", "get_ipython().system('ls')\ndisplay(model)\nfor _ in range(9):\n    step()"),
    ]
    notebook = job.parent / "n.ipynb"
    found = [{"cell_type": kind, "source": source} for kind, source in cells]
    notebook.write_text(json.dumps({"cells": found, "nbformat": 4}))
    assert report(job, str(notebook)).steps == 2
    found[-1]["source"] = "step()\nstep(1)"
    notebook.write_text(json.dumps({"cells": found, "nbformat": 4}))
    assert "n.ipynb, cell 5:2: TypeError" in refusal(job, str(notebook))


def test_what_would_be_downloaded_says_what_to_do(job: Path) -> None:
    text = "import urllib.request as r\nr.urlopen('http://127.0.0.1:9/model')"
    assert "a trace has no network" in refusal(job, written(job, text))
    missing = "import bitsandbytes_that_is_not_there"
    assert "No module named 'bitsandbytes_that_is_not_there'" in refusal(job, written(job, missing))


def test_two_optimizers_each_step_twice(job: Path) -> None:
    """The second one's first step comes after the first one's third."""
    text = """
        other = nn.Linear(4096, 4096).cuda()
        another = torch.optim.Adam(other.parameters())
        while True:
            step(), step(), step()
            another.zero_grad()
            other(torch.randn(64, 4096, device="cuda")).mean().backward()
            another.step()
        """
    told = report(job, written(job, loop(text)))
    assert told.steps == 2
    assert told.floor >= 4 * PARAMETERS + 4 * 4 * 4096 * 4096


def test_a_step_that_accumulates_is_one_step(job: Path) -> None:
    """Passes after the third of a step change nothing and are left out."""
    text = """
        while True:
            optimizer.zero_grad()
            for i in range({}):
                model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
        """
    few = report(job, written(job, loop(text.format(3))))
    many = report(job, written(job, loop(text.format(200))))
    assert (few.floor, few.reserved) == (many.floor, many.reserved)
    assert any("repeat" in note for note in many.notes)
    assert not any("repeat" in note for note in few.notes)


def test_a_model_moves_and_stays_itself(job: Path) -> None:
    text = """
        import copy, torch
        from torch import nn
        first, second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)
        second.weight = first.weight
        model = nn.Sequential(first, second)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.cuda()
        assert second.weight is first.weight is optimizer.param_groups[0]["params"][0]
        assert len(list(model.parameters())) == 3 and first.weight.is_cuda
        half = copy.deepcopy(model).half().to(memory_format=torch.channels_last)
        assert half[0].weight.dtype is torch.float16 and isinstance(half[0].weight, nn.Parameter)
        assert not model.cpu()[0].weight.is_cuda
        model.to("cuda:0")
        while True:
            model(torch.randn(8, 1024).to("cuda")).sum().backward()
            optimizer.step()
        """
    told = report(job, written(job, text))
    assert told.parts["parameters"] == 4 * (1024 * 1024 + 2 * 1024)


def test_torch_has_a_gpu(job: Path) -> None:
    text = """
        import io
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (8, 0)
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.total_memory) == ("NVIDIA A100-SXM4-40GB", 40 << 30)
        free, total = torch.cuda.mem_get_info()
        assert 0 < free < total == 40 << 30
        before = torch.cuda.memory_allocated()
        torch.empty(1 << 20, device="cuda")
        assert 0 < before == torch.cuda.memory_allocated() < torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == before
        stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream), torch.cuda.device(0):
            event.record()
            stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.synchronize()
        random = torch.Generator("cuda").manual_seed(3)
        assert torch.randn(4, generator=random, device="cuda").is_cuda
        assert torch.ones(3).type(torch.cuda.HalfTensor).dtype is torch.float16
        assert torch.ones(3).pin_memory().cuda(non_blocking=True).is_cuda
        with torch.inference_mode():
            assert model(torch.randn(2, 1024, device="cuda")).sum().item() == 1.0
        model = torch.compile(model)
        from torch._dynamo.eval_frame import OptimizedModule
        assert torch._dynamo.eval_frame.OptimizedModule is OptimizedModule
        assert not isinstance(model, OptimizedModule) and torch._dynamo.config.cache_size_limit > 1
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        torch.save(model.state_dict(), "checkpoint.pt")
        torch.jit.script(nn.Linear(4, 8).cuda()).save("scripted.pt", _extra_files={"a": "b"})
        assert torch.jit.load("scripted.pt")(torch.ones(2, 4, device="cuda")).shape == (2, 8)
        padded = torch.randn(3, 5, 16, device="cuda", requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([5, 3, 1]), True)
        assert packed.data.shape == (9, 16)
        out, _ = nn.LSTM(16, 16).cuda()(packed)
        assert nn.utils.rnn.pad_packed_sequence(out, True)[0].shape == (3, 5, 16)
        while True: step()
        """
    notes = report(job, written(job, loop(text))).notes
    assert any("torch.compile" in note for note in notes)
    assert any("checkpoints" in note for note in notes)


@pytest.mark.long
def test_torchs_compiler_is_imported_once(job: Path) -> None:
    """As Lightning and others do: from-imports, while the stub is in place."""
    text = """
        import torch._dynamo
        torch._dynamo.config.suppress_errors = True
        from torch._dynamo import OptimizedModule
        from torch._dynamo import OptimizedModule as again, config
        assert again is OptimizedModule is torch._dynamo.OptimizedModule
        assert config is torch._dynamo.config
        torch._dynamo.reset()
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


@pytest.mark.long
@pytest.mark.usefixtures("cold")
def test_types_of_results_do_not_bring_sympy(job: Path) -> None:
    text = """
        import sys
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        for late in (False, True):
            net(torch.ones(3, 4)).sum().backward()
            assert ("sympy" in sys.modules) == late, late
            import sympy
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as kinds
        from torch._prims_common import elementwise_dtypes
        size = sympy.Symbol("size", integer=True)
        promoted = elementwise_dtypes(size, type_promotion_kind=kinds.INT_TO_FLOAT)
        assert promoted == (torch.float32, torch.float32), promoted
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_torchvision_does_not_bring_torchs_compiler(job: Path) -> None:
    text = """
        import sys
        import torch._dynamo.utils
        from torch._dynamo.utils import is_compile_supported
        assert not is_compile_supported("cuda") and "torch._dynamo.eval_frame" not in sys.modules
        from torch._dynamo.utils import counters
        assert counters is sys.modules["torch._dynamo.utils"].counters
        assert "torch._dynamo.eval_frame" in sys.modules
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_a_checkpoint_that_is_loaded_takes_memory(job: Path) -> None:
    import torch

    file = job.parent / "checkpoint.pt"
    torch.save({"epoch": 3, "weights": [torch.zeros(8 * MIB // 4)]}, file)
    text = f"kept = torch.load({str(file)!r}, map_location='%s')\nwhile True: step()"
    on_host = report(job, written(job, loop(text % "cpu")))
    on_gpu = report(job, written(job, loop(text % "cuda:0")))
    assert on_gpu.floor - on_host.floor == 8 * MIB


def test_data_is_read_in_one_process_and_a_little(job: Path) -> None:
    text = """
        import os
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            read = 0
            def __len__(self):
                return 100_000
            def __getitem__(self, index):
                Data.read += 1
                assert Data.read <= 8, "that is too many"
                return {"x": torch.full((1024,), float(index))}
        loader = DataLoader(Data(), 64, True, num_workers=4, pin_memory=True, prefetch_factor=2)
        pid = os.getpid()
        for batch in loader:
            assert batch["x"].shape == (64, 1024) and len(loader.dataset) == 100_000
            optimizer.zero_grad()
            model(batch["x"].cuda()).mean().backward()
            optimizer.step()
        """
    assert report(job, written(job, loop(text))).batch == 64


def test_passes_whose_gradients_are_awaited_are_not_left_out(job: Path) -> None:
    """The optimizer steps in the backward pass; DeepSpeed gathers gradients there."""
    text = """
        passes = []
        model[0].bias.register_post_accumulate_grad_hook(lambda _: passes.append(1))
        while True:
            for _ in range(8):
                model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
            assert len(passes) % 8 == 0
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_one_step_is_better_than_none(job: Path) -> None:
    told = report(job, written(job, loop("step()")))
    assert told.steps == 1
    assert any("after one optimizer step" in note for note in told.notes)


def test_a_script_cannot_talk_the_tracer_out_of_its_answer(job: Path) -> None:
    """It closes the answer's descriptor, prints without end and catches whatever comes."""
    text = """
        import os
        os.closerange(3, 100)
        for i in range(400): print("x" * 50_000)
        while True:
            try:
                step()
            except BaseException:
                pass
            finally:
                torch.save(model.state_dict(), "checkpoint.pt")
        """
    assert report(job, written(job, loop(text))).steps == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("print('hello')", "put nothing on a GPU"),
        ("import sys\nsys.exit(3)", "exit status 3"),
        ("input()", "EOFError"),
        ("open('/data/imagenet/train.txt')", "script.py:1: FileNotFoundError"),
        ("import os\nos._exit(7)", "status 7"),
        ("import os\nos.kill(os.getpid(), 9)", "SIGKILL"),
        ("bytearray(1 << 40)", "host memory"),
        ("import urllib.request as r\nr.urlopen('http://127.0.0.1:9')", "Network is unreachable"),
    ],
)
def test_scripts_that_cannot_be_traced(text: str, why: str, job: Path) -> None:
    assert why in refusal(job, written(job, text))
    assert not any(job.iterdir())


@pytest.mark.parametrize(
    ("text", "crash"),
    [
        (
            "model(torch.randn(8, 1000, device='cuda'))",
            ":11: RuntimeError: a and b must have same reduction dim, but got [8, 1000] X",
        ),
        (
            "model(torch.randn(8, 1024))",
            ":11: RuntimeError: Expected all tensors to be on the same",
        ),
        ("open('data.csv')", ":11: FileNotFoundError: [Errno 2] No such file"),
        ("import no_such_package", ":11: ModuleNotFoundError: No module named 'no_such_package'"),
        ("step(1)", ":11: TypeError: step() takes 0 positional arguments"),
    ],
)
def test_the_scripts_own_crash(text: str, crash: str, job: Path) -> None:
    script = written(job, loop(text))
    answer = looked(job, script)
    assert isinstance(answer, Refusal), answer
    assert answer.crash.startswith(f"at {script}{crash}")
    assert answer.why == f"the script stops {answer.crash}"


@pytest.mark.parametrize(
    "text",
    [
        "assert model(torch.randn(8, 1024, device='cuda')).sum().item() > 1e9",
        "torch.randn(8000, device='cuda').cpu()\nraise ValueError('it depends')",
        "x = torch.ones(8000, device='cuda')\nx[x > 0].view(2, 2)",
        "import urllib.request as r\nr.urlopen('http://127.0.0.1:9')",
    ],
)
def test_what_a_gpu_or_a_network_might_have_prevented_is_no_crash(text: str, job: Path) -> None:
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal) and answer.why
    assert answer.crash == ""


def test_a_misspelt_method_of_a_tensor(job: Path) -> None:
    text = "loss = model(torch.randn(8, 1024, device='cuda')).mean()\nloss.item()\nloss.bakward()"
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal)
    assert answer.crash.endswith(":13: AttributeError: 'Tensor' object has no attribute 'bakward'")


def test_a_value_may_be_formatted(job: Path) -> None:
    text = """
        while True:
            loss = model(torch.randn(8, 1024, device="cuda")).mean()
            loss.backward()
            optimizer.step()
            print(f"{loss:.3f} {loss} {loss.detach():>10.4e}", "{:.1f}".format(loss))
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_the_crash_comes_before_what_a_framework_cleans_up(job: Path) -> None:
    """Lightning moves the model to the CPU after an error, while its graph exists."""
    text = """
        try:
            out = model(torch.randn(8, 1024, device="cuda"))
            model(torch.randn(8, 1000, device="cuda"))
        except RuntimeError:
            model.cpu()
            out.mean().item()
            raise
        """
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal)
    assert ":14: RuntimeError: a and b must have same reduction dim" in answer.crash


OUTSIDE = """
import os, socket, subprocess, multiprocessing as mp
def port():
    try:
        socket.socket().bind(("", 0))
        return 1
    except OSError:
        return None
"""


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("subprocess.call(['touch', 'data.csv'])\nopen('data.csv')", False),
        ("os.system('pip install no_such_x')\nimport no_such_x", False),
        ("assert subprocess.run(['sh', '-c', 'exit 1']).returncode == 0", False),
        ("if port() is not None: raise RuntimeError('a free port')", True),
        ("socket.create_connection(('127.0.0.1', 9))", False),
        ("u = socket.socket(type=socket.SOCK_DGRAM); u.connect(('8.8.8.8', 80))\n[][1]", True),
        ("h = subprocess.run(['git', 'rev-parse', 'HEAD'], capture_output=True)\n[][1]", True),
        ("h = subprocess.getoutput('git describe --always')\n[][1]", True),
        ("h = os.popen('git log -1').read()\n[][1]", True),
        ("subprocess.getoutput('git log -1 > data.csv')\nopen('data.csv')", False),
        ("subprocess.call(['git', 'clone', 'there'])\nopen('there/data.csv')", False),
        ("p = mp.get_context('fork').Process(target=print); p.start(); p.join()\n[][1]", True),
        (
            "p = mp.get_context('fork').Process(target=os.mkdir, args='a')\n"
            "p.start(); p.join()\n[][1]",
            False,
        ),
        ("try: socket.getaddrinfo('no.such.host', 80)\nexcept OSError: pass\n[][1]", False),
        ("p = mp.get_context('spawn').Process(target=print); p.start(); p.join()\n[][1]", True),
        ("a, b = socket.socketpair()\n[][1]", True),
        ("mp.Manager().dict()", False),  # its server's thread waits
        ("import platform, uuid; platform.processor()\n[][1]", True),
        ("os.system('true')\nlsos", True),
    ],
)
def test_what_programs_sockets_and_workers_may_have_caused(
    text: str, is_own: bool, job: Path
) -> None:
    """They do not do here what they do in a job; the script may go on, and fail for that later."""
    answer = looked(job, written(job, loop(OUTSIDE + text)))
    assert isinstance(answer, Refusal)
    assert bool(answer.crash) is is_own and answer.seconds < 60, answer


def test_what_is_left_out_of_the_command_may_be_the_cause(job: Path) -> None:
    (job.parent / "t.py").write_text("import torch\nopen('data.csv')")
    command = f"make data && {shlex.quote(sys.executable)} {job.parent}/t.py"
    answer = looked(job, argv=("/bin/sh", "-c", command))
    assert isinstance(answer, Refusal) and answer.crash == ""
    assert "FileNotFoundError" in answer.why
    assert answer.why.endswith("perhaps because `make` before it was not run")


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("print('loss', loss.item(), 'GPU', torch.cuda.get_device_name(0))", True),
        ("print(f'{loss:.3f}', '%.1f' % loss.item(), loss.item() / steps, sep=' | ')", True),
        ("print(loss.detach().cpu().numpy(), torch.cuda.mem_get_info()[0] / 2**30)", True),
        ("print(\n  f'{loss.item():.3f} '\n  f'{loss.mean().item()}',\n)", True),
        ("print(loss.item())  # the first", True),
        ("print = kept.append\nprint(loss.item())", False),
        ("class Log:\n  info = kept.append\nlogger = Log()\nlogger.info(loss.item())", False),
        ("print(f'{torch.cuda.get_device_properties(0).total_memory / 2**30:.1f} GiB')", True),
        ("if steps:\n    print(round(loss.item(), 3))", True),
        ("log = logging.getLogger('train'); log.info('loss %s', loss.item())", False),
        ("mine = logging.getLogger('train')\nmine.info('loss %s', loss.item())", True),
        ("bar = tqdm([]); \nbar.set_postfix(loss=loss.item())", True),
        ("print(kept.append(loss.item()))", False),
        ("print(names[loss.argmax().item()])", False),
        ("print(1 / loss.item())", False),
        ("print(loss.item(), file=open('log.txt', 'w'))", False),
        ("if loss.item() > 0: print(1)", False),
        ("print(1) if loss.item() > 0 else None", False),
        ("print(1); best = loss.item()", False),
        ("total = loss.item()\nprint(total)", False),
        ("show = print\nshow(loss.item())", False),
    ],
)
def test_what_is_only_printed_decides_nothing(text: str, is_own: bool, job: Path) -> None:
    first = "import logging; from tqdm import tqdm; kept, names, steps = [], {}, 2"
    loss = "loss = model(torch.randn(8, 1024, device='cuda')).mean()"
    answer = looked(job, written(job, loop(f"{first}\n{loss}\n{text}\nraise ValueError('mine')")))
    assert isinstance(answer, Refusal), answer
    assert bool(answer.crash) is is_own, answer


@pytest.mark.parametrize(
    ("text", "gpu", "crash"),
    [
        ("torch.cuda.get_device_capability() >= (9, 0)", "NVIDIA A100-SXM4-40GB", True),
        ("torch.cuda.get_device_capability() >= (9, 0)", "NVIDIA RTX PRO 6000", False),
        ("torch.cuda.get_device_properties(0).total_memory > 1e12", "NVIDIA A100", False),
        ("torch.cuda.mem_get_info()[0] > 1e12", "NVIDIA A100", False),
        ("torch.cuda.device_count() == 2", "NVIDIA A100", True),
        ("torch.cuda.is_bf16_supported() and x.shape == 0", "", True),
        # Whatever it is told, these stop, and not for what they were told:
        ("(torch.cuda.get_device_capability(), open('x.csv'))", "NVIDIA RTX PRO 6000", True),
        ("torch.nn.DataParallel(model) @ torch.cuda.mem_get_info()", "NVIDIA A100", True),
    ],
)
def test_only_what_is_known_of_the_gpu_decides(
    text: str, gpu: str, crash: bool, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Here, "gpu", gpu)
    answer = looked(job, written(job, loop(f"assert {text}")))
    assert isinstance(answer, Refusal) and bool(answer.crash) is crash, answer


def test_the_choice_of_gpus_is_that_of_the_job(job: Path) -> None:
    """CARMA names them by UUID; a script, or its command, may choose for itself."""
    text = """
        import ctypes, os
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        assert getenv(b"CUDA_VISIBLE_DEVICES") == b"", "libraries must find no GPU"
        chosen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(chosen) == torch.cuda.device_count() == 2 and chosen[0] != chosen[1]
        assert chosen == ["0", "1"]
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2"
        assert torch.cuda.device_count() == 3
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        assert not torch.cuda.is_available()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        assert torch.backends.cudnn.version() > 0 and torch.backends.cudnn.is_available()
        while True: step()
        """
    assert report(job, written(job, loop(text)), gpus=2).steps == 2
    number = written(job, loop("int(os.environ['CUDA_VISIBLE_DEVICES'])".join(["import os\n", ""])))
    assert isinstance(looked(job, number), Report), "a job has an index, too"
    answer = looked(job, number, mps=True)
    assert isinstance(answer, Refusal) and "'GPU-0000" in answer.crash, "there it has a UUID"
    env = ("env", "CUDA_VISIBLE_DEVICES=3", sys.executable, number)
    answer = str(looked(job, argv=env))
    assert "CUDA" not in answer and "GPU-" not in answer


def test_ddp_moves_its_inputs(job: Path) -> None:
    text = """
        import os
        import torch.distributed as dist
        dist.init_process_group("nccl")
        assert dist.is_nccl_available() and os.environ["TORCHELASTIC_MAX_RESTARTS"] == "0"
        ddp = nn.parallel.DistributedDataParallel(model, {ids})
        while True:
            optimizer.zero_grad()
            ddp(torch.randn(8, 1024)).mean().backward()
            optimizer.step()
        """
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    script = written(job, loop(text.format(ids="device_ids=[0]")))
    assert report(job, *launcher, script, gpus=2).steps == 2
    script = written(job, loop(text.format(ids="")))
    assert "same device" in refusal(job, *launcher, script, gpus=2)


def test_a_checkpoint_may_be_moved_by_a_function_or_be_a_module(job: Path) -> None:
    import torch

    file = job.parent / "model.pt"
    torch.save(torch.nn.Linear(8, 8), file)
    text = f"""
        for where in (lambda storage, place: storage.cuda(0), "cuda"):
            loaded = torch.load({str(file)!r}, map_location=where, weights_only=False)
            loaded(torch.randn(2, 8, device="cuda"))
        torch.multiprocessing.spawn(print, nprocs=2, join=False).join()
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_a_linked_script_imports_from_where_it_is(job: Path) -> None:
    real = job.parent / "real"
    real.mkdir()
    (real / "beside.py").write_text("")
    (real / "train.py").write_text(loop("import beside\nwhile True: step()"))
    (job.parent / "link.py").symlink_to(real / "train.py")
    assert report(job, str(job.parent / "link.py")).steps == 2


def test_numbers_may_stay_on_the_cpu(job: Path) -> None:
    text = """
        while True:
            optimizer.zero_grad()
            out = model(torch.randn(64, 1024, device="cuda")) * torch.tensor(3.0)
            out.mean().backward()
            optimizer.step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_an_endless_script_says_where_it_was(job: Path) -> None:
    text = "import time\nwhile True:\n    time.sleep(0.01)"
    hurried = Estimation(within_s=2.0)
    why = refusal(job, written(job, text), estimation=hurried)
    assert "no optimizer step" in why and f"{job.parent}/script.py:" in why


@pytest.mark.parametrize(
    ("explained", "note"),
    [
        ("trace._answer.give(trace._answer._ready)", "there was no time to explain it: `carma"),
        ("raise KeyError(7)", "it cannot be explained: KeyError(7)"),
        ("raise MemoryError", "it cannot be explained: MemoryError()"),
    ],
)
def test_an_explanation_costs_no_estimate(explained: str, note: str, job: Path) -> None:
    """Neither at the deadline, when what is ready is given, nor if it fails."""
    text = f"""
        import sys
        def explained(report, recorder, attribution):
            trace = sys._getframe(1).f_locals["self"]
            {explained}
        sys.modules["carma_tracer.script"].with_explanation = explained
    """
    script = written(job, textwrap.dedent(text) + loop("for _ in range(9): step()"))
    found = report(job, script, explain=True)
    assert found.explanation is None and found.steps == 2
    assert found.notes[-1].startswith(note)


DEADLINE = """
import sys, time
from types import SimpleNamespace
sys.path.insert(0, {root!r})
from estimators.tracer.answering import Answer, Clock
from estimators.tracer.command import Options
from tests.reports import a_report
answer = Answer(Clock(time.monotonic()), Options(3600, 0.8, 0.3, 1000))
answer.keep(a_report(notes=("kept",)))
answer.trace = SimpleNamespace(find_reason=str)
answer.before_the_deadline()
time.sleep(3600)
"""


def test_what_is_ready_is_answered_at_the_deadline(tmp_path: Path) -> None:
    script, answer = tmp_path / "script.py", tmp_path / "answer"
    script.write_text(DEADLINE.format(root=str(SCRIPTS.parents[1])))
    words = ["/bin/sh", "-c", 'exec "$@" 3>"$0"', answer, sys.executable, script]
    subprocess.run(words, check=True)
    found = loads(answer.read_bytes())
    assert isinstance(found, Report) and found.notes == ("kept",)


IMPORTS = """
import sys
from types import SimpleNamespace
sys.path.insert(0, {root!r})
from estimators.tracer import answering as module
spent = 7.0
def work(seconds):
    global spent
    spent += seconds
module.time = SimpleNamespace(process_time=lambda: spent, monotonic=lambda: 0.0)
clock = module.Clock(0.0)
clock.install()
import slow_to_import
assert (spent, clock.own_s) == (7.0 + 3 + 3, 0.0)
try:
    import fails_to_import
except ModuleNotFoundError:
    pass
assert (spent, clock.own_s) == (16.0, 0.0)
work(5)
import slow_to_import
assert clock.own_s == 5.0
"""


def test_imports_take_no_time(tmp_path: Path) -> None:
    """Nor do those that they import, or that fail. What counts is a processor's time, here one that
    only `work` spends."""
    work = "import __main__\n__main__.work(3)\n"
    (tmp_path / "slow_to_import.py").write_text("import inside\n" + work)
    (tmp_path / "inside.py").write_text(work)
    (tmp_path / "fails_to_import.py").write_text(work + "import not_there\n")
    script = tmp_path / "script.py"
    script.write_text(IMPORTS.format(root=str(SCRIPTS.parents[1])))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_children_neither_answer_nor_stay(job: Path) -> None:
    """One does nothing, another lives on for a moment in a session of its own."""
    text = """
        import os, time
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(0.5)
            os._exit(0)
        os.wait()
        raise ValueError("what has nothing on a GPU does not answer")
        """
    assert "what has nothing on a GPU does not answer" in refusal(job, written(job, loop(text)))


def test_a_missing_script(job: Path) -> None:
    assert "FileNotFoundError" in refusal(job, "no-such.py")


@pytest.mark.skipif(find_spec("timm") is None, reason="not installed: timm")
def test_a_timm_model_by_name(job: Path) -> None:
    argv = ("timm:resnet18", "--batch-size", "8", "--optimizer", "sgd", "--img-size", "64")
    told = report(job, argv=argv)
    assert (told.steps, told.batch) == (2, 8)
    assert sum(layer.parameters for layer in told.layers) == 11_689_512
    assert told.parts["parameters"] + told.parts["optimizer"] >= 2 * 4 * 11_689_512
    assert "Unknown model" in refusal(job, argv=("timm:no_such_model",))


@pytest.mark.long
def test_weight_decay_takes_a_copy_of_the_gradients(job: Path) -> None:
    argv = ("timm:resnet18", "--batch-size", "2", "--img-size", "64")
    with_decay, without = (report(job, argv=(*argv, f"--weight-decay={w}")) for w in (2e-5, 0))
    assert with_decay.floor - without.floor >= 4 * 11_000_000


RIGHT = {
    "a compiled module": """
        model = torch.compile(model)
        torch.nn.init.orthogonal_(model._orig_mod[0].weight)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(64, 1024, device="cuda")).mean().backward()
            optimizer.step()
        assert list(model.state_dict())[0] == "_orig_mod.0.weight" and len(model) == 3
        model.name = "mine"
        assert model._orig_mod.name == "mine"
    """,
    "a scripted module": """
        model = torch.jit.script(model)
        step(), step()
        model.save("model.pt")
    """,
    "a tensor's subclass": """
        class Noise(torch.Tensor):
            def to(self, *args, **kwargs):
                new = Noise(self)
                new.data = super().to(*args, **kwargs)
                return new

        noise = Noise(torch.randn(64, 1024))
        assert type(noise * 2) is Noise and type(noise.as_subclass(torch.Tensor)) is torch.Tensor
        noise = noise.to("cuda")
        for _ in range(2):
            model(noise.normal_()).mean().backward()
            optimizer.step()
    """,
    "labels of uint8": """
        labels = torch.randint(0, 10, (64,), dtype=torch.uint8).cuda()
        for _ in range(2):
            out = model(torch.randn(64, 1024, device="cuda"))
            torch.nn.functional.cross_entropy(out, labels).backward()
            optimizer.step()
    """,
    "a data set of whole batches": """
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 640
            def __getitems__(self, indices): return torch.randn(len(indices), 1024)

        for rows in torch.utils.data.DataLoader(Rows(), 64, collate_fn=lambda rows: rows):
            model(rows.cuda()).mean().backward()
            optimizer.step()
    """,
    "NCCL's version": """
        assert torch.cuda.nccl.version() >= (2, 10)
        step(), step()
    """,
    "a function in processes": """
        import torch.multiprocessing as mp
        mp.start_processes(lambda rank: (step(), step()), nprocs=2, start_method="spawn")
    """,
    "a mask on the CPU that selects where to write": """
        rows = torch.zeros(96, dtype=torch.bool)
        rows[:64] = True
        for _ in range(2):
            wide = torch.zeros(96, 1024, device="cuda")
            wide[rows] = model(torch.randn(64, 1024, device="cuda"))
            assert torch.masked_select(wide, rows[:, None]).shape == (64 * 1024,)
            wide.square().mean().backward()
            optimizer.step()
    """,
    "a mask of random places": """
        left = torch.randint(0, 256, (32, 1), device="cuda")
        columns = torch.arange(1280, device="cuda")
        mask = (columns >= left) & (columns < left + 1024)
        for _ in range(2):
            wide = torch.randn(32, 1280, device="cuda")
            model(torch.masked_select(wide, mask).view(32, 1024)).mean().backward()
            optimizer.step()
    """,
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_pytorch_does_is_no_mistake(name: str, job: Path) -> None:
    seen = report(job, written(job, loop(RIGHT[name])))
    assert seen.steps == 2 and seen.rest is not None and not seen.rest.crash, seen


def test_attention_with_functions_is_traced_by_its_own_rule(job: Path) -> None:
    pytest.importorskip("torch.nn.attention.flex_attention")
    text = """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, device="cuda")
        for _ in range(2):
            x = model(torch.randn(64, 1024, device="cuda")).view(1, 16, 64, 64)
            flex_attention(x, x, x, block_mask=mask).mean().backward()
            optimizer.step()
        """
    seen = report(job, written(job, loop(text)))
    assert seen.steps == 2
    assert "flex_attention is taken to be one kernel, as torch.compile makes it" in seen.notes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "try:\n    open('train.pt')\nexcept OSError:\n    logging.exception('failed')",
            "FileNotFoundError: [Errno 2] No such file or directory: 'train.pt'",
        ),
        ("try: 1 / 0\nexcept Exception as error: print('failed:', error)", "ZeroDivisionError"),
        ("try: 1 / 0\nexcept Exception: traceback.print_exc()", "ZeroDivisionError"),
        ("try: 1 / 0\nexcept Exception as e: logging.error(f'failed: {e}')", "ZeroDivisionError"),
    ],
)
def test_an_error_that_is_only_logged_leaves_no_estimate(text: str, why: str, job: Path) -> None:
    script = written(job, loop(f"import logging, traceback\n{text}"))
    told = refusal(job, script)
    assert f"{script}:" in told and why in told
    assert " before an optimizer step: " in told and told.endswith("; what follows is unknown")
    assert told.startswith("an error was logged at ")


def test_a_question_to_the_network_that_nobody_logs_leaves_no_estimate(job: Path) -> None:
    text = """
        import urllib.request
        try:
            urllib.request.urlopen("http://data.invalid/train.bin")
        except OSError:
            pass
        """
    told = refusal(job, written(job, loop(text)))
    assert told.startswith("the network was asked at ") and ":14 before an optimizer step" in told


def test_a_script_that_trains_after_an_error_is_estimated(job: Path) -> None:
    text = "try: import no_such_x\nexcept ImportError as error: print(error)\nstep(), step()"
    assert report(job, written(job, loop(text))).steps == 2
    text = text.replace("step(), step()", "model(torch.randn(8, 1024).cuda())")
    notes = report(job, written(job, loop(text))).notes
    assert notes[0].startswith("an error was logged at ") and "'no_such_x'" in notes[0]
    assert notes[1].startswith("it ended by itself without an optimizer step or a backward pass")


def test_a_script_of_another_framework_is_told_early(job: Path) -> None:
    jax = job.parent / "jax"
    jax.mkdir()
    (jax / "__init__.py").write_text("")
    endless = "import jax\nwhile True: pass"  # its time is the processor's
    assert refusal(job, written(job, endless)).startswith("it uses JAX, and only PyTorch is traced")
    both = written(job, f"import torch\n{endless}")
    assert "no optimizer step" in refusal(job, both, estimation=Estimation(within_s=3.0))
