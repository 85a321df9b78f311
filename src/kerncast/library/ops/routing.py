"""Where the tokens of a mixture-of-experts layer go: how many experts are hit, and the load of the busiest device.

Balanced routing spreads tokens evenly. Otherwise the loads of the experts are drawn from a power law, with a density of x^-a
between 1 and 0.8 times the tokens (while there are fewer tokens than experts: between 0.01 and 2), and scaled to the number of
tokens; the device of interest is the one with the largest load. This is how AIConfigurator's tables were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.core.expr import Expr, Namespace, Table, lookup, maximum, minimum, sqrt, where

LN2 = 0.6931471805599453
# The expected largest of 1, 2, 4 … standard normal numbers.
LARGEST_OF = Table.of([0.0, 0.564, 1.029, 1.424, 1.766, 2.07, 2.343, 2.594, 2.826, 3.04])
# Spread of the loads when tokens are few: 2 / 0.01.
FEW_TOKENS = 200
OCTAVES = 32
POWERS = Table.of([2.0**power for power in range(OCTAVES)])


@dataclass(frozen=True)
class Routing:
    """What arrives at the busiest device."""

    hit: Expr
    """Experts of the device that get a token."""
    load: Expr
    """Tokens of the device's experts together: a token counts once for each of them."""


def balanced(p: Namespace) -> Routing:
    """Tokens spread evenly over experts, and over devices."""
    slots = p.tokens * p.top_k / p.ep
    return Routing(minimum(p.experts / p.ep, maximum(1, slots)), slots)


def power_law(p: Namespace) -> Routing:
    """Loads with the density x^-a, a = imbalance / 100, expected values."""
    local, slots = p.experts / p.ep, p.tokens * p.top_k
    # The formulas divide by a - 1, 2 - a and 3 - a.
    exponent = where(p.imbalance == 100, 101, where(p.imbalance == 200, 201, where(p.imbalance == 300, 301, p.imbalance))) / 100
    steep = exponent - 1
    spread = where(slots > p.experts, maximum(1.5, 0.8 * p.tokens), FEW_TOKENS)
    far = _power(spread, steep)
    mean = steep / (2 - exponent) * (spread * far - 1) / (1 - far)
    square = steep / (3 - exponent) * (spread * spread * far - 1) / (1 - far)
    # An expert is hit if its share rounds to a token.
    least = minimum(spread, maximum(1, 0.5 * p.experts * mean / slots))
    share = (_power(least, steep) - far) / (1 - far)
    deviation = sqrt(maximum(0, square / (mean * mean) - 1) * (1 - 1 / p.ep) / local)
    doublings = sum((1 * (p.ep >= 2**power) for power in range(2, 10)), 1 * (p.ep >= 2))
    excess = 1 + lookup(LARGEST_OF, doublings) * deviation
    load = slots / p.ep * excess
    # While tokens are few, a device has a larger load because more of its experts are hit.
    hit = minimum(local, maximum(1, minimum(local * share * where(slots > p.experts, 1, excess), load)))
    return Routing(hit, minimum(load, minimum(slots, local * p.tokens)))


def _power(x: Expr, exponent: Expr) -> Expr:
    """x to the power of -exponent, x at least 1: (1 - y / 2^12)^(2^12) with y = exponent · ln x.

    Logarithms differ in the last bit between machines, and the power would make that a thousand times larger; so this one is
    made of arithmetic alone, to 5 digits.
    """
    octave = sum((1 * (x >= 2**power) for power in range(2, OCTAVES)), 1 * (x >= 2))
    part = x / lookup(POWERS, octave) - 1
    curve = 0.4418 + part * (-0.2665 + part * (0.147 - 0.0442 * part))
    found = maximum(0, 1 - exponent * LN2 * (octave + part + part * (1 - part) * curve) / 4096)
    for _ in range(12):
        found = found * found
    return found
