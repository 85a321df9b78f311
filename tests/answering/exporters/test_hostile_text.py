"""A stranger's words in data: labels, names, docs and devices never become code in what is generated from a model."""

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from markdown_it import MarkdownIt
from tests.support.hostile import LONG, TEXTS

from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.core.device import Device
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.declared.declaration import Values, declared_family, resolve
from kerncast.models.model import Model
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, tiers_of
from kerncast.training.train import Recipe, train

RECIPE = Recipe("gbdt", {"trees": 3, "library_trees": 4, "leaves": 4, "lr": 0.3}, folds=2, threads=1)


def hostile_labels(marker: Path) -> list[str]:
    """Labels that end a comment, in four ways, and would leave a file behind when the library is loaded."""
    code = (
        f'__attribute__((constructor)) static void own(void) {{ extern int system(const char *); system("touch {marker}"); }}'
    )
    ends = ("*/", "*\\\n/", "*??/\n/", "*/\n")
    own = [f"fast {end} {code} /*" for end in ends] + [f"line\n{code}", "KERNCAST_OK", "ok", "OK"]
    return list(dict.fromkeys([*own, *TEXTS]))


def kernel_tuner_cache(labels: list[str]) -> str:
    entries = {}
    for mode, label in enumerate(labels):
        for size in (16, 32, 64):
            time = 1.0 + 0.1 * mode + size / 64
            entries[f"{size},{label}"] = {"block_size_x": size, "mode": label, "time": time, "times": [time, time]}
    head = {"device_name": "Some GPU", "kernel_name": "blur", "problem_size": [1024, 512], "objective": "time",
            "tune_params_keys": ["block_size_x", "mode"], "tune_params": {}}  # fmt: skip
    return json.dumps({**head, "cache": entries})


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model of a family whose labels were written by a stranger, and the file that their code would leave."""
    folder = tmp_path_factory.mktemp("hostile")
    marker = folder / "ran"
    cache = kernel_tuner_cache([*hostile_labels(marker), LONG])
    (folder / "cache.json").write_text(cache.replace("Some GPU", "Some \\u001b[2J <GPU> \\u202e*/"))
    import_files("kernel-tuner", [folder / "cache.json"], folder / "data", ImportOptions())
    train(folder / "data", folder / "model", RECIPE)
    return folder, marker


def test_a_strangers_label_is_not_executed_when_a_model_is_used(home):
    """Import, train, select: the compiled chooser holds the label as data and answers with it."""
    folder, marker = home
    selector = Selector(folder / "model")
    answer = selector.select({"kernel": "blur", "size_x": 1024, "size_y": 512})
    assert str(answer.status) == "ok"
    assert selector.is_compiled == (shutil.which("gcc") is not None)
    assert dict(answer.config)["mode"] in hostile_labels(marker)
    assert not marker.exists()


def test_a_family_name_with_a_line_break_is_refused(home):
    """The id of a declared family is its op's name and one more name; a model that says otherwise is not loaded."""
    folder, _ = home
    declared = Model.load(folder / "model").manifest.declaration
    wrong = msgspec.structs.replace(declared, family=f"{declared.family}\nint stranger;")
    with pytest.raises(BadFile, match="letters, digits"):
        resolve(wrong.family, wrong, "a model")


@contextlib.contextmanager
def changed(model, words):
    """The model with these words as its device, its family and every doc; families are shared, so it is undone."""
    parameters = (*model.family.problem.parameters.values(), *model.family.config.parameters.values())
    places = [(model.device, "name"), (model.family, "id"), *((parameter, "doc") for parameter in parameters)]
    before = [(owner, field, getattr(owner, field)) for owner, field in places]
    for owner, field in places:
        object.__setattr__(owner, field, words)
    try:
        yield
    finally:
        for owner, field, text in before:
            object.__setattr__(owner, field, text)


