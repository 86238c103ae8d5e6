"""The training tasks of the CARMA paper's table 4, built again as modules to be traced.

The paper names models, data sets and batch sizes. The rest is the usual: pictures of 224 × 224 for
ImageNet (Inception 299; not so Xception, whose FakeTensor reading in the artifact is that of 224),
32 × 32 for CIFAR-100; sequences of 512 tokens; fp32 and Adam; a process per GPU. Models come from
timm and transformers, with weights of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from estimators.look import patches
from estimators.tracer import patching
from estimators.tracer.recording import Recorder

TIMM = {
    "inception": "inception_v3",
    "xception": "legacy_xception",
    "efficientnet_b0": "efficientnet_b0",
    "mobilenet_v2": "mobilenetv2_100",
    "mobilenetv3_small": "mobilenetv3_small_100",
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "vgg16": "vgg16",
}
SIDE = {"inception": 299}
CLASSES = {"imagenet": 1000, "cifar100": 100}
TOKENS = 512


@dataclass(frozen=True, slots=True)
class Built:
    model: Callable[[], Any]
    inputs: Any


def build(model: str, dataset: str, batch_size: int, gpus: int) -> Built | None:
    """One GPU's share of a task; None for those whose set-up the paper does not tell."""
    patching.install(patches("torchvision"), Recorder())
    if model in TIMM:
        return _picture(model, dataset, batch_size)
    if model in _TEXT:
        return _text(model, batch_size // gpus, in_parallel=gpus > 1)
    return None


def _picture(model: str, dataset: str, batch_size: int) -> Built:
    import timm
    import torch

    side = 32 if dataset == "cifar100" else SIDE.get(model, 224)
    classes = CLASSES[dataset]
    return Built(
        lambda: timm.create_model(TIMM[model], num_classes=classes),
        torch.empty(batch_size, 3, side, side),
    )


_BERT_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_TEXT: Mapping[str, tuple[str, dict[str, int]]] = {
    "BERT_base": ("BertForMaskedLM", {}),
    "BERT_large": ("BertForMaskedLM", _BERT_LARGE),
    "gpt2_large": ("GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
}


def _text(model: str, batch_size: int, in_parallel: bool) -> Built:
    import torch
    import transformers

    name, options = _TEXT[model]
    kind = getattr(transformers, name)
    tokens = torch.zeros(batch_size, TOKENS, dtype=torch.long)
    words = {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}

    def network() -> Any:
        made = kind(kind.config_class(**options))
        if in_parallel:  # DistributedDataParallel keeps a second copy of all gradients
            count = sum(parameter.numel() for parameter in made.parameters())
            made.register_buffer("buckets", torch.empty(count), persistent=False)
        return made

    return Built(network, words)
