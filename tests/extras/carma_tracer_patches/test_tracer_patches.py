"""Patches to libraries, applied to scripts that import them. Where a library is not installed, what
the patch changes of it stands for it."""

from __future__ import annotations

import importlib
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from carmad.plugin import Refusal
from estimators import look
from tests.estimators.tracer.test_tracer_rest import followed
from tests.estimators.tracer.test_tracer_script import (
    PARAMETERS,
    job,
    looked,
    loop,
    needs,
    report,
    written,
)

__all__ = ["job"]


def installed(job: Path, **files: str) -> None:
    """A library beside the script; `a__b`: of its file a/b.py."""
    for name, text in files.items():
        path = job.parent / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(text))


def use(monkeypatch: pytest.MonkeyPatch, library: str, patch: Path, text: str) -> None:
    """Have a trace use this patch as well."""
    patch.write_text(textwrap.dedent(text))
    more = (*look.patches(), (library, str(patch)))
    monkeypatch.setattr(look, "patches", lambda: more)


def test_all_are_found_and_say_what_they_were_made_for() -> None:
    found = dict(look.patches())
    assert {"deepspeed", "mpi4py", "torch.distributed.tensor"} <= found.keys()
    for path in found.values():
        text = Path(path).read_text()
        assert "\nMADE_FOR = " in text and text.count("\n") <= 60, path


def test_anybody_can_add_one(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found without importing what it is in."""
    site = job.parent / "site"
    installed(job, site__my_patches__fused="MADE_FOR = '1'")
    (site / "my_patches" / "__init__.py").write_text("1 / 0")
    info = site / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[carma.tracer_patches]\nfused = my_patches.fused\n")
    monkeypatch.syspath_prepend(str(site))
    found = look.patches.__wrapped__("fused")  # type: ignore[attr-defined]
    assert found == (("fused", str(site / "my_patches" / "fused.py")),)


def test_one_of_somebody_elses_answers_an_operator(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        import torch
        MADE_FOR = "1.0"

        def answer(module, tracer):
            tracer.answer(torch.ops.fused.double.default, double)

        def double(recorder, tensor):
            recorder.note("it is not doubled")
            recorder.release([recorder.hold(1 << 30)])
            return recorder.new(tensor.shape, tensor.dtype)

        PATCHES = {"fused.ops": answer}
        """
    use(monkeypatch, "fused", job.parent / "patch.py", text)
    ops = """
        import torch
        library = torch.library.Library("fused", "DEF")
        library.define("double(Tensor x) -> Tensor")
        """
    installed(job, fused__ops=ops)
    script = """
        import fused.ops
        assert torch.ops.fused.double(torch.ones(3, device="cuda")).shape == (3,)
        while True: step()
        """
    seen = report(job, written(job, loop(script)))
    assert "it is not doubled" in seen.notes and seen.reserved > 1 << 30


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "def patch(module, tracer): tracer.replace(module, gone=1)",
            "no attribute 'gone'",
        ),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
    ],
)
def test_one_that_does_not_fit_is_left_out_and_said(
    text: str, why: str, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"MADE_FOR = '0.17'\n{text}\nPATCHES = {{'deepfast.ops': patch}}"
    use(monkeypatch, "deepfast", job.parent / "patch.py", text)
    installed(job, deepfast__ops="kept = 1")
    info = job.parent / "deepfast-0.19.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: deepfast\nVersion: 0.19\n")
    script = "import deepfast.ops\nassert deepfast.ops.kept\nwhile True: step()"
    notes = report(job, written(job, loop(script))).notes
    [said] = [note for note in notes if "deepfast" in note]
    assert said.startswith("the patch for deepfast 0.17 does not fit 0.19: left out (")
    assert why in said


