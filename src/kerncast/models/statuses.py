"""The statuses of an answer: the one list that Python, C and C++ share."""

from __future__ import annotations

from enum import Flag, StrEnum, auto


class Place(Flag):
    """Where a status may occur."""

    PYTHON = auto()
    """In an `Answer`; other errors are raised."""
    C = auto()
    """As an enumerator of the C and C++ headers."""
    JSON = auto()
    """In the reply to a JSON request."""
    EVERYWHERE = PYTHON | C | JSON


class Answered(StrEnum):
    """The status of an answer. Numbers are those of the C enumerators: a new status gets the next one, none ever changes."""

    OK = "ok", 0, Place.EVERYWHERE, ""
    OUT_OF_RANGE = (
        "out_of_range", 1, Place.EVERYWHERE,
        "unlike what the model was trained on; `config` is the choice if there is a tier, else a fallback, if any fits",
    )  # fmt: skip
    UNSUPPORTED = "unsupported", 2, Place.EVERYWHERE, "the op or the family does not do this at all"
    NO_VALID_CONFIG = "no_valid_config", 3, Place.EVERYWHERE, "no config that the model knows can run this problem"
    BAD_INPUT = "bad_input", 4, Place.C | Place.JSON, "not a problem of this op, or a pointer that must not be NULL is"
    MISMATCH = "mismatch", 5, Place.C, "header and library are from different exports"
    CORRUPT = "corrupt", 6, Place.C | Place.JSON, "the model's own numbers are damaged"
    TOO_SMALL = "too_small", 7, Place.C, "the buffer given is too small, or there is not enough memory"
    UNSURE = (
        "unsure", 8, Place.EVERYWHERE,
        "the tree alone does not decide this problem; `config` is a fallback, if any fits",
    )  # fmt: skip
    NO_MODEL = "no_model", None, Place.JSON, "no available model answers this"

    number: int | None
    places: Place
    doc: str

    def __new__(cls, name: str, number: int | None, places: Place, doc: str) -> Answered:
        member = str.__new__(cls, name)
        member._value_ = name
        member.number, member.places, member.doc = number, places, doc
        return member


C_STATUSES = tuple(sorted((status for status in Answered if Place.C in status.places), key=lambda status: status.number or 0))
"""The statuses of C, by number."""