@pytest.mark.needs("cmake")
def test_a_strangers_device_and_docs_are_not_executed_in_an_exported_project(home):
    """C and C++ headers with hostile labels, docs and device name compile without a warning, and the self-test runs."""
    folder, marker = home
    model = Model.load(folder / "model")
    words = hostile_labels(marker)[1] + '\nint stranger = "1";'
    out, tiers = folder / "picker", tiers_of(model, TierOptions())
    with changed(model, words):
        write_project(lower(model, tiers), out, "picker")
    (out / "use.cpp").write_text('#include "picker.hpp"\nint main() { picker::Selector s; return 0; }\n')
    strict = ["-Wall", "-Wextra", "-Werror", "-trigraphs", "-ffp-contract=off"]
    commands = [
        ["gcc", "-std=c99", *strict, "-c", "picker.c", "-o", "picker.o"],
        ["gcc", "-std=c99", *strict, "selftest.c", "picker.o", "-lm", "-o", "selftest"],
        ["./selftest"],
        ["g++", "-std=c++17", *strict, "use.cpp", "picker.o", "-lm", "-o", "use"],
        ["./use"],
        ["cmake", "-S", ".", "-B", "build"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=out, capture_output=True, text=True)
        assert done.returncode == 0, (command, (done.stdout + done.stderr)[:2000])
    assert not marker.exists()
    # Whatever the text declares would have a name here; and a function that runs when it is loaded, a section.
    symbols = subprocess.run(["nm", "-a", "picker.o"], cwd=out, capture_output=True, text=True, check=True).stdout
    assert "picker_select" in symbols
    assert not any(word in symbols for word in ("stranger", " own", "init_array", ".ctors", "system"))
    assert not set((out / "CMakeLists.txt").read_text() + (out / "picker.pc.in").read_text()) & set("\x1b\u202e\\`")


def test_a_strangers_words_stay_text_in_the_model_card(home):
    """Markdown without markup, and one row per parameter."""
    folder, _ = home
    text = (folder / "model" / "MODEL_CARD.md").read_text()
    assert all(char.isprintable() or char == "\n" for char in text)
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    inside = {child.type for token in tokens for child in token.children or ()}
    assert not inside & {"html_inline", "image", "link_open"}
    assert not any(token.type == "html_block" for token in tokens)


def test_no_verb_sends_a_strangers_control_characters_to_the_terminal(home, run, tmp_path):
    """Labels, devices, names of files and error texts: everything that is printed is plain lines."""
    folder, marker = home
    strange = tmp_path / "x \x1b[2J\u202e'$(touch ran)\n"
    shutil.copytree(folder / "data", strange)
    problem, model = ("kernel=blur", "size_x=1024", "size_y=512"), folder / "model"
    commands = [
        ("import", "kernel-tuner", folder / "cache.json", "--out", tmp_path / "again"),
        ("inspect", strange),
        ("inspect", strange, "--where", "config.mode=\x1b[2J"),
        ("merge", strange, folder / "data", "--out", tmp_path / "both \x9b"),
        ("train", strange, "--out", tmp_path / "model \x07", "--trees", "2", "--leaves", "4", "--no-folds", "--threads", "1"),
        ("select", model, *problem, "--top", "30", "--explain"),
        ("select", model, "mode=\x1b[2J"),
        ("predict", model, *problem, "--config", "mode=\x1b[2J", "--config", "block_size_x=16"),
        ("predict", json.dumps({"problem": {"kernel": "\x9b", "size_x": 1}}), "--model", model),
        ("predict", json.dumps({"problem": {"kernel": "blur", "size_x": 1024, "size_y": 512}}), "--model", model),
        ("export", model, "--to", "portfolio"),
        ("models", "add", model, "--store", strange / "store"),
        ("models", "--store", strange / "store"),
        ("models", "show", "blur", "--store", strange / "store"),
        ("models", "find", "\x1b[2J", "--store", strange / "store"),
        ("evaluate", model, strange, "--include-seen"),
        ("inspect", strange, "--verify"),
        ("export", model, "--to", "json", "--out", tmp_path / "table \x1b[2J.json"),
        ("compare", model, tmp_path / "no \x1b[2J"),
        ("select", model, "kernel=\x1b[2J", "--search"),
        ("sweep", "gemm/\x1b[2J", "--problems", "cubes", "--out", tmp_path / "v \x1b[2J"),
        ("collect", "gemm/triton", "--backend", "\x1b[2J:\x9b", "--problems", "cubes", "--out", tmp_path / "c \x1b[2J"),
        ("regenerate", strange / "\x1b[2J.toml"),
        ("list", "family", "\x1b[2J"),
        ("list", "op", "\x1b[2J"),
        ("list", "device", "\x1b[2J"),
        ("inspect", tmp_path / "no \x1b[2J"),
        ("inspect", "--no-such-\x1b[2J"),
        ("\x1b[2J",),
    ]
    worked = 0
    for command in commands:
        code, out, err = run(*command)
        worked += code in (0, 3)
        for char in out + err:
            assert char.isprintable() or char == "\n", (command, char, out[-500:], err[-500:])
    assert worked >= 10
    assert not marker.exists()
    assert not (tmp_path / "ran").exists()


def test_names_and_labels_are_bounded(home):
    """What nobody can have meant is refused with its length; one long label costs its own row."""
    folder, _ = home
    (kind,) = Dataset.open(folder / "data").skipped.kinds
    assert (kind.rows, kind.kind) == (3, "a label has at most 2,000 characters")
    declared = Model.load(folder / "model").manifest.declaration
    values = next(iter(declared.problem.values()))
    wrong = [
        {"op": "a" * 101, "family": f"{'a' * 101}/kernel_tuner"},
        {"family": f"{declared.op}/{'b' * 101}"},
        {"problem": {**declared.problem, "c" * 101: values}},
        {"problem": {**declared.problem, "c": Values("labels", labels=("d" * 2_001,))}},
        {"doc": "e" * 10_001},
    ]
    for change in wrong:
        with pytest.raises(InvalidValue, match=r"has at most [\d,]+ characters, got [\d,]+ \('.{40}…'\): shorten it"):
            declared_family(msgspec.structs.replace(declared, **change))
    for name, title in (("f" * 101, "a title"), ("a_name", "g" * 301)):
        with pytest.raises(InvalidValue, match=r"at most 100 characters .*: shorten them"):
            Device(name, title, "gpu")