def test_each_module_of_a_zip_file_is_patched_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a loader. What a patch replaces, it replaces at once or not."""
    pytest.importorskip("torch")
    from estimators.tracer import patching

    notes: list[str] = []
    patch, library = tmp_path / "patch.py", tmp_path / "library.zip"
    patch.write_text(
        "PATCHES = {'carma_zip.a': lambda module, tracer: tracer.replace(module, n=module.n + 1),"
        " 'carma_zip.b': lambda module, tracer: tracer.replace(module, n=5, missing=0)}"
    )
    with ZipFile(library, "w") as packed:
        packed.writestr("carma_zip/__init__.py", "from . import a")
        for name in "abc":
            packed.writestr(f"carma_zip/{name}.py", "n = 1")
    monkeypatch.syspath_prepend(library)
    recorder: Any = SimpleNamespace(note=notes.append)
    patching.install([("carma_zip", str(patch))], recorder)
    modules = [importlib.import_module(f"carma_zip.{name}") for name in "abc"]
    assert [module.n for module in modules] == [2, 1, 1] and len(notes) == 1


def test_kernels_in_triton_are_left_out(job: Path) -> None:
    jit = "class JITFunction:\n    def run(self, *_, **__): 1 / 0"
    installed(job, triton__runtime__jit=jit)
    (job.parent / "triton" / "__init__.py").touch()
    text = """
        from triton.runtime.jit import JITFunction
        for _ in range(2):
            y = model(torch.randn(64, 1024, device="cuda"))
            out = torch.empty(64, dtype=torch.long, device="cuda")
            JITFunction().run(y, out, grid=(1,), warmup=False)
            y.sum().backward()
            optimizer.step()
        """
    seen = report(job, written(job, loop(text)))
    assert seen.steps == 2 and "Triton's kernels are not run" in seen.notes


def test_mpi_is_of_one_process(job: Path) -> None:
    """The real one would end the trial."""
    installed(job, mpi4py__MPI="import os; os._exit(3)")
    text = """
        from mpi4py import MPI
        assert MPI.COMM_WORLD.Get_size() == 1 and MPI.COMM_WORLD.allreduce(7, op=MPI.SUM) == 7
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


def test_without_mpi4py_the_script_stops(job: Path) -> None:
    if find_spec("mpi4py"):
        pytest.skip("it is installed")
    answer = looked(job, written(job, loop("import mpi4py.MPI")))
    assert isinstance(answer, Refusal) and "No module named 'mpi4py'" in answer.crash


@pytest.mark.parametrize("name", ["fused_adam", "cpu_adam"])
def test_deepspeeds_optimizers_keep_their_states(name: str, job: Path) -> None:
    builder = """
        class OpBuilder:
            def __init__(self, name): self.name = name
            def load(self, verbose=False): raise RuntimeError("no nvcc")
        """
    installed(job, deepspeed__ops__op_builder__builder=builder)
    for folder in ("deepspeed", "deepspeed/ops"):
        (job.parent / folder / "__init__.py").touch()
    text = f"""
        from deepspeed.ops.op_builder.builder import OpBuilder
        try:
            OpBuilder("async_io").load()
        except RuntimeError:
            kernels = OpBuilder("{name}").load()
        class Fused(torch.optim.Optimizer):
            def step(self):
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    if not state:
                        state.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
                    kernels.update(p, p.grad, state["m"], state["v"])
        optimizer = Fused(model.parameters(), dict(lr=1))
        while True: step()
        """
    found = report(job, written(job, loop(text))).parts["optimizer"]
    assert found == pytest.approx(2 * PARAMETERS, rel=0.01)


FLASH = """
    import torch, flash_attn
    from flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_qkvpacked_func
    at = dict(dtype=torch.bfloat16, device="cuda")
    project = torch.nn.Linear(1024, 3 * 1024).to(**at)
    optimizer = torch.optim.SGD(project.parameters(), lr=0.1)
    for _ in range(3):
        qkv = project(torch.randn(2, 512, 1024, **at)).view(2, 512, 3, 16, 64)
        out = flash_attn_func(*qkv.unbind(2), causal=True)
        assert out.shape == (2, 512, 16, 64)
        _, lse, _ = flash_attn_func(*qkv.unbind(2), return_attn_probs=True)
        assert lse.shape == (2, 16, 512) and lse.dtype == torch.float32
        lengths = torch.tensor([0, 1000, 1024], dtype=torch.int32, device="cuda")
        packed = flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), lengths, 1000, 0.0)
        assert packed.shape == (1024, 16, 64)
        (out.sum() + packed.sum()).backward()
        optimizer.step()
    """


