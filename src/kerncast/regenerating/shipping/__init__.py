"""The models that come with the package, built from public tables: which ones, how, and what is checked of them.

`kerncast regenerate shipped` runs it. The tables are those of AIConfigurator (PyPI: aiconfigurator-core) and those that
Tenstorrent published, all Apache-2.0. None of their rows are in the package, only what the models learned.
"""

from kerncast.regenerating.shipping.building import Built, build_shipped
from kerncast.regenerating.shipping.catalogue import PLANS, plans_named
from kerncast.regenerating.shipping.golden import check_golden
from kerncast.regenerating.shipping.plans import Plan

__all__ = ["PLANS", "Built", "Plan", "build_shipped", "check_golden", "plans_named"]
