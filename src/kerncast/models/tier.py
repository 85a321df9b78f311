"""The tiers of an answer: the one list that Python, C, C++ and the command line share."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Which tier answered; the quickest first."""

    MEMO = "memo"
    TREE = "tree"
    PORTFOLIO = "portfolio"
    FULL = "full"
    MEASURE = "measure"
    PIN = "pin"


CHOOSING = (Tier.TREE, Tier.PORTFOLIO, Tier.FULL)
"""The tiers that a caller may ask for; an artefact may have all of them or some."""
C_TIERS = {
    str(Tier.MEMO): "",
    str(Tier.TREE): "",
    str(Tier.PORTFOLIO): "",
    str(Tier.FULL): "",
    "auto": "only to ask for: the portfolio, or all configs if there is none",
    "none": "",
    str(Tier.PIN): "only in answers: a pin decided",
}
"""The tiers of C, in the order of their numbers, each with what its enumerator says. A new one is appended."""
C_TIER_NAMES = tuple(C_TIERS)
