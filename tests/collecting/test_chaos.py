"""The battery: a backend full of faults, and everything that can happen to a process and a machine, in one collection."""

from kerncast.testing import chaos
from kerncast.testing.repeats import repeats

# Gives each fault about its share of 1,000 vectors.
SEED = 76


def test_every_vector_ends_as_injected_whatever_happens_meanwhile(tmp_path):
    """One row per vector, its own status and time; no process, shared memory or file is left."""
    vectors, kills, others = repeats(1000, 20_000), repeats(3, 20), repeats(1, 10)
    report = chaos.run(tmp_path / "battery", vectors=vectors, kills=kills, others=others, seed=SEED)
    assert not any(report.wrong.values()), str(report)
    assert report.vectors == vectors
    assert set(report.injected) == set(chaos.SHARES)
    assert report.episodes["kill"] == kills
