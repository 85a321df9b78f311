"""The tiers of an answer: the one list that Python, C, C++ and the command line share."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from kerncast.errors import InvalidValue


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
ALONE = (Tier.TREE,)
"""A tree without another tier to leave a problem to."""
C_TIERS = {
    str(Tier.MEMO): "",
    str(Tier.TREE): "",
    str(Tier.PORTFOLIO): "",
    str(Tier.FULL): "",
    "auto": "only to ask for: the portfolio, or all configs if there is none, or the tree if it is alone",
    "none": "",
    str(Tier.PIN): "only in answers: a pin decided",
}
"""The tiers of C, in the order of their numbers, each with what its enumerator says. A new one is appended."""
C_TIER_NAMES = tuple(C_TIERS)


def named_tiers(given: str | Iterable[str]) -> tuple[Tier, ...]:
    """Some of the tiers that choose, the quickest first, from their names or from a text such as `tree,portfolio`."""
    names = {str(item).strip() for item in (given.split(",") if isinstance(given, str) else given)} - {""}
    if not names or names - set(CHOOSING):
        raise InvalidValue(f"`tiers` are {', '.join(CHOOSING)} (the memo is always there), got '{', '.join(sorted(names))}'")
    return tuple(tier for tier in CHOOSING if tier in names)
