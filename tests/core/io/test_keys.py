"""Errors about the keys of files."""

import msgspec
import pytest

from kerncast.core.io.foreign import key_rule
from kerncast.errors import BadFile
from kerncast.native.overrides import read_overrides


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parts: list[Inner] = []
    by_name: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "the key 'name' is missing"),
        ({"name": 3}, "'name' must be text, got a whole number"),
        ({"name": "x", "parts": [{}]}, "the key 'parts[0].size' is missing"),
        ({"name": "x", "parts": [{"size": None}]}, "'parts[0].size' must be a whole number, got empty"),
        ({"name": "x", "parts": 3}, "'parts' must be a list, got a whole number"),
        ({"name": "x", "by_name": {"a": {"size": 1, "b`c": 2}}}, "there is no key 'by_name.….b'c'"),
        ([], "it must be a table of keys, got a list"),
    ],
)
def test_a_wrong_key_is_named_with_its_rule(data, said):
    """By its whole name, and without backticks, which mean arguments in messages."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(data, Outer)
    assert key_rule(caught.value) == said


def test_a_pin_without_a_problem_is_refused_by_its_file_and_key(tmp_path):
    """With what the file should hold."""
    file = tmp_path / "overrides.toml"
    file.write_text('[[pin]]\nlabel = "a"\n')
    with pytest.raises(BadFile, match=r"overrides.toml: the key 'pin\[0\].problem' is missing; they have the keys available"):
        read_overrides(file)
