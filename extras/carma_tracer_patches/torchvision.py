"""torchvision: it, and so timm, becomes importable if its compiled operators do not load. It
describes the shapes of its operators at import, which fails if they do not exist at all; their
declarations are enough for everything but running them."""

from __future__ import annotations

from typing import Any

import torch

MADE_FOR = "0.28"
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
_declared: list[Any] = []


def declare(module: Any, tracer: Any) -> None:
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            library.define(schema)
        _declared.append(library)
        tracer.replace(module, _assert_has_ops=lambda: None)  # what is declared has answers, too
    tracer.answer(torch.ops.torchvision.nms.default, _keep_boxes)


def _keep_boxes(recorder: Any, boxes: Any, *_: Any) -> Any:
    recorder.note("boxes are taken not to overlap")
    return recorder.new(boxes.shape[:1], torch.int64)


PATCHES = {"torchvision.extension": declare}
