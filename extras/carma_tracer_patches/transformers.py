"""transformers: beam search, and weights that share memory."""

from __future__ import annotations

from typing import Any

import torch

MADE_FOR = "5.23"


def search_to_the_end(module: Any, tracer: Any) -> None:
    """Beam search goes on until all beams are as long as they may be: whether they could still
    improve depends on scores, of which there are none."""

    def has_unfinished(
        improvable: Any, sent: Any, next_token_hits_stopping_criteria: Any, early_stopping: Any
    ) -> bool:
        return not bool(torch.all(next_token_hits_stopping_criteria))

    mixin = module.GenerationMixin
    if hasattr(mixin, "_beam_search_has_unfinished_sequences"):  # transformers 4.50
        mixin._beam_search_has_unfinished_sequences = staticmethod(has_unfinished)


def find_shared(module: Any, tracer: Any) -> None:
    """It finds weights that share memory by its address, and a fake tensor has none."""
    tracer.replace(module, storage_ptr=lambda tensor: tensor.untyped_storage()._cdata)


PATCHES = {
    "transformers.generation.utils": search_to_the_end,
    "transformers.pytorch_utils": find_shared,
}