def test_flash_attention_is_answered_by_shape(job: Path) -> None:
    interface = "import flash_attn_2_cuda\n" + "\n".join(
        f"def flash_attn_{kind}func(*_, **__): 1 / 0"
        for each in ("", "varlen_")
        for kind in (each, f"{each}qkvpacked_", f"{each}kvpacked_")
    )
    installed(job, flash_attn__flash_attn_interface=interface, flash_attn_2_cuda="1 / 0")
    assert report(job, written(job, FLASH)).steps == 2


def test_apexs_kernels_work_in_place_or_are_answered_by_shape(job: Path) -> None:
    installed(job, apex__norm="import fused_layer_norm_cuda, amp_C")
    installed(job, fused_layer_norm_cuda="1 / 0", amp_C="1 / 0")
    text = """
        from apex.norm import amp_C, fused_layer_norm_cuda as norm
        x, weight = torch.randn(64, 8, device="cuda"), torch.ones(8, device="cuda")
        out, mean, scale = norm.forward_affine(x, (8,), weight, weight, 1e-5)
        back = norm.backward_affine(out, mean, scale, x, (8,), weight, weight, 1e-5)
        assert out.shape == x.shape and mean.shape == (64,) and len(back) == 3
        assert len(norm.rms_forward_affine(x, (8,), weight, 1e-5)) == 2
        assert len(norm.rms_backward_affine(out, scale, x, (8,), weight, 1e-5)) == 2
        while True:
            amp_C.multi_tensor_adam(2048, torch.zeros(1), [[x], [x]], 1e-3)
            step()
        """
    assert report(job, written(job, loop(text))).steps == 2


@needs("bitsandbytes")
def test_layers_of_bitsandbytes_hold_half_a_byte_or_one_for_each_weight(job: Path) -> None:
    text = """
        import bitsandbytes as bnb, torch
        layer = bnb.nn.{}
        model = torch.nn.Sequential(layer, torch.nn.Linear(4096, 8).half()).cuda()
        optimizer = bnb.optim.Adam8bit([p for p in model.parameters() if p.requires_grad])
        while True:
            model(torch.randn(16, 4096, device="cuda").half()).sum().backward()
            optimizer.step()
        """
    four = report(job, written(job, text.format("Linear4bit(4096, 4096)")))
    eight = report(
        job,
        written(
            job, text.format("Linear8bitLt(4096, 4096, has_fp16_weights=False, threshold=6.0)")
        ),
    )
    weights = 4096 * 4096
    assert 0.5 * weights <= four.parts["parameters"] < 0.6 * weights
    assert weights <= eight.parts["parameters"] < 1.1 * weights


@needs("peft")
def test_after_peft_a_mistake_is_the_scripts(job: Path) -> None:
    """It imports bitsandbytes, which asks for the GPU."""
    answer = looked(job, written(job, "import peft\nfrom json import nothing"))
    assert isinstance(answer, Refusal) and "cannot import name 'nothing'" in answer.crash


@needs("torchvision")
def test_boxes_are_suppressed(job: Path) -> None:
    text = """
        import torchvision
        boxes, scores = torch.rand(300, 4, device="cuda"), torch.rand(300, device="cuda")
        kept = boxes[torchvision.ops.nms(boxes, scores, 0.5)]
        assert kept.shape == (300, 4)
        while True: step()
        """
    assert report(job, written(job, loop(text))).steps == 2


@needs("safetensors")
def test_safetensors_are_saved_and_loaded(job: Path) -> None:
    text = """
        for turn in range(2): step()
        from safetensors.torch import load_file, save_file
        save_file(model.state_dict(), "model.safetensors")
        model.load_state_dict(load_file("model.safetensors", device="cuda", backend="mmap"))
        """
    seen = followed(job, loop(text))
    assert seen.rest is not None
    assert (seen.rest.end, list(seen.rest.phases)) == ("", ["training", "saving"])
