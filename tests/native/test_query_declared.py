"""The JSON entry point in C: paths, spellings and software of the requests that an op declares."""

import json
import re

import pytest
from query_requests import DECLARED, DECLARED_REFUSED
from query_toy import TRAINED_ON

from kerncast.core import software as softwares


@pytest.mark.parametrize("name", DECLARED)
def test_paths_and_spellings_of_the_op_arrive(toy, name):
    """In all forms, beside the parameters' own names; the reply says whose it is."""
    request, wanted = DECLARED[name]
    reply = toy.ask(json.dumps(request))
    assert reply["status"] == "ok"
    assert {key: reply["config"].get(key) for key in wanted} == wanted
    assert (reply["model"], reply["software"]) == ('toy "m"', "abcdef0123456")


@pytest.mark.parametrize("name", DECLARED_REFUSED)
def test_what_the_op_does_not_know_is_unsupported_and_what_cannot_be_is_bad_input(toy, name):
    """A label or a rank that some other system may have is no mistake of the caller's."""
    text, status, position, message = DECLARED_REFUSED[name]
    reply = toy.ask(text)
    assert (reply["status"], reply["position"]) == (status, position)
    assert re.search(message, reply["message"])


SOFTWARE = {
    "abcdef0123456": True, "abcdef0": True, "commit=abcdef0": True, "abcdef01234567": True, "gcc 12 ä": True,
    "compiler=gcc 12 ä": True, "threads=2": True, TRAINED_ON: True, "": False, "{": False, "{}": False, "commit=": False,
    "abcdef": False, "abcdef1": False, "abcdef0123456g": False, "bcdef0123456": False, "compiler=abcdef0123456": False,
    "gcc 12": False, "compiler=gcc": False, "commit=abcdef1234567": False, "x" * 5000: False, "[" * 5000: False,
    '{"threads": 2, "compiler": "gcc 12 ä", "commit": "abcdef0123456"}': True,
    '{"threads": 2, "compiler": "gcc 12 ä"}': False,
    '{"threads": 2, "threads": 2, "commit": "abcdef0123456"}': False,
    '{"threads": 2, "compiler": "gcc 12 ä", "commit": "abcdef0123456", "more": 1}': False,
    '{"threads": 3, "compiler": "gcc 12 ä", "commit": "abcdef0123456"}': False,
}  # fmt: skip


@pytest.mark.parametrize("ascii_only", [True, False])
def test_software_is_the_same_in_c_and_python(toy, ascii_only):
    """Whole, by a part, by NAME=VALUE, in another order, commits by their beginning on either side; escapes decoded."""
    for text, same in SOFTWARE.items():
        reply = toy.ask(json.dumps({"M": 5, "software": text}, ensure_ascii=ascii_only))
        assert ("warning" not in reply) is same, text
        assert softwares.is_same([TRAINED_ON], text) is same, text
