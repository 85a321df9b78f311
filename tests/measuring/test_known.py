"""What a collection knows of its vectors: little memory, and the same answers as plain dictionaries."""

import dataclasses
import random
import tracemalloc

import msgspec
import numpy as np
import polars as pl

from kerncast.data.journal import Outcome
from kerncast.measuring.known import (
    DONE,
    DOUBTFUL,
    FEWEST_WAITING,
    NEAR,
    RACED_PER_PROBLEM,
    UNSURE,
    KeyedColumns,
    KnownVectors,
    digest,
)

BYTES_PER_VECTOR = 64


def key_of(number):
    return digest(str(number)).hex()


def test_known_numbers_are_those_of_a_dictionary():
    """Set in any order, again, before and after they are sorted in; also keys that end in zeros, and texts that are no key."""
    known, plain, draw = KeyedColumns(a=(np.int64, -1), b=(np.float64, 0.0)), {}, random.Random(0)
    keys = [key_of(number) for number in range(3 * FEWEST_WAITING)] + ["0" * 24, "ab" + "0" * 22, "k", ""]
    draw.shuffle(keys)
    for turn in range(2):
        for number, key in enumerate(keys[turn:]):
            known.set(key, **({"a": number} if number % 3 else {"b": number / 7}))
            entry = plain.setdefault(key, {"a": -1, "b": 0.0})
            entry["a" if number % 3 else "b"] = number if number % 3 else number / 7
    assert len(known) == len(plain)
    assert all(known.get(key, name) == value for key, entry in plain.items() for name, value in entry.items())
    assert known.get(key_of(-1), "a") == -1
    asked = pl.Series([*keys[:50], key_of(-1), "cd" + "0" * 22])
    assert known.marked(asked, "a", 1).tolist() == [bool(plain.get(key, {"a": 0})["a"] & 1) for key in asked]
    assert KeyedColumns(a=(np.uint8, 0)).marked(asked, "a", 1).tolist() == [False] * len(asked)


def test_near_ties_are_the_fastest_few_of_each_problem():
    """As computed one problem at a time; what turned out wrong is not raced, nor is a problem with a single fast config."""
    vectors, draw, plain = KnownVectors(), random.Random(0), {}
    for at in range(6000):
        problem, key = {"M": draw.randrange(150), "dtype": "fp16"}, key_of(draw.randrange(4000))
        if key in plain and plain[key][0] != problem["M"]:
            continue
        time_ns, mad = 100.0 + draw.randrange(12) / 2, draw.choice([0.0, 0.5, 3.0])
        vectors.add(key, problem, time_ns, mad, at, unsure=at % 5 == 0)
        plain[key] = (problem["M"], time_ns, mad, at)
        if at % 50 == 0:
            assert vectors.forget(key, problem)
            del plain[key]
    expected = []
    for number in range(150):
        own = sorted((t, key, mad, at) for key, (problem, t, mad, at) in plain.items() if problem == number)
        limit = own[0][0] * (1 + max(NEAR, 3 * own[0][2] / own[0][0]))
        raced = [at for t, _, _, at in own[:RACED_PER_PROBLEM] if t <= limit]
        expected += [raced] if len(raced) > 1 else []
    groups = vectors.near_ties()
    assert sorted(group.tolist() for group in groups) == sorted(expected)
    assert groups.vectors == sum(map(len, expected))
    unsure = sorted(at for _, _, _, at in plain.values() if at % 5 == 0)
    found = vectors.unsure(7)
    assert [group.tolist() for group in found] == [unsure[start : start + 7] for start in range(0, len(unsure), 7)]
    assert sorted(np.concatenate(list(dataclasses.replace(found, seed=3))).tolist()) == unsure
    assert vectors.unsure(7).vectors == 0
    assert list(KnownVectors().near_ties()) == []


def test_a_vector_does_not_race_against_itself():
    """A second, faster time replaces the first."""
    vectors = KnownVectors()
    for at, time_ns in enumerate((100.0, 99.0)):
        vectors.add("k", {"M": 1}, time_ns, 1.0, at, unsure=False)
    assert list(vectors.near_ties()) == []
    vectors.add("l", {"M": 1}, 100.0, 1.0, 2, unsure=False)
    assert [group.tolist() for group in vectors.near_ties()] == [[1, 2]]


