"""What Tab offers, and the scripts that make a shell ask for it."""

import os
import re
import shutil
import subprocess
import sys

import click
import pytest
from tests.support.hostile import TEXTS

from kerncast.app.cli import program

SHELLS, VARIABLE = ("bash", "zsh", "fish"), "_KERNCAST_COMPLETE"
HEADER = "input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat16,input_DRAM,input_L1,kernel_duration"


def offered(line, folder):
    """The words that click offers at the end of a command line, in a folder."""
    words = line.split(" ")
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), VARIABLE: "bash_complete"}
    run = subprocess.run(
        [sys.executable, "-m", "kerncast.app.cli"],
        cwd=folder,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    return {item.partition(",")[2] for item in run.stdout.split()}


@pytest.fixture
def folder(tmp_path, run):
    """A folder with a dataset, a damaged dataset and a folder of something else."""
    (tmp_path / "exp.csv").write_text(f"{HEADER}\n64,32,0,0,1,1,0,1000\n")
    code, _, _ = run(
        "import", "ttnn-csv", tmp_path / "exp.csv", "--set", "func=exp", "--device", "n150", "--out", tmp_path / "exp"
    )
    assert code == 0
    for name, text in (("broken", "{"), ("other", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "dataset.json").write_text(text)
    return tmp_path


def test_tab_offers_names_that_exist_and_never_an_error(folder):
    """Ops with their aliases, families, devices whatever the case, formats, kinds, folders, columns of a dataset."""
    assert {"gemm", "gelu"} <= offered("kerncast list op ge", folder)
    assert "gemm/single" in offered("kerncast collect gemm/", folder)
    assert offered("kerncast list device MI3", folder) == {"mi300x", "mi325x", "mi350x"}
    assert offered("kerncast train exp --kind m", folder) == {"mlp"}
    assert offered("kerncast import ai", folder) == {"aiconfigurator"}
    assert offered("kerncast inspect ", folder) >= {"exp", "broken", "other/"}
    assert offered("kerncast inspect exp --where problem.d", folder) >= {"problem.dtype=", "problem.dim3="}
    for line in (
        "kerncast inspect broken --where ",
        "kerncast inspect nowhere/",
        "kerncast models show x",
        "kerncast list device nowhere/",
    ):
        assert offered(line, folder) == set()


def test_tab_offers_no_name_that_a_shell_would_obey(tmp_path):
    """Folders that a stranger named: shells insert what is offered unquoted, and a line end in it would be another offer."""
    for text in TEXTS:
        name = f"x{text}".replace("/", "").replace("\0", "")
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "x1").mkdir()
    (tmp_path / "x1" / "y\n$(touch stranger).toml").touch()
    found = offered("kerncast inspect x", tmp_path)
    assert {"x/", "x1/"} <= found
    assert "".join(found).isprintable()
    assert not re.search(r"""[$`\\"'!&|;<>(){}*?#~]|stranger""", "".join(found)), found
    assert offered("kerncast list device x1/", tmp_path) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_accepted_by_it(shell, tmp_path):
    """Click prints it where the variable asks for it, as the docs say; a shell that is installed parses it."""
    asked = {**os.environ, VARIABLE: f"{shell}_source"}
    command = [sys.executable, "-c", "from kerncast.app.cli import program; program(prog_name='kerncast')"]
    out = subprocess.run(command, env=asked, capture_output=True, text=True, check=False).stdout
    assert f"{VARIABLE}={shell}_complete" in out
    if shutil.which(shell):
        (tmp_path / "script").write_text(out)
        assert subprocess.run([shell, "-n", tmp_path / "script"], check=False).returncode == 0


def test_every_verb_that_takes_a_name_completes_it():
    """No argument or option for an op, family, device, format, model or dataset is left without a completer."""
    named = {"FAMILY", "OP", "FORMAT", "MODEL", "DATASET", "DATASET...", "MODEL|DATASET", "DATASET|PATH", "FAMILY|VECTORS",
             "OP|MODEL|ID|REQUEST", "[PATH|ID...]", "[NAME]", "ID", "OLD", "NEW"}  # fmt: skip

    def commands(group):
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            yield name, command
            if isinstance(command, click.Group):
                yield from commands(command)

    found = 0
    for verb, command in commands(program):
        for item in command.params:
            if item.metavar in named and item.name != "out":
                found += 1
                assert item._custom_shell_complete is not None, f"{verb} {item.name}"
    assert found > 20
