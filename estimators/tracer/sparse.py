"""Sparse matrices (COO) that a script makes on the CPU and moves to the GPU, such as a graph.

PyTorch has no shape rules for them. What they consist of, indices and values, is two tensors on the
GPU; their product with a matrix is one. cuSPARSE takes rows and columns in 32 bits meanwhile.
"""

from typing import Any, Callable, Dict

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten


def _copy(recorder: Any, tensor: Any, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if tensor.layout is not torch.sparse_coo:
        return NotImplemented
    if (
        isinstance(tensor, FakeTensor)
        and device is not None
        and torch.device(device).type != "cuda"
    ):
        return NotImplemented
    parts = tensor._indices(), tensor._values()
    dtype = kwargs.get("dtype") or tensor.dtype
    indices = recorder.new(parts[0].shape, parts[0].dtype)
    values = recorder.new(parts[1].shape, dtype)
    return recorder.run(
        aten._sparse_coo_tensor_with_dims_and_tensors.default,
        (tensor.sparse_dim(), tensor.dense_dim(), tensor.shape, indices, values),
        {"dtype": dtype, "layout": torch.sparse_coo, "device": torch.device("cuda")},
    )


def _product(recorder: Any, sparse: Any, matrix: Any, *_: Any, **__: Any) -> Any:
    if sparse.layout is not torch.sparse_coo:
        return NotImplemented
    rows, columns = sparse.shape
    if columns != matrix.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{columns} and"
            f" {matrix.shape[0]}x{matrix.shape[1]})"
        )
    out = recorder.new((rows, matrix.shape[1]), matrix.dtype)
    recorder.release([recorder.hold(8 * sparse._nnz())])
    return out


def _sum_with_product(recorder: Any, _: Any, sparse: Any, matrix: Any, *__: Any, **___: Any) -> Any:
    return _product(recorder, sparse, matrix)


def _dense(recorder: Any, sparse: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    return recorder.new(sparse.shape, dtype or sparse.dtype)


ANSWERS: Dict[Any, Callable[..., Any]] = {
    aten._to_copy.default: _copy,
    aten.mm.default: _product,
    aten.addmm.default: _sum_with_product,
    aten._to_dense.default: _dense,
    aten._coalesce.default: _copy,
}
