"""Searching the declared space of configs with a model: what might be fast, and what was never measured.

A selector chooses among the configs that were seen to work. A search looks at everything that the family declares
and the problem and the device allow, constraints first, so that every answer can be built.
"""

from __future__ import annotations

from kerncast.selecting.search.measure import Measured, measure
from kerncast.selecting.search.run import BUDGET, Finalist, Search, search
from kerncast.selecting.search.strategies import STRATEGIES

__all__ = ["BUDGET", "STRATEGIES", "Finalist", "Measured", "Search", "measure", "search"]
