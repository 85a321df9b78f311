"""A small transformer block for torch.compile, with kernels that a model chooses.

    python transformer_block.py [MODEL]                       compiles it with `backend="kerncast"`
    kerncast torch shapes transformer_block.py             the products in it
    kerncast torch validate MODEL --model-file transformer_block.py

Without MODEL, the store's model for this machine is used: `kerncast regenerate inductor-cpu` makes one.
"""

from __future__ import annotations

import sys
import time

import torch


class Block(torch.nn.Module):
    """Attention, then two layers with gelu; both are added to what came in."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step: (batch, length, width) in and out."""
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(torch.nn.functional.gelu(self.up(self.before_layers(x))))


def example() -> tuple[torch.nn.Module, torch.Tensor]:
    """What the commands above take: a module and its input."""
    torch.manual_seed(0)
    return Block().eval(), torch.randn(1, 16, 512)


def main() -> None:
    """Compile the block with the model's kernels, run it, and print what was chosen."""
    import kerncast.torch

    # On CPUs, products with weights have several kernels only if the weights are constants.
    torch._inductor.config.freezing = True
    block, x = example()
    options = {"model": sys.argv[1]} if len(sys.argv) > 1 else {}
    with torch.no_grad():
        compiled = torch.compile(block, backend="kerncast", options=options)
        began = time.perf_counter()
        result = compiled(x)
        print(f"compiled in {time.perf_counter() - began:.1f} s")
        print(f"largest difference from the block itself: {(result - block(x)).abs().max():.1e}")
    print(kerncast.torch.report())


if __name__ == "__main__":
    main()
