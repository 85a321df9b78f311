"""The store: what it remembers, which model stands in for which, and what a crash or a vandal may do to it."""

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from tests.support.artefacts import reseal

from kerncast.core import software
from kerncast.core.io.lock import one_writer
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models.model import Model
from kerncast.models.store.entry import ENTRY
from kerncast.models.store.store import LOCK, Changed, Store, default_path
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

OLD, NEW = ({"commit": digit * 40, "compiler": "gcc 12"} for digit in "ab")
# What the store calls a model of the synthetic rows.
PART = "dtype=fp16,layout=rcr"
TEXT = {name: f'{{"commit":"{digit * 40}","compiler":"gcc 12"}}' for name, digit in (("old", "a"), ("new", "b"))}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models `old` and `new` of a100 on two commits, `h100` of another device, `silent` that does not know its software."""
    folder = tmp_path_factory.mktemp("home")
    rows = synthetic_rows(problems=6)
    variants = {
        "old": rows.with_columns(software=pl.lit(TEXT["old"])),
        "new": rows.with_columns(software=pl.lit(TEXT["new"])),
        "h100": rows.with_columns(software=pl.lit(TEXT["new"]), device=pl.lit("h100")),
        "silent": rows,
    }
    for name, frame in variants.items():
        synthetic_dataset(folder / f"{name}_data", frame)
        train(folder / f"{name}_data", folder / name, Recipe("roofline", folds=2, threads=1))
    return folder


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def test_an_entry_says_what_the_model_is_and_how_good(home, store):
    """Op, family, device, software, counts, figures and size, where the layout promises them."""
    entry = store.add(home / "old", origin={"host": "here"})
    assert entry.id == f"gemm/triton/a100/{software.digest([TEXT['old']])}/{PART}"
    assert entry.path.parent == store.path.joinpath(*entry.id.split("/"))
    model = entry.load()
    assert (entry.op, entry.family, entry.device, entry.software) == ("gemm", "gemm/triton", "a100", (TEXT["old"],))
    record = entry.record
    assert (record.rows, record.problems) == (model.manifest.data.rows, 6)
    assert record.mape == model.evaluation["overall"]["mape"]["value"]
    assert record.efficiency == model.evaluation["overall"]["efficiency_mean"]["value"]
    assert record.bytes == sum(file.stat().st_size for file in (home / "old").iterdir())
    assert store.entries() == [entry]
    assert {"id", "software", "added", "origin", "path", "warning"} <= set(entry.as_json())
    assert software.short(entry.software) == "a" * 12
    built, wheel = "vllm==0.1.dev19262+gb6bbf29dd.d20260727", "torch==2.3.0+cu121"
    assert [software.short([text]) for text in (built, wheel)] == ["vllm==0.1.dev19262", wheel]


def test_a_model_is_found_in_the_stated_order(home, store):
    """The very software, else the newest with a warning, else a refusal; --strict refuses the second."""
    first, second = store.add(home / "old"), store.add(home / "new")
    assert store.find("gemm").id == second.id
    for asked in (TEXT["old"], "a" * 40, "a" * 7, "commit=" + "a" * 8, [TEXT["old"]]):
        found = store.find("gemm", "gemm/triton", "a100", asked, strict=True)
        assert (found.id, found.warning) == (first.id, None)
    other = store.find("gemm", "triton", "a100", "commit=cccccccc")
    assert (other.id, other.warning) == (second.id, f"trained on {TEXT['new']}, not on commit=cccccccc")
    # Six digits may be anybody's, and a compiler's name is no commit to cut short.
    assert store.find("gemm", software="a" * 6).warning
    assert store.find("gemm", software="gcc").warning
    with pytest.raises(NotFound, match="leave out `strict`"):
        store.find("gemm", software="cccccccc", strict=True)


def test_another_device_never_stands_in_and_an_alias_is_the_same_device(home, store):
    """What is left out of a question must have one answer."""
    store.add(home / "old")
    with pytest.raises(NotFound, match=r"no model of gemm/triton for the device h100, only for a100"):
        store.find("gemm", device="h100_sxm")
    store.add(home / "h100")
    assert store.find("gemm", device="h100_sxm").device == "h100"
    with pytest.raises(InvalidValue, match=r"several devices \(a100, h100\): name one"):
        store.find("gemm")
    with pytest.raises(NotFound, match="did you mean 'gemm/triton'"):
        store.find("gemm", "gemm/trito")
    with pytest.raises(NotFound, match=r"no model of conv \(it has gemm\)"):
        store.find("conv")
    with pytest.raises(NotFound, match="no model of eltwise_unary"):  # of which `exp` is one
        store.find("exp")
    with pytest.raises(NotFound, match="it is empty"):
        Store.open(store.path / "nowhere").find("gemm")


def test_software_may_be_stated_only_where_the_data_are_silent(home, store):
    """A model knows what it was trained on, or is told once, when it is added."""
    assert store.add(home / "silent").software == ()
    silent = "asked for abc1234, the model does not say what it was trained on"
    assert store.find("gemm", software="abc1234").warning == silent
    store.add(home / "silent", software={"commit": "abc1234def"})
    assert store.find("gemm", software="abc1234").warning is None
    with pytest.raises(InvalidValue, match="already says what it was trained on"):
        store.add(home / "old", software=NEW)


def test_a_model_is_replaced_only_when_asked_and_named_ones_stay_beside_it(home, store):
    """One model a place; a name makes another place, which answers only to its name while there is a plain one."""
    first = store.add(home / "old")
    with pytest.raises(InvalidValue, match="add `replace`, or give this one another `name`"):
        store.add(home / "old")
    second = store.add(home / "old", replace=True)
    assert (first.id, first.path.exists(), second.path.exists()) == (second.id, False, True)
    named = store.add(home / "old", name="big")
    assert (store.find("gemm").record.name, store.find("gemm", name="default").id) == (PART, second.id)
    assert store.find("gemm", name="big").id == named.id
    with pytest.raises(InvalidValue, match="letters, digits"):
        store.add(home / "old", name="../x")


def test_a_crash_while_replacing_leaves_the_old_model(home, store, monkeypatch):
    """The entry changes in one step; what a killed writer left behind is nobody's and goes with the next one."""
    before = store.add(home / "old")
    (before.path.parent / "model-leftover").mkdir()

    def killed(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("kerncast.models.store.store.write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        store.add(home / "old", replace=True)
    monkeypatch.undo()
    assert store.entries() == [before]
    before.load()
    after = store.add(home / "old", replace=True)
    assert {item.name for item in after.path.parent.iterdir()} == {ENTRY, after.path.name}


def test_a_second_writer_is_refused(home, store):
    """With the process that holds the store."""
    store.add(home / "old")
    with one_writer(store.path, LOCK, ""), pytest.raises(InvalidValue, match=f"process {os.getpid()}"):
        store.add(home / "new")


def test_damage_is_refused_by_name(home, store):
    """A changed weight, a model that is another's, a broken entry, an entry of the future."""
    entry = store.add(home / "old")
    (entry.path / "candidates.parquet").write_bytes(b"x")
    with pytest.raises(BadFile, match="differs from its checksum"):
        entry.load()
    file = entry.path.parent / ENTRY
    good = file.read_text()

    def with_checksum(old, new):
        return reseal(json.loads(good.replace(old, new))).decode()

    for broken, why in (
        ("{", "is damaged"),
        (good.replace(f'"name": "{PART}"', '"name": "other"'), "entry.json differs from its checksum"),
        (with_checksum('"model": "', '"model": "../'), "is damaged"),
        (with_checksum(f'"name": "{PART}"', '"name": "other"'), r"is damaged \(it is the entry of gemm at"),
        (good.replace('"version": 1', '"version": 9'), "upgrade kerncast"),
        ("[]", "is not an entry"),
    ):
        file.write_text(broken)
        with pytest.raises(BadFile, match=why):
            store.entries()
    file.write_text(with_checksum(entry.record.checksum, "0" * 32))
    other = store.add(home / "new")
    for name in other.path.iterdir():
        (entry.path / name.name).write_bytes(name.read_bytes())
    with pytest.raises(BadFile, match="their checksums differ"):
        store.get(entry.id).load()


@pytest.mark.parametrize("model", ["", "..", "."])
def test_an_entry_that_names_no_directory_of_its_own_removes_nothing(home, store, model):
    """What stands above such a name are other entries."""
    entry, other = store.add(home / "old"), store.add(home / "old", name="big")
    file = entry.path.parent / ENTRY
    file.write_bytes(reseal(json.loads(file.read_text().replace(entry.path.name, model))))
    with pytest.raises(BadFile, match=r"is damaged \(it names the model"):
        store.remove(PART)
    assert (file.exists(), entry.path.exists()) == (True, True)
    other.load()


def test_an_entry_whose_model_is_gone_can_be_removed(home, store):
    """Loading says so and how."""
    entry = store.add(home / "old")
    shutil.rmtree(entry.path)
    with pytest.raises(BadFile, match=f"is gone.*kerncast models remove {entry.id}"):
        store.find("gemm").load()
    store.remove(entry.id)
    assert store.entries() == []


def test_a_model_replaces_only_what_was_looked_at(home, store):
    """A mark is of what stands in a model's place, readable or not."""
    model = Model.load(home / "old")
    assert (store.mark(model), store.at(model)) == ("", None)
    entry = store.add(home / "old", over="")
    assert store.at(model) == entry
    with pytest.raises(Changed):
        store.add(home / "old", replace=True, over="")
    (entry.path.parent / ENTRY).write_text("{")
    assert store.add(home / "old", replace=True, over=store.mark(model)).load().manifest == model.manifest


def test_removing_leaves_nothing_behind(home, store):
    """By id, or by a part of it that is unique."""
    store.add(home / "old")
    store.add(home / "h100")
    with pytest.raises(InvalidValue, match="names 2 models"):
        store.remove("gemm/triton")
    store.remove("a100")
    assert [entry.device for entry in store.entries()] == ["h100"]
    store.remove("h100/" + software.digest([TEXT["new"]]))
    assert list(store.path.iterdir()) == []
    with pytest.raises(NotFound, match="unknown model"):
        store.remove("a100")


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"KERNCAST_STORE": "/s", "XDG_DATA_HOME": "/x"}, "linux", "/s"),
        ({"XDG_DATA_HOME": "/x"}, "linux", "/x/kerncast/models"),
        ({"XDG_DATA_HOME": "relative"}, "linux", "~/.local/share/kerncast/models"),
        ({}, "darwin", "~/Library/Application Support/kerncast/models"),
        ({"LOCALAPPDATA": "/l"}, "win32", "/l/kerncast/models"),
    ],
)
def test_the_store_is_where_each_system_keeps_data(environment, platform, expected):
    """KERNCAST_STORE first, then the convention of the system."""
    assert default_path(environment, platform) == Path(expected).expanduser()


