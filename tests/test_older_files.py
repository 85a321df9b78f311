"""Files of earlier versions: `tests/fixtures/<version>` holds datasets, models and a store, with the answers of that time."""

import json
import shutil
from pathlib import Path

import pytest

from kerncast.data import Dataset
from kerncast.models import Model, trust
from kerncast.selecting.selector import Selector
from kerncast.store.store import Store

FOLDER = Path(__file__).parent / "fixtures" / "0.1"
ANSWERS = json.loads((FOLDER / "answers.json").read_text())


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_model_of_version_0_1_answers_as_it_did_then(kind):
    """Every kind of model, and one of a family that its file declares: the same status, config and time, compiled or not."""
    model = Model.load(FOLDER / kind)
    trust.hold(model)
    compiled = Selector(model)
    trust.revoke(model)
    for selector in (compiled, Selector(model, tiers=compiled.tiers)):
        for asked in ANSWERS[kind]:
            answer = selector.select(asked["problem"])
            assert (str(answer.status), dict(answer.config)) == (asked["status"], asked["config"])
            assert answer.time_ns == pytest.approx(asked["time_ns"], rel=1e-12)


@pytest.mark.parametrize("name", ["dataset", "declared_dataset"])
def test_a_dataset_of_version_0_1_is_read_whole(name, tmp_path):
    """All rows, with a time where one was measured."""
    shutil.copytree(FOLDER / name, tmp_path / name)
    rows = Dataset.open(tmp_path / name).read()
    assert rows.height == {"dataset": 120, "declared_dataset": 36}[name]
    assert (rows.filter(status="ok")["time_ns"] > 0).all()


def test_a_store_of_version_0_1_lists_and_loads_its_model(tmp_path):
    """The entry is found, its files are intact, and the model is the one beside it."""
    shutil.copytree(FOLDER / "store", tmp_path / "store")
    (entry,) = Store.open(tmp_path / "store").entries()
    assert entry.load().manifest.checksum == Model.load(FOLDER / "gbdt").manifest.checksum
