"""Named problem sets for gemm: (M, N, K), written as rules rather than lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Shape = tuple[int, int, int]

# The largest prime below each power of two but one, and a few small ones: no tile size divides them.
PRIMES = (17, 31, 37, 61, 127, 251, 509, 1021, 2039, 4093)


@dataclass(frozen=True)
class Transformer:
    """The weight matrices of one layer, as its public configuration gives them."""

    hidden: int
    intermediate: int
    query: int
    key_value: int
    gated: bool = True

    @property
    def projections(self) -> list[tuple[int, int]]:
        """(N, K) of the four products that take one row per token: QKV in one, output, up (with gate), down."""
        return [
            (self.query + 2 * self.key_value, self.hidden),
            (self.hidden, self.query),
            (self.intermediate * (2 if self.gated else 1), self.hidden),
            (self.hidden, self.intermediate),
        ]


TRANSFORMERS = {
    "gpt2": Transformer(768, 3072, 768, 768, gated=False),
    "qwen2.5-0.5b": Transformer(896, 4864, 896, 128),
    "bert-large": Transformer(1024, 4096, 1024, 1024, gated=False),
    "llama-3.2-1b": Transformer(2048, 8192, 2048, 512),
    "phi-3-mini": Transformer(3072, 8192, 3072, 3072),
    "qwen2.5-7b": Transformer(3584, 18944, 3584, 512),
    "gemma-2-9b": Transformer(3584, 14336, 4096, 2048),
    "llama-2-7b": Transformer(4096, 11008, 4096, 4096),
    "llama-3-8b": Transformer(4096, 14336, 4096, 1024),
    "llama-2-13b": Transformer(5120, 13824, 5120, 5120),
    "llama-3-70b": Transformer(8192, 28672, 8192, 1024),
}
# Rows of the activation: sequences that decode together, then tokens of a prompt.
DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
PREFILL_ROWS = (256, 512, 1024, 2048, 4096, 8192)


def _product(*sides: Sequence[int]) -> Iterable[Shape]:
    return ((m, n, k) for m, n, k in itertools.product(*sides))


def _octaves(low: int, high: int, parts: int) -> list[int]:
    """Sizes from `low` to `high`, `parts` evenly spaced ones per doubling."""
    sizes = []
    while low < high:
        sizes += [low + low * part // parts for part in range(parts)]
        low *= 2
    return [*sizes, high]


def cubes() -> Iterable[Shape]:
    """M = N = K, four sizes per doubling."""
    return ((size, size, size) for size in _octaves(16, 8192, 4))


def llm() -> Iterable[Shape]:
    """The projections of well-known transformers, from one decoded token to a long prompt."""
    weights = dict.fromkeys(weight for model in TRANSFORMERS.values() for weight in model.projections)
    return ((m, n, k) for n, k in weights for m in (*DECODE_ROWS, *PREFILL_ROWS))


def tall_skinny() -> Iterable[Shape]:
    """One long side of C and one short one, either way round."""
    long, short, depth = (2048, 4096, 8192, 16384, 28672), (4, 8, 16, 32, 64, 128, 256), (64, 256, 1024, 4096)
    yield from _product(long, short, depth)
    yield from _product(short, long, depth)


def k_heavy() -> Iterable[Shape]:
    """A small C and a long sum: what splitting K is for."""
    return _product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (4096, 8192, 16384, 32768, 65536))


def primes() -> Iterable[Shape]:
    """Sizes that no tile divides: all three, or one of them with round ones."""
    yield from ((size, size, size) for size in PRIMES)
    for size, round_size in itertools.product(PRIMES, (64, 512, 4096)):
        yield from ((size, round_size, round_size), (round_size, size, round_size), (round_size, round_size, size))
    yield from _product((31, 251, 2039), (37, 509, 1021), (61, 127, 4093))


def edge() -> Iterable[Shape]:
    """Degenerate shapes: a side of 1 (dot products, outer products, gemv), then sides smaller than any tile."""
    sizes = (1, 2, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    few, tiny = (64, 256, 1024, 4096), (2, 3, 4, 7, 8, 15, 16)
    # A row times a matrix is what `llm` and `wide` are full of, so M = 1 takes fewer partners here.
    yield from _product((1,), (1, 16, 128, 1024, 7168), (1, 16, 128, 1024, 7168))
    yield from _product(sizes, (1,), sizes)
    yield from _product(sizes, sizes, (1,))
    yield from _product(few, tiny, few)
    yield from _product(few, few, tiny)
    yield from _product((2, 3, 7), (2, 3, 7), (2, 3, 7))


def wide() -> Iterable[Shape]:
    """Broad coverage in about 700 shapes: a sample of every other set, and the plain middle ground."""
    n_sides, k_sides = (512, 1536, 4096, 7168, 8192), (256, 1024, 4096, 7168)
    yield from _product((1,), (512, 1024, 1536, 2048, 3072, 4096, 7168, 8192, 14336, 28672), _octaves(256, 8192, 2))
    yield from _product((2, 4, 8, 16, 32, 48, 64, 96, 128), n_sides, k_sides)
    yield from _product((192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 12288, 16384), n_sides, (256, 1024, 2048, 7168))
    yield from ((size, size, size) for size in _octaves(16, 8192, 2))
    yield from ((size, size, size) for size in (576, 1152, 2304, 4608, *PRIMES))
    for size in (17, 37, 127, 251, 576, 1152):
        yield from ((size, 4096, 4096), (4096, size, 4096), (4096, 4096, size))
    yield from _product((16, 64, 256), (16, 64, 256), (4096, 8192, 16384, 32768))
    yield from _product((4096, 8192, 16384), (32, 64, 128, 256), (1024, 4096))
    yield from _product((4, 16, 64), (8192, 16384, 28672), (1024, 4096, 8192))
    yield from _product((1024, 4096, 8192), (1024, 4096, 8192), (16, 32, 64, 128))
    yield from ((32, 4096, 11008), (32, 11008, 4096), (32, 8192, 28672), (20480, 4096, 7168), (20480, 7168, 2048))


def small() -> Iterable[Shape]:
    """27 shapes for a first look: cubes, two transformers with one token and with 32, a deep, a shallow and a flat product."""
    yield from ((2**power, 2**power, 2**power) for power in range(6, 14))
    for model, rows in itertools.product(("llama-2-7b", "llama-3-70b"), (1, 32)):
        yield from ((rows, n, k) for n, k in TRANSFORMERS[model].projections)
    yield from ((256, 256, 8192), (8192, 8192, 256), (8192, 256, 4096))


SETS: dict[str, Callable[[], Iterable[Shape]]] = {
    rule.__name__: rule for rule in (small, cubes, llm, tall_skinny, k_heavy, primes, edge, wide)
}
NAMED_SETS = {"gemm": (("M", "N", "K"), SETS)}
