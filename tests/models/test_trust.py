"""Whose models may run as compiled code: the list of trusted ones, and what is answered without it."""

import json
import multiprocessing
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from kerncast.answering.query import Query, among
from kerncast.answering.selector import Selector
from kerncast.core.progress import Progress
from kerncast.errors import BadFile, NotFound
from kerncast.models import trust
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.native.tiers.build import plain_tiers
from kerncast.training.train import Recipe, train

# Models that this user did not train.
FOREIGN = Path(__file__).parents[1] / "fixtures" / "made_elsewhere"
RECIPE = Recipe("gbdt", {"trees": 2, "leaves": 4}, folds=2, threads=1)


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """An empty list of the test's own."""
    path = tmp_path / "home" / "trusted"
    monkeypatch.setenv(trust.VARIABLE, str(path))
    monkeypatch.setattr(trust, "_HELD", set())
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    trust._listed.cache_clear()
    return path


@pytest.fixture
def model():
    return Model.load(FOREIGN / "gbdt")


def plain(model):
    return Selector(model, tiers=plain_tiers(model), tier="full")


@pytest.mark.needs("a C compiler")
def test_a_strangers_model_answers_the_same_in_python_and_says_so(listed, model, tmp_path):
    """Nothing is compiled; status, config and numbers are bit for bit those of the compiled model; one call changes it."""
    careful = plain(model)
    assert not careful.is_compiled
    assert not list((tmp_path / "cache").rglob("artefact*"))
    problem = json.loads((FOREIGN / "answers.json").read_text())["gbdt"][0]["problem"]
    one, ranked = careful.select(problem), careful.rank(problem, 3)
    assert f"kerncast models trust {model.path}" in one.note
    assert one.note == one.as_json()["note"] == ranked[0].note
    assert one.note in repr(one)
    Store(tmp_path / "store").trust(model)
    compiled = plain(model)
    assert compiled.is_compiled
    assert compiled.select(problem).note == ""

    def numbers(answers):
        return [(str(a.status), a.config, a.time_ns, a.lower_ns, a.upper_ns, a.efficiency) for a in answers]

    assert numbers([one, *ranked]) == numbers([compiled.select(problem), *compiled.rank(problem, 3)])
    Store(tmp_path / "store").trust(model, revoke=True)
    assert not plain(model).is_compiled


def test_a_json_reply_of_a_strangers_model_says_so(listed, model):
    """Every reply has the note; the rest of it is what it would be."""
    problem = json.loads((FOREIGN / "answers.json").read_text())["gbdt"][0]["problem"]
    asked = json.dumps([{"problem": problem}, {"problem": problem}])
    query = Query(among([model]))
    query._selectors[model.path] = plain(model)
    for reply in json.loads(query.answer(asked)):
        assert reply["status"] == "ok"
        assert "kerncast models trust" in reply["note"]


def test_a_model_that_this_user_trains_is_trusted_in_later_processes(listed, tmp_path):
    """The list is 0600 and has the digest; a model that is changed afterwards is another one."""
    made = train(
        FOREIGN / "declared_dataset", tmp_path / "model", Recipe("gbdt", {"trees": 2, "leaves": 4}, folds=2, threads=1)
    )
    trust._HELD.clear()
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    assert listed.read_text().split()[0] == made.manifest.checksum
    assert trust.refusal(Model.load(tmp_path / "model")) is None
    assert trust.refusal(Model.load(FOREIGN / "linear")) is not None


def test_a_model_of_the_installed_package_is_trusted(listed, model):
    """Its code runs anyway."""
    model.path = Path(trust.__file__).parent / "shipped"
    assert trust.refusal(model) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_list_that_others_may_write_is_refused(listed, model, mode):
    """Neither read nor added to, and the answer says why."""
    trust.trust(model)
    trust._HELD.clear()
    listed.chmod(mode)
    trust._listed.cache_clear()
    assert f"may be written by others: look at what it has, then `chmod 600 {listed}`" in trust.refusal(model)
    with pytest.raises(BadFile, match="may be written by others"):
        trust.trust(Model.load(FOREIGN / "linear"))


def test_a_list_of_another_user_and_a_link_are_refused(listed, model, tmp_path, monkeypatch):
    """Whatever they hold."""
    trust.trust(model)
    trust._HELD.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        trust._listed.cache_clear()
        assert "is not a file of this user" in trust.refusal(model)
    listed.rename(tmp_path / "elsewhere")
    listed.symlink_to(tmp_path / "elsewhere")
    trust._listed.cache_clear()
    assert "cannot be used" in trust.refusal(model)


def test_a_list_that_cannot_be_written_does_not_lose_the_training(tmp_path, monkeypatch):
    """The model is there and compiled in this process; the message says what others will do."""
    monkeypatch.setenv(trust.VARIABLE, "/proc/nope/trusted")
    said = []

    class Heard(Progress):
        def say(self, text):
            said.append(text)

    made = train(FOREIGN / "declared_dataset", tmp_path / "model", RECIPE, progress=Heard())
    assert trust.refusal(made) is None
    assert any("cannot be used" in text and trust.VARIABLE in text for text in said)


def test_a_line_that_was_cut_off_names_no_model(listed, model):
    """The next one begins a line of its own; text that is no digest is passed over."""
    trust.trust(model)
    whole = listed.read_bytes()
    listed.write_bytes(b"\xff what\n" + whole[:20])
    trust._HELD.clear()
    trust._listed.cache_clear()
    assert trust.refusal(model) is not None
    trust.trust(model)
    assert listed.read_bytes().splitlines()[-1] == whole.rstrip(b"\n")
    trust.trust(model)
    assert listed.read_bytes().count(model.manifest.checksum.encode()) == 1


def _add(number):
    words = SimpleNamespace(trust_digest=f"{number:032x}", family=SimpleNamespace(id="gemm/cpu"),
                            device=SimpleNamespace(name="x" * 50_000))  # fmt: skip
    trust.trust(words)


def test_processes_that_add_at_once_lose_no_line(listed):
    """Each line is whole and there once."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(_add, range(60), chunksize=1)
    assert sorted(line.split()[0] for line in listed.read_text().splitlines()) == [f"{number:032x}" for number in range(60)]


def test_the_command_line_trusts_adds_and_takes_it_back(listed, run, tmp_path):
    """`models trust`, `models add --trust`, `--revoke`; revoking what is not on the list changes nothing."""
    store = tmp_path / "store"
    code, out, _ = run("models", "trust", FOREIGN / "gbdt", "--json")
    digest = json.loads(out)["digest"]
    assert (code, listed.read_text().split()[0]) == (0, digest)
    assert run("models", "trust", FOREIGN / "gbdt", "--revoke")[0] == 0
    assert digest not in listed.read_text()
    code, _, err = run("models", "trust", FOREIGN / "gbdt", "--revoke")
    assert (code, "is not on the list" in err) == (2, True)
    assert run("models", "add", "--trust", FOREIGN / "gbdt", "--store", store)[1].startswith("added and trusted gemm/")
    assert digest in listed.read_text()
    with pytest.raises(NotFound):
        Store(store).trust("nothing/like/it")
