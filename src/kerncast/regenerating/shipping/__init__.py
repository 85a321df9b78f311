"""The models that come with the package, built from public tables: which ones, and how.

`kerncast regenerate shipped` runs it. The tables are those of AIConfigurator (PyPI: aiconfigurator-core) and those that
Tenstorrent published, all Apache-2.0. None of their rows are in the package, only what the models learned.
"""

from kerncast.regenerating.shipping.building import PLANS, build_shipped, plans_named
from kerncast.regenerating.shipping.plans import Plan

__all__ = ["PLANS", "Plan", "build_shipped", "plans_named"]
