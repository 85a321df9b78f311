"""Formulas as text: Python's arithmetic and nothing else of Python."""

import sys

import pytest

from kerncast.core.expr import Namespace, Program, Symbol, symbol
from kerncast.core.expr.trace import DEEPEST, LONGEST, formula
from kerncast.errors import InvalidValue, KerncastError, NotFound

P = Namespace("problem", {"M": symbol(Symbol("p.M")), "mode": symbol(Symbol("p.mode", (("fast", 0), ("exact", 1))))})
C = Namespace("config", {"tile": symbol(Symbol("c.tile")), "both": symbol(Symbol("c.both"))})
HW = Namespace("hw", {"num_cus": symbol(Symbol("hw.num_cus"))})
SPACES = {"p": P, "c": C, "hw": HW}
VALUES = {"p.M": 100, "p.mode": 1, "c.tile": 32, "c.both": 0, "hw.num_cus": 8}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil_div(M, tile) * 2 + 1", 9),
        ("p.M - c.tile // 3", 90),
        ("M % tile", 4),
        ("-M ** 2 / 4", -2500),
        ("min(M, tile, 7) + max(1, hw.num_cus)", 15),
        ("1 < tile <= 32", 1),
        ("1 < tile < 32", 0),
        ("mode == 'exact' and not both", 1),
        ("'fast' != mode or both", 1),
        ("tile if mode == 'fast' else M", 100),
        ("where(M > 50, log2(tile), 0)", 5),
        ("abs(tile - M) + floor(2.5) + ceil(1.2) + sqrt(16) + mod(7, 4)", 79),
        ("True + 1e3", 1001),
    ],
)
def test_a_formula_means_what_python_means(text, value):
    """Operators, comparisons in a row, labels, functions, names with and without their space."""
    assert Program({"x": formula(text, SPACES)}).scalar(VALUES)["x"] == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a formula"),
        ("M +", "not a formula"),
        ("M = 3", "not a formula"),
        ("(" * 5000 + "M", "at most 2,000 characters"),
        ("(" * 900 + "M" + ")" * 900, "not a formula"),
        ("-" * 1900 + "M", "not a formula|nests"),
        ("x" * (LONGEST + 1), "at most"),
        ("N + 1", "unknown name 'N'"),
        ("p.N", "unknown name in p 'N'"),
        ("p.__class__", "unknown name in p"),
        ("os.system('x')", "unknown function"),
        ("__import__('os')", "unknown function '__import__'"),
        ("M.real", "not arithmetic"),
        ("[M]", "List is not arithmetic"),
        ("lambda: M", "Lambda is not arithmetic"),
        ("(M := 3)", "NamedExpr is not arithmetic"),
        ("'text'", "may only be compared"),
        ("mode == 'slow'", "no label 'slow'"),
        ("mode < 'fast'", "labels have no order"),
        ("M == 'fast'", "not categorical"),
        ("M ** tile", "exponent"),
        ("M ** 99", "exponent"),
        ("M << 2", "LShift"),
        ("M in tile", "In is not known"),
        ("1e999", "finite"),
        ("9" * 1500, "too large"),
        ("log2(M, 2)", "takes 1 arguments"),
        ("min()", "at least 1"),
        ("min(*tile)", "not arithmetic"),
        ("floor(log2(M))", "log|root|inexact|discrete"),
        ("M\x00", "not a formula"),
        ("\ud800", "not a formula"),
        ("f'{M}'", "not arithmetic"),
        ("8 * class", "'class' is a word of its language: give the parameter another name"),
    ],
)
def test_everything_else_is_refused_in_a_sentence(text, why):
    """Nothing is run: calls, attributes, comprehensions, huge numbers and deep nesting are errors with the formula."""
    with pytest.raises((InvalidValue, NotFound), match=why) as caught:
        formula(text, SPACES)
    assert isinstance(caught.value, KerncastError)
    assert len(str(caught.value)) < 1000


def test_nesting_is_bounded_whatever_the_program_allows():
    """The bound is the same in a program that lets Python recurse deeply: some libraries raise that limit on import."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert formula("-" * (DEEPEST - 1) + "M", SPACES) is not None
        with pytest.raises(InvalidValue, match=f"nests more than {DEEPEST} deep"):
            formula("-" * DEEPEST + "M", SPACES)
    finally:
        sys.setrecursionlimit(before)


def test_a_name_in_both_spaces_must_say_which():
    """`x` alone is refused where the problem and the config have an x."""
    twice = {"p": P, "c": Namespace("config", {"M": symbol(Symbol("c.M"))})}
    with pytest.raises(InvalidValue, match=r"write p\.M or c\.M"):
        formula("M", twice)
    assert formula("c.M", twice) is symbol(Symbol("c.M"))
