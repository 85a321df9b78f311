"""A stranger's words in data: labels, names, docs and devices never become code in what is generated from a model."""

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from kerncast.compiling.lower import lower
from kerncast.data.importers import Options, import_files
from kerncast.declared.declaration import resolve
from kerncast.errors import BadFile
from kerncast.exporting.project import write_project
from kerncast.models.model import Model
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import TierOptions, tiers_of
from kerncast.training.train import Recipe, train

RECIPE = Recipe("gbdt", {"trees": 3, "leaves": 4, "lr": 0.3}, folds=2, threads=1)


def hostile_labels(marker: Path) -> list[str]:
    """Labels that end a comment, in four ways, and would leave a file behind when the library is loaded."""
    code = (
        f'__attribute__((constructor)) static void own(void) {{ extern int system(const char *); system("touch {marker}"); }}'
    )
    ends = ("*/", "*\\\n/", "*??/\n/", "*/\n")
    return [f"fast {end} {code} /*" for end in ends] + [f"line\n{code}", 'quote" " \\', "KERNCAST_OK", "ok", "OK", ""]


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
    (folder / "cache.json").write_text(kernel_tuner_cache(hostile_labels(marker)))
    import_files("kernel-tuner", [folder / "cache.json"], folder / "data", Options())
    train(folder / "data", folder / "model", RECIPE)
    return folder, marker


def test_a_strangers_label_is_not_executed_when_a_model_is_used(home):
    """Import, train, select: the compiled chooser holds the label as data and answers with it."""
    folder, marker = home
    answer = Selector(folder / "model").select({"kernel": "blur", "size_x": 1024, "size_y": 512})
    assert str(answer.status) == "ok"
    assert dict(answer.config)["mode"] in hostile_labels(marker)
    assert not marker.exists()


def test_a_family_name_with_a_line_break_is_refused(home):
    """The id of a declared family is its op's name and one more name; a model that says otherwise is not loaded."""
    folder, _ = home
    declared = Model.load(folder / "model").manifest.declaration
    wrong = msgspec.structs.replace(declared, family=f"{declared.family}\nint stranger;")
    with pytest.raises(BadFile, match="letters, digits"):
        resolve(wrong.family, wrong, "a model")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_strangers_device_and_docs_are_not_executed_in_an_exported_project(home):
    """C and C++ headers with hostile labels, docs and device name compile without a warning, and the self-test runs."""
    folder, marker = home
    model = Model.load(folder / "model")
    words = hostile_labels(marker)[1] + '\nint stranger = "1";'
    for owner, field in ((model.device, "name"), (model.family, "id")):
        object.__setattr__(owner, field, words)
    for parameter in (*model.family.problem.parameters.values(), *model.family.config.parameters.values()):
        object.__setattr__(parameter, "doc", words)
    out = folder / "picker"
    write_project(lower(model, tiers_of(model, TierOptions())), out, "picker")
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
