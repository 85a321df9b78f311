"""Damaged files: cut short or with a bit flipped, every use names it, repairs it, or gives the same answer."""

from tests.support.damage import all_counts

from kerncast.testing import repeats


def test_no_damage_is_a_traceback_or_another_answer(made, tmp_path, monkeypatch):
    """Every kind of file that kerncast writes, and every verb that reads it; the counts are printed."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    counts = all_counts(made, tmp_path / "damage", cuts=repeats(1, 200), flips=repeats(2, 300))
    for found in counts:
        print(found)
        assert found.damages, found.kind
        assert found.tracebacks == [], found.kind
        assert found.differences == [], found.kind
    # What has a checksum is always named by somebody, unless it is repaired.
    assert all(found.named or found.repaired or found.same for found in counts)
    assert sum(found.named for found in counts) > len(counts)
    assert {"journal", "rows of a dataset", "model.json", "entry.json", "vectors.json"} <= {found.kind for found in counts}
