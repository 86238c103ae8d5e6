"""Makes torchvision, and so timm, importable if its compiled operators do not load.

torchvision describes the shapes of its operators at import, which fails if they do not exist at
all; their declarations are enough for everything but running them.
"""

import importlib.util
from pathlib import Path
from typing import Any, List

import torch

_ROIS = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_BACK = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_FROM = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ROIS}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_BACK}, {_FROM}, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_BACK}, {_FROM}) -> Tensor",
    f"ps_roi_align({_ROIS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, "
    f"int sampling_ratio, {_FROM}) -> Tensor",
    f"ps_roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_BACK}, {_FROM}) "
    "-> Tensor",
    f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_DEFORM}"
    ") -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, "
    f"Tensor bias, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_declared: List[Any] = []


def declare() -> None:
    """Does nothing if torchvision is absent, or its operators can be loaded."""
    found = importlib.util.find_spec("torchvision")
    if _declared or found is None or hasattr(torch.ops.torchvision, "nms"):
        return
    for folder in found.submodule_search_locations or ():
        for compiled in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(str(compiled))
                return
            except OSError:
                continue
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)