def test_a_forgotten_best_time_is_not_known_until_the_next_one():
    """A wrong result must not make its neighbours look slow."""
    vectors = KnownVectors()
    for key, time_ns in (("a", 50.0), ("b", 90.0)):
        vectors.add(key, {"M": 1}, time_ns, 0.0, 0, unsure=False)
    assert vectors.best_ns({"M": 1}) == 50.0
    assert vectors.forget("a", {"M": 1})
    assert not vectors.forget("a", {"M": 1})
    assert (vectors.best_ns({"M": 1}), vectors.best_ns({"M": 2}), vectors.time_ns("a")) == (0.0, 0.0, None)
    vectors.add("b", {"M": 1}, 80.0, 0.0, 1, unsure=False)
    assert vectors.best_ns({"M": 1}) == 80.0


def test_a_vector_takes_few_bytes_even_if_each_has_a_problem_of_its_own_and_is_unsure(monkeypatch):
    """The memory of a supervisor grows with a plan of millions of vectors by this alone."""
    monkeypatch.setattr("kerncast.measuring.known.FEWEST_WAITING", 25)
    vectors, count = KnownVectors(), 3_200
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            key = key_of(number)
            vectors.mark(key, DONE)
            vectors.mark(key, DOUBTFUL)
            vectors.add(key, {"M": number, "N": 1, "dtype": "fp16"}, 100.0 + number, 1.0, number, unsure=True)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # What waits to be sorted in does not grow with the vectors.
    waiting = 2 * 25 * 600
    assert (grown - waiting) / count < BYTES_PER_VECTOR
    assert vectors.has(key_of(5), UNSURE)
    assert vectors.doubtful == count


def test_a_loaded_journal_gives_the_labels_of_its_records_one_by_one():
    """Times, marks, near-ties and best times; the last record of a vector counts, and retried failures are not done."""
    draw, plain, loaded, last, records = random.Random(1), KnownVectors(), KnownVectors(), {}, []
    for at in range(5000):
        key, problem = key_of(draw.randrange(2500)), {"M": draw.randrange(40), "dtype": "fp16"}
        problem = last[key][1] if key in last else problem
        status = draw.choice(["ok", "ok", "ok", "crash", "timeout"])
        time_ns = 100.0 + draw.randrange(50) if status == "ok" else None
        unsure = status == "ok" and draw.random() < 0.2
        raw = msgspec.Raw(msgspec.json.encode(problem))
        records.append((at, Outcome(key, status, raw, at, at // 64, time_ns, 0.5, unsure)))
        last[key] = (at, problem, status, time_ns, unsure)
    for key, (at, problem, status, time_ns, unsure) in last.items():
        plain.mark(key, DONE, status != "timeout")
        if time_ns is not None:
            plain.mark(key, DOUBTFUL, unsure)
            plain.add(key, problem, time_ns, 0.5, at, unsure)
    loaded.expect(len(last))
    batches = (tuple(map(list, zip(*records[at : at + 700], strict=True))) for at in range(0, 5000, 700))
    assert loaded.load(batches, {"timeout"}) == (5000, 5000 // 64 + 1)
    assert len(loaded) == len(last)
    assert all(loaded.has(key, flag) == plain.has(key, flag) for key in last for flag in (DONE, DOUBTFUL, UNSURE))
    assert all(loaded.time_ns(key) == plain.time_ns(key) for key in last)
    assert all(loaded.best_ns({"M": m, "dtype": "fp16"}) == plain.best_ns({"M": m, "dtype": "fp16"}) for m in range(41))
    near = [sorted(sorted(group.tolist()) for group in vectors.near_ties()) for vectors in (loaded, plain)]
    assert near[0] == near[1]
    keys = pl.Series([key_of(number) for number in range(3000)])
    loaded.mark_done(keys)
    assert loaded.done(keys).all()
    assert loaded.time_ns(key_of(2999)) is None
    assert all(loaded.time_ns(key) == plain.time_ns(key) for key in last)


def test_memory_for_expected_vectors_is_taken_at_once_and_stays():
    """What comes later finds its place there: the arrays are the same, and no second copy is made while they are filled."""
    vectors = KnownVectors()
    vectors.expect(50_000)
    before = {name: values.ctypes.data for name, values in vectors._vectors._all.items()}
    tracemalloc.start()
    for number in range(50_000):
        vectors.mark(key_of(number), DONE)
    vectors.done(pl.Series([key_of(0)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {name: values.ctypes.data for name, values in vectors._vectors._all.items()} == before
    assert vectors._vectors.column("flags").sum() == 50_000 * DONE
    assert peak < 50_000 * BYTES_PER_VECTOR
