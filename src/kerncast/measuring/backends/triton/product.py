"""Tensors of one problem and how a config computes their product: torch and triton, on a GPU or under the interpreter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# The torch types of A and B (and of C, but for those below); AMD's CDNA 3 has its own 8-bit types.
TORCH_TYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "bf8": "float8_e5m2",
    "int8": "int8",
}
CDNA3_TYPES = {"fp8": "float8_e4m3fnuz", "bf8": "float8_e5m2fnuz"}
# What is stored: fp8 products go out as fp16 (E4M3 holds no more than 448), int8 ones as the sums they are.
OUTPUT_TYPES = {"fp8": "float16", "bf8": "float16", "int8": "int32"}
LARGEST_VALUE = 3
# What a config means that does not say it; AMD's arguments are then the compiler's own business.
GROUP_M = 8
AMD = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")
# Sums of whole numbers that fp32 holds exactly.
EXACT = 2**24
# Smooth activations are not exact: a share of a number by its type.
SMOOTH_ROUNDING = {"fp32": 2e-6, "bf16": 2**-7}
OTHER_ROUNDING = 2**-9


@dataclass(frozen=True)
class Tensors:
    """A, B and C of one problem, and the product as it must be; views with the strides of the layout."""

    a: Any
    b: Any
    c: Any
    reference: Any
    tf32: bool = False
    bias: Any = None
    activation: str | None = None
    rounding: float = 0.0
    """The share of a number (or of 1, if that is more) by which it may be off: more than 0 only for smooth activations."""

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        wanted = self.reference.double()
        difference = (self.c.double() - wanted).abs()
        if self.rounding and bool((difference <= self.rounding * wanted.abs().clamp(min=1.0)).all()):
            return 0.0
        largest = difference.max().item()
        return float(largest) if math.isfinite(largest) else math.inf

    def forget(self) -> None:
        """Fill C with a value that no product has."""
        self.c.fill_(math.nan if self.c.dtype.is_floating_point else -(2**31))


def torch_type(dtype: str, architecture: str = "") -> Any:
    """The torch dtype of A and B, or None where torch has none."""
    torch = import_module("torch")
    name = CDNA3_TYPES.get(dtype) if architecture.startswith("gfx94") else None
    return getattr(torch, name or TORCH_TYPES.get(dtype, "none"), None)


def tensors(problem: Mapping[str, Any], where: str, architecture: str = "") -> Tensors:
    """The tensors of a problem on a torch device, always the same for the same problem.

    Inputs are small whole numbers: sums in fp32 are exact, whatever the order, and rounded at most once, when they
    are stored. The check is therefore bit for bit, for tensor cores as well.
    """
    torch = import_module("torch")
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    kind = torch_type(problem["dtype"], architecture)
    generator = torch.Generator().manual_seed(hash((m, n, k, batch)) % 2**63)
    bound = LARGEST_VALUE if LARGEST_VALUE**2 * k < EXACT else 1

    def drawn(*shape: int) -> Any:
        return torch.randint(-bound, bound + 1, shape, generator=generator, dtype=torch.int8).to(where)

    def with_gaps(rows: int, columns: int, apart: int | None, dtype: Any) -> Any:
        return torch.zeros((batch, rows, apart or columns), dtype=dtype, device=where)[:, :, :columns]

    def matrix(rows: int, columns: int, row_major: bool, apart: int | None) -> Any:
        shape = (rows, columns) if row_major else (columns, rows)
        stored = drawn(batch, *shape).to(kind)
        if apart is not None:
            stored = with_gaps(*shape, apart, kind).copy_(stored)
        return stored if row_major else stored.transpose(1, 2)

    a = matrix(m, k, layout[0] == "r", problem.get("lda"))
    b = matrix(k, n, layout[1] == "r", problem.get("ldb"))
    output = getattr(torch, OUTPUT_TYPES.get(problem["dtype"], TORCH_TYPES[problem["dtype"]]))
    # In fp64 the sums are exact without any setting of a library (TF32 …) in between.
    exact = torch.matmul(a.double(), b.double())
    bias, activation = drawn(n).to(output) if problem.get("bias") else None, problem.get("activation")
    exact = activated(exact if bias is None else exact + bias.double(), activation)
    c = with_gaps(m, n, problem.get("ldc"), output)
    reference = exact.to(torch.int64 if output is torch.int32 else torch.float32).to(output)
    smooth = activation not in (None, "relu")
    rounding = SMOOTH_ROUNDING.get(problem["dtype"], OTHER_ROUNDING) if smooth else 0.0
    return Tensors(a, b, c, reference, bool(problem["tf32"]), bias, activation, rounding)


def activated(values: Any, activation: str | None) -> Any:
    """The activation of a tensor, as torch computes it."""
    return values if activation is None else getattr(import_module("torch.nn.functional"), activation)(values)


def launch_triton(on: Tensors, config: Mapping[str, Any]) -> None:
    """Launch our kernel once."""
    kernel, tl = import_module("kerncast.measuring.backends.triton.kernel"), import_module("triton.language")
    (batch, m, k), n = on.a.shape, on.b.shape[2]
    grid = (-(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"]), batch)
    whole = not on.c.dtype.is_floating_point
    kernel.matmul[grid](
        on.a, on.b, on.c, on.c if on.bias is None else on.bias, m, n, k, *on.a.stride(), *on.b.stride(), *on.c.stride(),
        BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"],
        GROUP_M=config.get("GROUP_M") or GROUP_M,
        EVEN_K=k % config["BLOCK_K"] == 0, SUM=tl.int32 if whole else tl.float32, PRECISION="tf32" if on.tf32 else "ieee",
        BIAS=on.bias is not None, ACTIVATION=on.activation or "none",
        num_stages=config["num_stages"], num_warps=config["num_warps"],
        **{name: config[name] for name in AMD if config.get(name) is not None},
    )  # fmt: skip


def launch_library(on: Tensors) -> None:
    """Launch the vendor library's kernel once, as torch chooses it; an activation is a kernel of its own."""
    torch = import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = on.tf32
    one = on.a.shape[0] == 1  # a batch of one takes another path through the library
    a, b, c = (x[0] if one else x for x in (on.a, on.b, on.c))
    if on.bias is None:
        (torch.mm if one else torch.bmm)(a, b, out=c)
    elif one:
        torch.addmm(on.bias, a, b, out=c)
    else:
        torch.baddbmm(on.bias, a, b, out=c)
    if on.activation is not None:
        c.copy_(activated(c, on.activation))
