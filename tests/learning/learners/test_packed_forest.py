"""Packed forests: LightGBM's sums to the last bit from numpy alone, and damaged files refused by name."""

import io
import zipfile

import numpy as np
import pytest

from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.contract import Fitting, Target, read_arrays, write_arrays
from kerncast.learning.learners.gbdt import PACKED, Gbdt
from kerncast.learning.learners.kinds import options_of
from kerncast.learning.learners.packed_forest import DEEPEST, packed, unpacked
from kerncast.learning.learners.trees import Tree, sum_of
from kerncast.testing.models import synthetic_table


@pytest.fixture(scope="module")
def fitted():
    """Forests for times, order and failures, and what they were fitted on."""
    table = synthetic_table(problems=40)
    options = options_of(Gbdt, {"trees": 60, "leaves": 31, "bags": 2, "library_trees": 4})
    return table, Gbdt(options).fit(table, Fitting(Target("relative")))


def test_packed_forests_predict_what_lightgbm_predicts_to_the_last_bit(fitted, tmp_path):
    """Times, scores and expected failures are equal as float64, on training rows and on values next to the thresholds."""
    table, learner = fitted
    learner.save_packed(tmp_path)
    loaded = Gbdt.load(tmp_path, learner.options)
    assert loaded.packed
    assert loaded.names_ == learner.names_
    assert loaded.size() == learner.size()
    rows = table.rows
    near = np.nextafter(rows.features, np.where(np.arange(rows.features.shape[1]) % 2, np.inf, -np.inf))
    for features in (rows.features, near, rows.features[:1]):
        asked = rows.take(np.arange(len(features)))
        asked.__dict__["features"] = features
        ours, theirs = loaded.predict(asked), learner.predict(asked)
        assert np.array_equal(ours.target, theirs.target)
        assert np.array_equal(ours.score, theirs.score)
        assert np.array_equal(loaded.fails(asked), learner.fails(asked))


def test_trees_come_back_as_they_were_packed(fitted):
    """A forest that is exported from packed arrays is the one that was grown; a tree of one leaf is a tree."""
    _, learner = fitted
    stump = Tree(*(np.empty(0, kind) for kind in (np.int64, np.float64, np.int64, np.int64)), np.array([0.25]))
    forests = {"time": [[stump, *learner.trees["time"][0], stump]]}
    _, found = unpacked(packed(forests, learner.names_))
    trees = found["time"][0].trees()
    for mine, theirs in zip(trees, forests["time"][0], strict=True):
        for name in Tree.__dataclass_fields__:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    features = np.random.default_rng(0).normal(size=(50, len(learner.names_)))
    assert np.array_equal(found["time"][0].predict(features), sum_of(trees, features))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("format", 9, "format 1"),
        ("thresholds", np.nan, "one table for each feature"),
        ("time.0.feature", 200, "tests a feature"),
        ("time.0.threshold", 255, "names a threshold"),
        ("time.0.left", 200, "more nodes below it"),
        ("time.0.value", np.inf, "not finite"),
        ("time.0.left", None, "is missing"),
        ("time.0.nodes", None, "its forests are rank, valid"),
        ("format", np.inf, "format 1"),
        ("time.0.nodes", 2**62, "do not make trees"),
    ],
)
def test_a_damaged_packed_file_is_refused_by_name(fitted, tmp_path, name, value, words):
    """Whatever is wrong with the arrays, the error names the file and what is wrong, and nothing is predicted."""
    _, learner = fitted
    learner.save_packed(tmp_path)
    arrays = read_arrays(tmp_path / PACKED)
    if value is None:
        del arrays[name]
    else:
        arrays[name] = np.where(np.arange(arrays[name].size).reshape(arrays[name].shape) == 0, value, arrays[name])
    write_arrays(tmp_path / PACKED, arrays)
    with pytest.raises(BadFile, match=words) as refused:
        Gbdt.load(tmp_path, learner.options)
    assert PACKED in str(refused.value)


def test_trees_that_are_chains_are_refused(fitted):
    """Every row walks a tree to its end, so a chain of many nodes would take for ever."""
    _, learner = fitted
    nodes = DEEPEST + 1
    chain = {"nodes": [nodes], "feature": [0] * nodes, "threshold": [0] * nodes, "left": range(nodes)[::-1]}
    arrays = {f"time.0.{name}": np.array(values) for name, values in chain.items()}
    arrays["time.0.value"] = np.zeros(nodes + 1)
    with pytest.raises(InvalidValue, match="deeper than"):
        unpacked({**packed({"time": learner.trees["time"]}, learner.names_), **arrays})


def _flipped(data):
    return data[:200] + bytes(byte ^ 0xFF for byte in data[200:300]) + data[300:]


def _locked(data):
    """The archive with the bit that says that its first member needs a password."""
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.index(mark) + place
        data = data[:start] + bytes([data[start] | 1]) + data[start + 1 :]
    return data


def _with_member(name, content):
    def added(data):
        buffer = io.BytesIO(data)
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(name, content)
        return buffer.getvalue()

    return added


def _header(shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "damage",
    [
        _flipped,
        _locked,
        _with_member("a.npy", _header(10**13)),
        _with_member("a.npy", _header(10**30)),
        _with_member("a", b"x"),
    ],
    ids=["flipped", "locked", "too large to hold", "too large to count", "not an array"],
)
def test_an_archive_that_numpy_cannot_read_is_refused_by_name(tmp_path, damage):
    """Whatever zipfile, zlib and numpy raise, the error names the file."""
    file = tmp_path / "x.npz"
    write_arrays(file, {"numbers": np.random.default_rng(0).normal(size=200)}, compress=True)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadFile, match=r"x\.npz is damaged"):
        read_arrays(file)
