"""Writes that the disk refuses, at every size: one sentence with the path and the next step, and nothing half-written."""

import contextlib
import json
import resource
import shutil

import pytest
from tests.support.routines import tiny_routine

from kerncast.core.op import Op, Problem
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import OPS, Registry
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train


@contextlib.contextmanager
def no_room_above(size):
    """Files of this process and its children cannot grow above a size: the system refuses, and polars words it its own way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=12, repeats=1))
    train(folder / "d", folder / "m", Recipe("roofline", folds=2, threads=1))
    entries = {
        str(size): {"block_size_x": size, "time": 1.0 + size, "times": [1.0 + size]} for size in (16, 32, 64, 128, 256, 512)
    }
    head = {"device_name": "Some GPU", "kernel_name": "blur", "problem_size": [1024, 512], "objective": "time",
            "tune_params_keys": ["block_size_x"], "tune_params": {}}  # fmt: skip
    (folder / "cache.json").write_text(json.dumps({**head, "cache": entries}))
    (folder / "tiny.toml").write_text(tiny_routine())
    return folder


VERBS = {
    "import": ("import", "kernel-tuner", "cache.json", "--out", "out"),
    "merge": ("merge", "d", "d2", "--out", "out"),
    "train": ("train", "d", "--kind", "roofline", "--folds", "2", "--out", "out", "--threads", "1"),
    "export": ("export", "m", "--out", "out"),
    "models add": ("models", "add", "m", "--store", "out"),
    "sweep": ("sweep", "gemm/triton", "--problems", "lognormal:4;M=16:512;N=16:512;K=16:512", "--configs", "sample:4",
              "--vary", "dtype=fp16", "--vary", "layout=rcr", "--out", "out"),
    "regenerate": ("regenerate", "tiny.toml", "--out", "out", "--store", "store"),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_a_sentence(verb, home, run, tmp_path, monkeypatch):
    """Exit code 2 or 3, no traceback; nothing is left of what appears whole or not at all, and no hidden file in the end."""
    for name in ("d", "m"):
        shutil.copytree(home / name, tmp_path / name)
    shutil.copytree(home / "d", tmp_path / "d2")
    for name in ("cache.json", "tiny.toml"):
        shutil.copy(home / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {str(item) for item in tmp_path.rglob("*")}
    refused = 0
    for size in {"regenerate": (0, 3_000), "export": (300,)}.get(verb, (0, 300, 3_000)):
        with no_room_above(size):
            code, _, err = run(*VERBS[verb])
        if code == 0:
            break
        refused += 1
        assert code in (2, 3), err
        assert "File too large" in err, err
        assert ".kerncast-" not in err, err
        left = {item for item in tmp_path.rglob("*") if str(item) not in before}
        # Folds that were fitted before are kept, and the next run goes on with them.
        assert not [item for item in left if item.name[0] == "." and item.suffix not in (".lock", ".folds")], left
        if verb in ("import", "merge", "export"):
            assert not left
    assert refused
    code, _, err = run(*VERBS[verb])
    assert code == 0, err
    hidden = [item for item in tmp_path.rglob(".*") if str(item) not in before and item.stem != ".lock"]
    assert not hidden


def test_a_name_and_a_label_of_a_megabyte_are_cut(home, run):
    """In messages of the library and of the command line; and looking for a similar name takes no time."""
    long = "x" * 1_000_000
    with pytest.raises(NotFound, match=r"x{200}… \(1,000,000 characters\)") as unknown:
        OPS.get(long)
    assert len(str(unknown.value)) < 1_000
    family = Model.load(home / "m").family
    with pytest.raises(InvalidValue, match=r"must be one of fp64, .*… \(1,000,002 characters\)") as refused:
        Problem(family.op, M=1, N=1, K=1, dtype=long, layout="rcr")
    assert len(str(refused.value)) < 3_000
    code, _, err = run("select", home / "m", "M=1", "N=1", "K=1", f"dtype={long}")
    assert code == 2
    assert len(err) < 3_000


def test_a_long_label_costs_its_own_row(tmp_path):
    """It is counted and kept among the skipped rows with its reason."""
    lines = [f"{m},64,64,{1.5 * m},{'k' * (401 if m == 48 else 400)}" for m in range(16, 160, 16)]
    (tmp_path / "t.csv").write_text("\n".join(["m,n,k,us,kernel", *lines]))
    (tmp_path / "m.toml").write_text(
        'family = "gemm/library"\ndevice = "a100"\nlabel = "kernel"\n[time]\ncolumn = "us"\nunit = "us"\n'
        '[problem]\nM = "m"\nN = "n"\nK = "k"\ndtype = { value = "fp16" }\nlayout = { value = "rcr" }\n'
        '[config]\nkernel_source = { value = "other" }\n'
    )
    found = import_files("csv", [tmp_path / "t.csv"], tmp_path / "out", ImportOptions(mapping=tmp_path / "m.toml"))
    (kind,) = found.skipped.kinds
    assert (found.rows, kind.rows) == (8, 1)
    assert kind.example.startswith("line 4: ")
    assert "at most 400 characters" in kind.example


def test_names_of_another_package_are_bounded_like_declared_ones(monkeypatch):
    """They are written into C, files and terminals, too; the package is named."""
    gemm = OPS.get("gemm")

    def entry(name):
        class Entry:
            value = "elsewhere:op"

            @staticmethod
            def load():
                return type("Own", (type(gemm),), {"name": name, "aliases": {}})()

        Entry.name = "own"
        return Entry

    for name, why in (("a b", "letters, digits"), ("a" * 101, "at most 100 characters, got 101"), ("*/", "letters, digits")):
        monkeypatch.setattr("kerncast.library.registry.metadata.entry_points", lambda group, name=name: [entry(name)])
        with pytest.raises(BadFile, match=rf"entry point own \(elsewhere:op\): .*{why}.*uninstall the package"):
            _ = Registry(Op, "kerncast.library.ops", "name", "kerncast list op").found
    monkeypatch.setattr("kerncast.library.registry.metadata.entry_points", lambda group: [entry("own_gemm")])
    assert "own_gemm" in Registry(Op, "kerncast.library.ops", "name", "kerncast list op").found
