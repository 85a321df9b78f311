"""Matrices to multiply, weights packed as kernels want them, and what must come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerncast.measuring.backends.contract import OutOfMemory
from kerncast.measuring.backends.cpu.inputs import Arena
from kerncast.measuring.backends.environment import available_bytes
from kerncast.measuring.backends.inductor.build import epilogue_pass
from kerncast.measuring.backends.inductor.templates import EPILOGUES, Product

# Small whole numbers: sums in fp32 are exact in any order, so the check is bit for bit.
LARGEST_VALUE, EXACT = 3, 2**24
MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Operands:
    """X, packed W, the bias and Y of one product as torch tensors in one arena, and the result as it must be."""

    product: Product
    x: Any
    w: Any
    bias: Any
    """None: the product has none."""
    y: Any
    weights: Any
    """W as `nn.Linear` has it: N × K."""
    reference: Any
    arena: Arena

    @classmethod
    def of(cls, product: Product, columns: int) -> Operands:
        """The operands of a product, always the same; W is in strips of so many columns, or N × K where that is 0."""
        import torch

        m, n, k, lda = product.m, product.n, product.k, product.lda
        kind = product.torch_type
        padded = -(-n // columns) * columns if columns else n
        sizes = [size * kind.itemsize for size in (m * lda, padded * k, n)]
        result = m * n * kind.itemsize
        needed = sum(sizes) + result + 3 * m * n * 8 + n * k * 8
        free = available_bytes()
        if free is not None and needed > MEMORY_SHARE * free:
            raise OutOfMemory(f"the matrices need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")
        generator = np.random.default_rng((m, n, k))
        bound = LARGEST_VALUE if LARGEST_VALUE**2 * k < EXACT else 1
        drawn_x, drawn_w = (
            torch.from_numpy(generator.integers(-bound, bound + 1, shape, np.int8)) for shape in ((m, k), (n, k))
        )
        drawn_bias = torch.from_numpy(generator.integers(-bound, bound + 1, n, np.int8)) if product.bias else None
        arena = Arena(sizes if product.bias else sizes[:2], result)
        stored_x = _tensor(arena.operand((sizes[0],), np.uint8), kind, (m, lda))
        stored_x[:, :k] = drawn_x
        stored_x[:, k:] = math.nan
        stored_w = _tensor(arena.operand((sizes[1],), np.uint8), kind, (padded // columns, k, columns) if columns else (n, k))
        if columns:
            strips = torch.nn.functional.pad(drawn_w.T, (0, padded - n)).reshape(k, padded // columns, columns)
            stored_w[:] = strips.transpose(0, 1)
        else:
            stored_w[:] = drawn_w
        bias = None
        if drawn_bias is not None:
            bias = _tensor(arena.operand((sizes[2],), np.uint8), kind, (n,))
            bias[:] = drawn_bias
        y = _tensor(arena.result((result,), np.uint8), kind, (m, n))
        arena.seal()
        reference = _expected(product, drawn_x, drawn_w, drawn_bias).to(kind)
        return cls(product, stored_x[:, :k], stored_w, bias, y, drawn_w.to(kind), reference, arena)

    @property
    def pointers(self) -> tuple[int, int, int, int]:
        """Where X, W, the bias (0: there is none) and Y begin."""
        return self.x.data_ptr(), self.w.data_ptr(), 0 if self.bias is None else self.bias.data_ptr(), self.y.data_ptr()

    def forget(self) -> None:
        """Fill Y with a value that no product has."""
        self.y.fill_(math.nan)

    def error(self) -> float:
        """The largest absolute difference of Y from what it must be; infinite where nothing was written."""
        largest = (self.y.double() - self.reference.double()).abs().max().item()
        return float(largest) if math.isfinite(largest) else math.inf


def _tensor(memory: Any, kind: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(memory).view(kind).reshape(shape)


def _expected(product: Product, x: Any, w: Any, bias: Any) -> Any:
    """What must come out, in double precision."""
    import torch

    sums = x.double() @ w.double().T
    if bias is not None:
        sums = sums + bias.double()
    return sums if product.activation == "none" else getattr(torch.nn.functional, product.activation)(sums)


def library_call(on: Operands) -> Callable[[int], None]:
    """ATen's product with packed weights and what Inductor does after it: MKL's for fp32, oneDNN's for bf16, where the
    machine has them. Only oneDNN's takes the bias and the activation; they cost the others a pass over the result."""
    import torch

    x, weights, ops, product = on.x, on.weights, torch.ops, on.product
    after: Callable[[Any], Any] = lambda sums: sums  # noqa: E731
    if weights.dtype is torch.float32 and torch._C.has_mkl:
        packed = ops.mkl._mkl_reorder_linear_weight(weights, x.shape[0])

        def multiply() -> Any:
            return ops.mkl._mkl_linear(x, packed, weights, None, x.shape[0])

        if product.bias or product.activation != "none":
            finish, bias = epilogue_pass(product), on.pointers[2]

            def after(sums: Any) -> Any:
                finish(sums.data_ptr(), bias, product.m, product.n)
                return sums
    elif weights.dtype is torch.bfloat16 and ops.mkldnn._is_mkldnn_bf16_supported():
        packed = ops.mkldnn._reorder_linear_weight(weights, x.shape[0])
        attribute = EPILOGUES.get(product.activation, "none")

        def multiply() -> Any:
            return ops.mkldnn._linear_pointwise(x, packed, on.bias, attribute, [], "none")
    else:

        def multiply() -> Any:
            return torch.nn.functional.linear(x, weights, on.bias)

        if product.activation != "none":
            after = getattr(torch.nn.functional, product.activation)

    def loop(launches: int) -> None:
        for _ in range(launches - 1):
            after(multiply())
        on.y.copy_(after(multiply()))

    return loop
