"""LightGBM's texts are checked before LightGBM or C reads them: what is not a forest is refused with what is wrong."""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kerncast.core.io.artefact import file_checksum, own_checksums
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.lightgbm_text import load_forest, parse_forest
from kerncast.models.manifest import read_manifest, write_manifest
from kerncast.models.model import Model

MODEL = Path(__file__).parents[2] / "fixtures" / "made_elsewhere" / "gbdt"
TEXT = gzip.decompress((MODEL / "time.0.lgbm.gz").read_bytes()).decode()


def changed(old, new):
    """The text with the first match replaced, and tree_sizes that fit again."""
    text, count = re.subn(old, new, TEXT, count=1, flags=re.M)
    assert count == 1
    if not old.startswith("tree_sizes"):
        blocks = re.findall(r"Tree=\d+\n.*?\n\n\n", text, flags=re.S)
        text = re.sub(r"tree_sizes=.*", "tree_sizes=" + " ".join(str(len(block)) for block in blocks), text)
    return text


HOSTILE = {
    "a child that does not exist": (r"left_child=3 2", "left_child=3 700000", "child 700000"),
    "a leaf that does not exist": (r"left_child=3 2 -2", "left_child=3 2 -900", "child -900"),
    "a loop": (r"left_child=3 2 -2 -1", "left_child=3 2 2 -1", "exactly one node|back to itself"),
    "a loop beside the root": (
        r"left_child=3 2 -2 -1\nright_child=1 -3 -4 -5", "left_child=-2 2 1 3\nright_child=-1 -3 -4 -5",
        "back to itself"),
    "the root as a child": (r"left_child=3", "left_child=0", "child 0"),
    "a feature that does not exist": (r"split_feature=17", "split_feature=104", "feature 104, and there are 104"),
    "a negative feature": (r"split_feature=17", "split_feature=-1", "feature -1"),
    "more leaves than values": (r"num_leaves=5", "num_leaves=50000", "values of"),
    "more leaves than there is memory": (r"num_leaves=5", "num_leaves=2000000000", "num_leaves"),
    "a leaf that is no number": (r"leaf_value=\S+", "leaf_value=nan", "leaf_value=nan"),
    "a leaf that is infinite": (r"leaf_value=\S+", "leaf_value=1e999", "leaf_value is not finite"),
    "an enormous leaf": (r"leaf_value=\S+", "leaf_value=1e300", "larger than"),
    "an infinite threshold": (r"threshold=\S+", "threshold=inf", "threshold=inf"),
    "another decision": (r"decision_type=2", "decision_type=255", "decision type"),
    "a category without sets": (r"decision_type=2", "decision_type=1", "categories"),
    "sets of categories without end": (r"num_cat=0", "num_cat=1\ncat_boundaries=0 99999999\ncat_threshold=1", "categories"),
    "linear leaves": (r"is_linear=0", "is_linear=1", "linear"),
    "many classes": (r"num_class=1", "num_class=1000000000", "num_class"),
    "many trees per iteration": (r"num_tree_per_iteration=1", "num_tree_per_iteration=7", "num_tree_per_iteration"),
    "sizes of other trees": (r"tree_sizes=644", "tree_sizes=64400000", "tree_sizes"),
    "fewer sizes than trees": (r"tree_sizes=644 655 .*", "tree_sizes=644", "tree_sizes"),
    "more features than names": (r"max_feature_idx=103", "max_feature_idx=2000000000", "max_feature_idx"),
    "a second count of leaves": (r"num_leaves=5", "num_leaves=5\nnum_leaves=9000", "does not belong"),
    "an objective with a million outputs": (r"objective=regression", "objective=multiclass num_class:1000000", "objective"),
    "a hundred thousand brackets": (r"pandas_categorical:null", "pandas_categorical:" + "[" * 100_000, "pandas_categorical"),
    "another version": (r"version=v4", "version=v99", "version"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_text_that_is_no_forest_is_refused(case):
    """Each of these ended LightGBM, kept it busy for ever, took all memory or changed numbers."""
    old, new, match = HOSTILE[case]
    with pytest.raises(InvalidValue, match=match):
        parse_forest(changed(old, new))
    assert parse_forest(TEXT).trees()


def test_a_model_whose_sealed_forest_reads_other_features_is_refused(tmp_path):
    """An attacker writes the checksums, too: feature names other than the manifest's and unlisted weights are refused."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    for name in read_manifest(MODEL).files:
        if name.endswith(".lgbm.gz"):
            text = gzip.decompress((folder / name).read_bytes()).decode().replace("feature_names=M N ", "feature_names=N M ")
            (folder / name).write_bytes(gzip.compress(text.encode()))
    manifest = read_manifest(MODEL)
    files = {name: file_checksum(folder / name) for name in manifest.files}
    write_manifest(folder, msgspec.structs.replace(manifest, files=files))
    with pytest.raises(BadFile, match="feature 0 is 'N', the model's is 'M'"):
        Model.load(folder)
    shutil.rmtree(folder)
    shutil.copytree(MODEL, folder)
    shutil.copy(folder / "rank.0.lgbm.gz", folder / "rank.9.lgbm.gz")
    with pytest.raises(BadFile, match=r"rank.9.lgbm.gz that its model.json does not list"):
        Model.load(folder)


def test_a_forest_that_this_process_wrote_is_checked_once_it_was_changed(tmp_path):
    """Its text is LightGBM's own; a byte of another makes it a file like any other."""
    file = tmp_path / "time.0.lgbm.gz"
    file.write_bytes(gzip.compress(changed("left_child=3 2", "left_child=3 700000").encode()))
    with pytest.raises(BadFile, match="child 700000"):
        load_forest(file)
    file.write_bytes(gzip.compress(TEXT.replace("version=v4", "version=v5").encode()))
    assert own_checksums(tmp_path) == {file.name: file_checksum(file)}
    assert load_forest(file).num_trees()
    os.utime(file, ns=(1, 1))
    with pytest.raises(BadFile, match="version=v5"):
        load_forest(file)


FUZZ = """
import sys, random, warnings
import numpy as np
from lightgbm import Booster
from lightgbm.basic import LightGBMError
from kerncast.errors import InvalidValue
from kerncast.learning.learners.lightgbm_text import parse_forest
text, seed = open(sys.argv[1], "rb").read(), random.Random(7)
rows = np.random.default_rng(0).random((8, 104)) * 4096
counts = {"refused": 0, "loaded": 0}
for number in range(int(sys.argv[2])):
    data = bytearray(text)
    for _ in range(seed.choice([1, 1, 1, 3])):
        place = seed.randrange(len(data) - 3000)
        kind = seed.randrange(4)
        if kind == 0:
            data[place] ^= 1 << seed.randrange(8)
        elif kind == 1:
            data[place] = seed.choice(b"0123456789-. =\\n")
        elif kind == 2:
            del data[place : place + seed.randrange(1, 40)]
        else:
            data[place:place] = data[place : place + seed.randrange(1, 40)]
    try:
        parse_forest(bytes(data).decode())
        assert Booster(model_str=bytes(data).decode()).predict(rows, num_threads=1).shape == (8,)
        counts["loaded"] += 1
    except (InvalidValue, UnicodeDecodeError, LightGBMError):
        counts["refused"] += 1
print(counts)
"""


def test_what_the_check_lets_through_does_not_end_lightgbm(tmp_path):
    """Random damage is refused, or LightGBM reads and predicts it; in a process of its own, which must not end early."""
    (tmp_path / "forest").write_text(TEXT)
    found = subprocess.run(
        [sys.executable, "-c", FUZZ, tmp_path / "forest", "400"], capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr
    counts = {key: int(value) for key, value in re.findall(r"'(\w+)': (\d+)", found.stdout)}
    assert sum(counts.values()) == 400
    assert counts["loaded"] > 0
    assert counts["refused"] > 100
