"""One list of statuses: what Python, C and C++ have comes from it, and numbers never change."""

import re

from kerncast.models.answer import Answered, StatusPlace
from kerncast.native.binding import C_STATUSES
from kerncast.native.header import enumerations


def test_the_numbers_of_the_c_enumerators_are_pinned():
    """Programs that were built with an older header go on understanding newer libraries."""
    found = dict(re.findall(r"PICKER_((?!TIER_|PIN_)\w+) = (\d+),", enumerations("picker", "")))
    assert found == {
        "OK": "0", "OUT_OF_RANGE": "1", "UNSUPPORTED": "2", "NO_VALID_CONFIG": "3", "BAD_INPUT": "4", "MISMATCH": "5",
        "CORRUPT": "6", "TOO_SMALL": "7", "UNSURE": "8",
    }  # fmt: skip
    assert [status.number for status in C_STATUSES] == list(range(len(C_STATUSES)))


def test_the_numbers_of_the_tiers_are_pinned():
    """As for statuses; Python reads them by the same list."""
    found = dict(re.findall(r"PICKER_TIER_(\w+) = (\d+),", enumerations("picker", "")))
    assert found == {"MEMO": "0", "TREE": "1", "PORTFOLIO": "2", "FULL": "3", "AUTO": "4", "NONE": "5", "PIN": "6"}


def test_each_status_says_where_it_may_occur():
    """A request may meet no model, which a model cannot say; room and headers are matters of C alone."""
    places = {status: status.places for status in Answered}
    assert places[Answered.NO_MODEL] is StatusPlace.JSON
    assert places[Answered.MISMATCH] is StatusPlace.C
    assert places[Answered.TOO_SMALL] is StatusPlace.C
    assert [str(status) for status in Answered if StatusPlace.PYTHON in status.places] == [
        "ok", "out_of_range", "unsupported", "no_valid_config", "unsure",
    ]  # fmt: skip
    for status in Answered:
        assert (status.number is not None) == (StatusPlace.C in status.places)