def test_a_short_name_finds_the_newest_version_and_a_refusal_lists_what_there_is(home, store, run):
    """Newest by version, not by date; from Python, JSON and the command line."""
    for version in ("0.10.0", "0.10.0rc2", "0.9.1"):
        store.add(home / "silent", software={"framework": "VLLM", "version": version})
    text = '{"framework":"VLLM","version":"0.10.0"}'
    for asked in ("vllm", "vLLM", "vllm==0.10.0", "version=0.10.0"):
        found = store.find("gemm", software=asked, strict=True)
        assert (found.software, found.warning) == ((text,), None)
    with pytest.raises(NotFound, match=r"\(there are vllm==0\.9\.1, vllm==0\.10\.0rc2, vllm==0\.10\.0\)"):
        store.find("gemm", software="trtllm", strict=True)
    request = '{"op": "gemm", "device": "a100", "M": 64, "N": 64, "K": 64, "dtype": "fp16", "layout": "rcr"}'
    kept = {}
    for name in ("vllm", "vllm==0.9.1", "trtllm"):
        _, out, _ = run("predict", request, "--store", store.path, "--software", name, "--no-compile", "--json")
        kept[name] = json.loads(out).get("entry"), json.loads(out).get("warning", "")
    assert kept["vllm"][0] != kept["vllm==0.9.1"][0]
    assert [bool(warning) for _, warning in kept.values()] == [False, False, True]
