"""The trees that judge a vendor's library as a candidate."""

from dataclasses import replace

import numpy as np
import pytest

from kerncast.learning.learners.contract import Fitting, Target
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.learning.learners.growing import CLEAR, grow_library_trees
from kerncast.learning.learners.kinds import options_of
from kerncast.learning.learners.trees import as_arrays, from_arrays, sum_of
from kerncast.testing.models import synthetic_table

SMALL = {"trees": 5, "leaves": 7, "library_trees": 10}


@pytest.fixture(scope="module")
def table():
    """The library takes twice as long wherever K is one of every other size."""
    made = synthetic_table(problems=160, noise=0.0)
    k = made.rows.frame["problem.K"].to_numpy()
    slow = made.rows.is_library & np.isin(k, np.unique(k)[::2])
    return replace(made, time_ns=np.where(slow, 2.0, 1.0) * made.time_ns)


def slower_by(table):
    """What the trees are asked for, computed problem by problem."""
    found = {}
    for number in np.unique(table.problem):
        own = table.problem == number
        library, others = own & table.rows.is_library, own & ~table.rows.is_library
        found[int(np.flatnonzero(library)[0])] = np.log(table.time_ns[library][0] / np.nanmin(table.time_ns[others]))
    return found


def test_trees_tell_where_the_library_is_slower_on_problems_they_have_not_seen(table):
    """An erratic rule (every other K) is remembered: the sign is right nine times of ten."""
    seen = table.group % 4 != 0
    trees = grow_library_trees(table.take(seen), 40, seed=0)
    asked = table.take(~seen)
    said, wanted = sum_of(trees, asked.rows.features), slower_by(asked)
    right = [np.sign(said[row]) == np.sign(value) for row, value in wanted.items()]
    assert len(right) >= 30
    assert np.mean(right) >= 0.9
    assert np.abs(said).max() <= CLEAR + 1e-9


def test_trees_say_nothing_of_other_rows_and_come_back_from_a_file_alike(table):
    """0 where a row is not the library's; the same sums, bit for bit, from the arrays that are stored."""
    trees = grow_library_trees(table, 10, seed=0)
    said = sum_of(trees, table.rows.features)
    assert not said[~table.rows.is_library].any()
    assert said[table.rows.is_library].any()
    assert (sum_of(from_arrays(as_arrays(trees)), table.rows.features) == said).all()


def test_a_library_that_failed_counts_as_clearly_slower(table):
    """Where it never works, its row is pushed back as far as the trees can."""
    broken = replace(table, time_ns=np.where(table.rows.is_library, np.nan, table.time_ns))
    said = sum_of(grow_library_trees(broken, 5, seed=0), broken.rows.features)
    assert said[broken.rows.is_library] == pytest.approx(CLEAR)


def test_none_are_grown_without_a_library_with_too_few_problems_or_when_none_are_asked_for(table):
    """Then the model chooses as it would without them."""
    assert grow_library_trees(table.take(~table.rows.is_library), 10, seed=0) == ()
    assert grow_library_trees(table.take(table.group < 15), 10, seed=0) == ()
    assert grow_library_trees(table, 0, seed=0) == ()


def test_a_forest_adds_them_to_its_score_and_a_warm_start_grows_them_anew_where_it_can(table, tmp_path):
    """Without them the scores of other rows are the same; those of a base stay only where new data lack a library."""
    fitting = Fitting(Target("relative"), seed=0, threads=1)
    plain = Gbdt(options_of(Gbdt, {**SMALL, "library_trees": 0})).fit(table, fitting)
    judged = Gbdt(options_of(Gbdt, SMALL)).fit(table, fitting)
    more = judged.predict(table.rows).score - plain.predict(table.rows).score
    assert more == pytest.approx(sum_of(judged.library_, table.rows.features))
    judged.save(tmp_path)
    assert (Gbdt.load(tmp_path, judged.options).predict(table.rows).score == judged.predict(table.rows).score).all()
    bare = table.take(~table.rows.is_library)
    again = Gbdt(options_of(Gbdt, SMALL)).fit(bare, fitting, judged)
    assert again.library_ == judged.library_
    quicker = replace(table, time_ns=np.where(table.rows.is_library, 0.1, 1.0) * table.time_ns)
    said = sum_of(Gbdt(options_of(Gbdt, SMALL)).fit(quicker, fitting, judged).library_, table.rows.features)
    assert said[table.rows.is_library] == pytest.approx(-CLEAR), "another library than the base knew"
    assert Gbdt(options_of(Gbdt, {**SMALL, "library_trees": 0})).fit(bare, fitting, judged).library_ == ()
