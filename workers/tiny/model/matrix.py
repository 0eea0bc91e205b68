"""A weight matrix in the layout that its products run fastest in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_PACKED_FOR_ROWS = 16


class Matrix:
    """`x @ weight.T + bias` for one weight.

    On CPUs the weight is kept in oneDNN's blocked layout: products of a few rows are then as fast as memory allows, and
    tall ones take half as long as through BLAS, which packs the weight anew each time. The operators are internal to
    torch, so a build without them, or one that refuses the weight, gets the plain product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self.device = weight.device
        self.dtype = weight.dtype
        self._bias = bias
        self._packed = _pack(weight)
        self._plain = weight if self._packed is None else None

    def __call__(self, values: Tensor) -> Tensor:
        """The product; `values` is `[rows, inputs]`, contiguous."""
        if self._packed is not None:
            return _product(values, self._packed, self._bias)
        if self._plain is None:
            raise RuntimeError("a matrix holds its weight in one of two layouts")
        return functional.linear(values, self._plain, self._bias)


def _product(values: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    operator = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - see `Matrix`
    result: Tensor = operator(values, packed, bias, "none", [], "")
    return result


def _pack(weight: Tensor) -> Tensor | None:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    try:
        reorder = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 - see `Matrix`
        packed: Tensor = reorder(weight, _PACKED_FOR_ROWS)
        probe = weight.new_ones(2, weight.shape[1])
        _product(probe, packed, None)
    except (AttributeError, RuntimeError, NotImplementedError):
        return None
    return packed
