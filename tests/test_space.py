"""Spaces: listing, counting, sampling, validating, projecting."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerncast.core import enumeration
from kerncast.core.expr import Namespace, Symbol, log2, symbol
from kerncast.core.space import Bool, Categorical, Choice, Constraint, Int, PowerOfTwo, Space
from kerncast.errors import InvalidValue, NotFound
from kerncast.testing import repeats

KIND = Categorical({"tiled": 3, "library": 1})


def make_space(parameters, rules=lambda c: []):
    """A config space with constraints traced from its own symbols."""
    declared = Space("toy", "c", parameters)
    return Space("toy", "c", parameters, rules(Namespace("toy", declared.symbols)))


def toy_space():
    tiled = lambda c: c.kind == "tiled"  # noqa: E731
    return make_space(
        {
            "kind": KIND,
            "m": Choice(2, 3, 6, when=tiled),
            "n": PowerOfTwo(1, 8, when=tiled),
            "flag": Bool(),
            "extra": Int(0, 4, step=2),
        },
        lambda c: [
            Constraint("small", "m × n must be at most 12", c.m * c.n <= 12),
            Constraint("flagged", "extra needs the flag", (c.extra == 0) | (c.flag != 0)),
        ],
    )


def brute_force(space):
    """Every combination, filtered by `validate`: the slow truth."""
    values = [[p.value(i) for i in range(p.size)] + ([None] if p.when else []) for p in space.parameters.values()]
    points = (dict(zip(space.parameters, combination, strict=True)) for combination in itertools.product(*values))
    return [point for point in points if not space.validate(point)]


def as_set(points):
    return {tuple(sorted(point.items(), key=lambda item: item[0])) for point in points}


def steps(space, a, b):
    """Index steps between two points, as the definition says."""
    total = 0
    for name, parameter in space.parameters.items():
        if a[name] is None or b[name] is None:
            continue
        if parameter.ordered:
            total += abs(parameter.nearest(a[name]) - parameter.index(b[name]))
        else:
            total += a[name] != b[name]
    return total


def test_enumeration_count_and_validation_agree_with_brute_force():
    """The valid points are listed once each, conditional parameters None where they do not apply."""
    space = toy_space()
    truth = brute_force(space)
    listed = list(space.enumerate())
    assert as_set(listed) == as_set(truth)
    assert len(listed) == len(truth) == space.count()
    assert all(point["m"] is None and point["n"] is None for point in listed if point["kind"] == "library")


@st.composite
def random_spaces(draw):
    kinds = st.one_of(
        st.integers(1, 4).map(lambda n: Int(1, n)),
        st.just(Bool()),
        st.just(PowerOfTwo(1, 8)),
        st.just(Choice(3, 5, 7)),
        st.just(Categorical({"a": 2, "b": 0})),
    )
    parameters = {f"x{i}": kind for i, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=6)))}
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(list(parameters)), st.sampled_from(list(parameters)), st.integers(1, 12)), max_size=4
        )
    )
    return make_space(
        parameters,
        lambda c: [
            Constraint(f"r{i}", "rule", getattr(c, a) + 2 * getattr(c, b) <= limit) for i, (a, b, limit) in enumerate(pairs)
        ],
    )


@settings(max_examples=repeats(80, 5_000))
@given(space=random_spaces(), data=st.data())
def test_random_spaces_match_brute_force(space, data):
    """Listing, counting, sampling all and projecting, on spaces nobody designed."""
    truth = brute_force(space)
    assert as_set(space.enumerate()) == as_set(truth)
    assert space.count() == len(truth)
    sampled = space.sample(len(truth) + 3, seed=1)
    assert as_set(sampled.iter_rows(named=True)) == as_set(truth)
    start = {name: p.value(data.draw(st.integers(0, p.size - 1))) for name, p in space.parameters.items()}
    nearest = space.project(start)
    if not truth:
        assert nearest is None
    else:
        assert not space.validate(nearest)
        assert steps(space, start, nearest) == min(steps(space, start, point) for point in truth)


def test_a_space_of_a_billion_points_with_ten_thousand_valid_ones_is_counted():
    """Constraints are applied as soon as their parameters are bound: to visit every point would take hours."""
    sides = {name: Int(1, 100) for name in ("a", "b", "c")} | {name: Int(0, 9) for name in ("d", "e", "f")}
    space = make_space(sides, lambda c: [
        Constraint("same", "b must equal a", c.b == c.a),
        Constraint("twice", "c must equal a", c.c == c.a),
        Constraint("sum", "d + e + f must be 13 or 14", (c.d + c.e + c.f == 13) | (c.d + c.e + c.f == 14)),
    ])  # fmt: skip
    assert math.prod(p.size for p in space.parameters.values()) == 10**9
    assert space.count() == 100 * 150


def test_samples_are_uniform_different_and_seeded():
    """Every valid point is equally likely, whatever the shape of the space."""
    space = toy_space()
    total = space.count()
    seen = Counter()
    for seed in range(200):
        frame = space.sample(6, seed)
        assert frame.height == frame.n_unique() == 6
        seen.update(tuple(row) for row in frame.iter_rows())
    assert len(seen) == total
    expected = 200 * 6 / total
    chi2 = sum((count - expected) ** 2 / expected for count in seen.values())
    assert chi2 < total + 6 * math.sqrt(2 * total)
    assert space.sample(5, 7).equals(space.sample(5, 7))
    assert not space.sample(5, 7).equals(space.sample(5, 8))


def test_huge_ranges_are_sampled_and_projected_without_being_listed():
    """A problem space of 2^93 points is as cheap as a small one."""
    space = make_space(
        {name: Int(1, 2**31 - 1) for name in "MNK"}, lambda c: [Constraint("even", "M must be even", c.M % 2 == 0)]
    )
    frame = space.sample(50, 0)
    assert frame.height == 50
    assert (frame["M"] % 2 == 0).all()
    assert frame["N"].max() > 2**29
    assert space.project({"M": 7, "N": 2**40, "K": -5}) == {"M": 6, "N": 2**31 - 1, "K": 1}
    assert next(space.enumerate()) == {"M": 2, "N": 1, "K": 1}


def test_validate_reports_every_broken_rule_at_once_in_words():
    """Unknown and missing keys, values outside, what does not apply, then the constraints."""
    space = toy_space()
    broken = {
        item.name: item.sentence for item in space.validate({"kind": "tiled", "m": 4, "flag": 1, "colour": 3, "extra": 1})
    }
    assert broken == {
        "colour": "unknown parameter of toy 'colour': known: extra, flag, kind, m, n",
        "m": "m must be one of 2, 3, 6, got 4",
        "n": "toy needs n: a power of two from 1 to 8",
        "flag": "flag must be true or false, got 1",
        "extra": "extra must be a whole number from 0 to 4 in steps of 2, got 1",
    }
    (inactive,) = space.validate({"kind": "library", "m": 2, "flag": True, "extra": 0})
    assert "does not apply here" in inactive.sentence
    rules = space.validate({"kind": "tiled", "m": 6, "n": 8, "flag": False, "extra": 2})
    assert [item.sentence for item in rules] == ["m × n must be at most 12", "extra needs the flag"]
    with pytest.raises(InvalidValue, match="must be at most 12, got m=6 n=8; extra needs the flag, got"):
        space.check({"kind": "tiled", "m": 6, "n": 8, "flag": False, "extra": 2})
    assert space.check({"kind": "library", "flag": True, "extra": 4})["m"] is None


def test_constraints_with_unbound_symbols_are_deferred_until_they_are_bound():
    """A limit of the device or the problem narrows the space only when it is known."""
    limit = symbol(Symbol("hw.limit"))
    space = make_space({"m": Choice(1, 2, 3, 4)}, lambda c: [Constraint("fits", "m must fit", c.m <= limit)])
    assert space.count() == 4
    assert space.count({"hw.limit": 2}) == 2
    assert space.count({"hw.limit": 0}) == 0
    assert space.project({"m": 4}, {"hw.limit": 2}) == {"m": 2}
    assert space.project({"m": 4}, {"hw.limit": 0}) is None
    assert not space.validate({"m": 4})
    assert space.validate({"m": 4}, {"hw.limit": 2})


def test_projection_ties_go_to_the_point_that_comes_first():
    """Deterministic, whatever order the search finds them in."""
    space = make_space({"a": Int(0, 4), "b": Int(0, 4)}, lambda c: [Constraint("sum", "a + b must be 3", c.a + c.b == 3)])
    assert space.project({"a": 2, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(NotFound, match="unknown parameter of toy 'z'"):
        space.project({"z": 1})


def test_bad_declarations_are_refused():
    """Codes are explicit and different, choices ascend, a condition on a log is refused."""
    with pytest.raises(InvalidValue, match="different codes"):
        Categorical({"a": 0, "b": 0})
    with pytest.raises(InvalidValue, match="ascending order"):
        Choice(4, 2)
    with pytest.raises(InvalidValue, match="low ≤ high"):
        Int(3, 2)
    with pytest.raises(InvalidValue, match="powers of two"):
        PowerOfTwo(3, 8)
    with pytest.raises(InvalidValue, match="of a log or a root is refused"):
        make_space({"a": Int(1, 4)}, lambda c: [Constraint("x", "y", log2(c.a) < 2)])


def test_a_spaces_digest_changes_with_its_meaning_only():
    """Codes, conditions and constraints count; documentation does not."""
    base = make_space({"kind": Categorical({"a": 0, "b": 1})})
    assert base.digest == make_space({"kind": Categorical({"a": 0, "b": 1}, doc="words")}).digest
    assert base.digest != make_space({"kind": Categorical({"a": 1, "b": 0})}).digest
    assert (
        base.digest
        != make_space({"kind": Categorical({"a": 0, "b": 1})}, lambda c: [Constraint("r", "s", c.kind == "a")]).digest
    )


def test_the_corners_of_a_space_are_answers_too(monkeypatch):
    """No parameters, no points, no samples, numpy integers, a partial start, a search that would not end."""
    empty = make_space({})
    assert (empty.count(), list(empty.enumerate()), empty.project({})) == (1, [{}], {})
    assert toy_space().sample(0, 0).height == 0
    assert make_space({"a": Choice(1, 100)}).project({"a": np.uint32(3)}) == {"a": 1}
    big = make_space({"M": Int(1, 2**31 - 1), "dtype": Categorical({"x": 0, "y": 1})})
    assert big.project({"dtype": "y"}) == {"M": 1, "dtype": "y"}
    diagonal = make_space({"a": Int(1, 2**30), "b": Int(1, 2**30)}, lambda c: [Constraint("same", "a must be b", c.a == c.b)])
    monkeypatch.setattr(enumeration, "PROJECTED_ROWS_LIMIT", 20_000)
    with pytest.raises(InvalidValue, match="start closer"):
        diagonal.project({"a": 1, "b": 2**29})
    with pytest.raises(InvalidValue, match=r"c\.a is one of the parameters that are searched"):
        diagonal.count({"c.a": 3})


def test_conditions_may_build_on_each_other_but_not_in_a_circle():
    """Declaration order does not matter; a circle is refused when declared."""
    chain = make_space(
        {"a": Bool(), "c": Int(1, 2, default=1, when=lambda c: c.b == 1), "b": Int(1, 2, default=1, when=lambda c: c.a)}
    )
    assert not chain.validate({"a": False})
    assert chain.fill({"a": False}) == {"a": False, "c": None, "b": None}
    assert chain.count() == 1 + 2 + 1
    with pytest.raises(InvalidValue, match="depend on each other"):
        make_space({"a": Int(1, 2, when=lambda c: c.b == 1), "b": Int(1, 2, when=lambda c: c.a == 1)})
    with pytest.raises(InvalidValue, match="the default of a must be"):
        make_space({"a": Int(1, 4, default=9)})
    with pytest.raises(InvalidValue, match="at most 64 bits"):
        Int(1, 2**64)
