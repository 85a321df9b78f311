"""What a release needs: workflows whose commands exist, one version, a citation and a notice that travel with the package."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import kerncast

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def test_there_are_workflows_for_tests_and_releases():
    """Both are found, so that the tests below look at something."""
    assert [path.name for path in WORKFLOWS] == ["release.yml", "test.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_workflows_exist(path):
    """Every `make` target and variable is in the Makefile, workflows that are called are there, every action has a version."""
    workflow = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.M))
    made = []
    for step in steps(workflow):
        for words in re.findall(r"\bmake ([^\n\")]*)", step.get("run", "")):
            for word in words.split():
                if "=" in word:
                    assert re.search(rf"^{word.split('=')[0]} [?:]?=", MAKEFILE, re.M), word
                elif not word.startswith("-"):
                    assert word in targets, word
                    made.append(word)
        if "uses" in step:
            assert re.search(r"@\w", step["uses"]), step["uses"]
    assert made
    for job in workflow["jobs"].values():
        if "uses" in job:
            assert (ROOT / job["uses"]).is_file()


def test_tests_run_on_every_python_and_both_machines():
    """The matrix is what the package's metadata promises: from the oldest Python to the newest, x86-64 and ARM."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert {machine.endswith("-arm") for machine in matrix["machine"]} == {True, False}
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    promised = [text.rpartition(" ")[2] for text in PROJECT["project"]["classifiers"] if ":: Python :: 3." in text]
    assert promised == PYTHONS
    assert any(step.get("run", "").startswith("make test") for step in workflow["jobs"]["test"]["steps"])


def test_the_version_is_said_in_one_place():
    """`make version` and the build read version.py; no other file of a release repeats it."""
    said = subprocess.run(["make", "--silent", "version"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip() == kerncast.__version__
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/kerncast/version.py"
    assert "version" in PROJECT["project"]["dynamic"]
    for name in ("pyproject.toml", "CITATION.cff", "docs/conf.py"):
        assert not re.search(rf"version.*['\" ]{re.escape(kerncast.__version__)}['\"]?$", (ROOT / name).read_text(), re.M), name


def test_citation_and_notice():
    """The citation has what its format requires; the notice is a licence file of the package and names the tables' owner."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["project"]["license"]
    assert "NOTICE" in PROJECT["project"]["license-files"]
    notice = (ROOT / "NOTICE").read_text()
    shipped = (ROOT / "src/kerncast/library/shipped/NOTICE").read_text()
    package, owner = r"PyPI aiconfigurator-core==[\d.]+\d", r"Copyright \(c\) NVIDIA.*"
    for part in (package, owner, r"Licensed under the Apache.*: .*", r"No rows.*?\."):
        said = re.search(part, shipped)
        assert said is not None, part
        assert said[0] in notice, "both notices say the same of the tables: package and version, owner, licence"
    assert "Tenstorrent" in notice
    assert "Tenstorrent" in shipped


def test_an_sdist_holds_what_its_tests_read():
    """Everything at the top of the tree that is under version control is in it, but for the settings of git."""
    listed = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name.removeprefix("/")).exists() for name in listed)
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked}
    assert top - {name.removeprefix("/") for name in listed} <= {".gitignore", "pyproject.toml"}
