"""The training runs of the campaign by name, built from configuration alone: nothing is downloaded.

`train.py` imports this beside it: standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One training run: a network, a batch, and how it is trained."""

    name: str
    kind: str  # cnn, vit (both timm's), bert, gpt2, mlp
    model: str  # the network, without batch size and way of training
    batch: int
    size: int = 224  # pixels of a side, or tokens; mlp: inputs
    optimizer: str = "sgd"  # with momentum and weight decay; adam, adamw
    amp: str = ""  # fp16 with a scaler, bf16; "": float32
    checkpoint: bool = False
    compile: bool = False
    channels_last: bool = False
    benchmark: bool = True  # torch.backends.cudnn.benchmark, as in timm's own script
    options: dict[str, Any] = field(default_factory=dict)  # of the network's configuration
    wait_s: float = 0.0  # for the data of each step


def small(workload: Workload) -> Workload:
    """The smallest network of its kind, trained the same way: for rehearsals on a CPU."""
    size, options = _SMALL[workload.kind]
    return replace(workload, batch=2, size=size, options=options)


_SMALL: dict[str, tuple[int, dict[str, Any]]] = {
    "cnn": (32, {"model_name": "resnet10t"}),
    "vit": (32, {"model_name": "vit_tiny_patch16_224", "img_size": 32, "depth": 2}),
    "bert": (16, {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}),
    "gpt2": (16, {"n_embd": 32, "n_layer": 2, "n_head": 2}),
    "mlp": (64, {"width": 64, "depth": 2}),
}

_BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_BERT_SMALL = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
_GPT2_MEDIUM = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
_GPT2_LARGE = {"n_embd": 1280, "n_layer": 36, "n_head": 20}


def _of(kind: str, model: str, *batches: int, **more: Any) -> list[Workload]:
    """NAME-bBATCH, with what is out of the ordinary behind it."""
    usual = {"cnn": "sgd", "mlp": "adam"}.get(kind, "adamw")
    more = {"optimizer": usual, "size": {"bert": 128, "gpt2": 512}.get(kind, 224), **more}
    marks = [
        *([f"t{more['size']}"] if kind in ("bert", "gpt2") else []),
        *([more["optimizer"]] if more["optimizer"] != usual else []),
        *([more["amp"]] if more.get("amp") else []),
        *(["ckpt"] if more.get("checkpoint") else []),
        *(["compile"] if more.get("compile") else []),
        *(["cl"] if more.get("channels_last") else []),
        *(["nobench"] if not more.get("benchmark", True) else []),
    ]
    return [
        Workload("-".join([model, f"b{batch}", *marks]), kind, model, batch, **more)
        for batch in batches
    ]


def _mlp(width: int, depth: int, *batches: int, norm: str = "", **more: Any) -> list[Workload]:
    options = {"width": width, "depth": depth, "norm": norm}
    return _of("mlp", f"mlp{width}x{depth}{norm}", *batches, size=width, options=options, **more)


_CNNS = [
    *_of("cnn", "resnet50", 64, 16, 128),
    *_of("cnn", "resnet50", 64, benchmark=False),
    *_of("cnn", "resnet50", 64, amp="fp16"),
    *_of("cnn", "resnet50", 64, amp="fp16", channels_last=True),
    *_of("cnn", "resnet50", 64, optimizer="adam"),
    *_of("cnn", "resnet50", 64, checkpoint=True),
    *_of("cnn", "resnet50", 64, compile=True),
    *_of("cnn", "vgg16", 32, 64),
    *_of("cnn", "vgg16", 32, benchmark=False),
    *_of("cnn", "efficientnet_b0", 64, 32, 128),
    *_of("cnn", "efficientnet_b0", 64, benchmark=False),
    *_of("cnn", "efficientnet_b0", 64, amp="fp16"),
    *_of("cnn", "mobilenetv2_100", 32, 128),
    *_of("cnn", "mobilenetv3_small_100", 64, 256),
    *_of("cnn", "resnet18", 32, 128),
    *_of("cnn", "resnet101", 32),
    *_of("cnn", "densenet121", 32),
    *_of("cnn", "convnext_tiny", 32, 64, optimizer="adamw"),
    *_of("cnn", "convnext_tiny", 32, optimizer="adamw", amp="bf16"),
    *_of("cnn", "inception_v3", 32, size=299),
    *_of("cnn", "legacy_xception", 32, size=299),
    *_of("cnn", "regnety_016", 64),
    *_of("cnn", "efficientnet_b3", 32, size=288),
    *_of("cnn", "resnext50_32x4d", 32),
]
_VITS = [
    *_of("vit", "vit_base_patch16_224", 32, 16, 64),
    *_of("vit", "vit_base_patch16_224", 32, amp="fp16"),
    *_of("vit", "vit_base_patch16_224", 32, checkpoint=True),
    *_of("vit", "vit_base_patch16_224", 32, compile=True),
    *_of("vit", "vit_base_patch16_224", 32, optimizer="sgd"),
    *_of("vit", "swin_tiny_patch4_window7_224", 32),
    *_of("vit", "swin_tiny_patch4_window7_224", 32, amp="bf16"),
    *_of("vit", "vit_tiny_patch16_224", 64, 256),
    *_of("vit", "vit_small_patch16_224", 64),
    *_of("vit", "mixer_b16_224", 32),
    *_of("vit", "beit_base_patch16_224", 32),
]
_BERTS = [
    *_of("bert", "bert_base", 32, 8),
    *_of("bert", "bert_base", 8, size=512),
    *_of("bert", "bert_base", 32, amp="bf16"),
    *_of("bert", "bert_base", 32, checkpoint=True),
    *_of("bert", "bert_base", 32, compile=True),
    *_of("bert", "bert_large", 8, options=_BERT_LARGE),
    *_of("bert", "bert_small", 64, options=_BERT_SMALL),
]
_GPTS = [
    *_of("gpt2", "gpt2", 4, 8),
    *_of("gpt2", "gpt2", 4, size=1024),
    *_of("gpt2", "gpt2", 4, amp="fp16"),
    *_of("gpt2", "gpt2", 4, checkpoint=True),
    *_of("gpt2", "gpt2", 4, compile=True),
    *_of("gpt2", "gpt2", 4, optimizer="sgd"),
    *_of("gpt2", "gpt2_medium", 4, options=_GPT2_MEDIUM),
    *_of("gpt2", "gpt2_large", 2, options=_GPT2_LARGE),
]
_MLPS = [
    *_mlp(4096, 8, 256, 2048),
    *_mlp(1024, 4, 128, 1024),
    *_mlp(4096, 8, 2048, norm="-rms"),
    *_mlp(4096, 8, 256, optimizer="sgd"),
    *_mlp(4096, 8, 2048, amp="bf16"),
    *_mlp(8192, 4, 512),
]


def _in_turn(*kinds: list[Workload]) -> Iterator[Workload]:
    """One of each kind, then the next of each: a visit that ends early has seen all kinds."""
    return (each for each in chain.from_iterable(zip_longest(*kinds)) if each is not None)


WORKLOADS = {each.name: each for each in _in_turn(_CNNS, _VITS, _BERTS, _GPTS, _MLPS)}
# With a data loader that takes at least twice a step's time on an H100.
WAITING = tuple(
    replace(WORKLOADS[name], name=f"{name}-wait{wait_ms}ms", wait_s=wait_ms / 1000)
    for name, wait_ms in (("resnet50-b64", 80), ("mlp1024x4-b128", 10))
)
ALL = WORKLOADS | {each.name: each for each in WAITING}
