"""Text from data has one way into each language: what goes past it is found here."""

import ast
import re
from pathlib import Path

import pytest

import kerncast
from kerncast.app.cli import VERBS

HOME = Path(kerncast.__file__).parent
FILES = {path.relative_to(HOME).as_posix(): path.read_text(encoding="utf-8") for path in sorted(HOME.rglob("*.py"))}
# `kerncast verb …` up to where a value is put in, within one command.
COMMAND = re.compile(rf"\b(kerncast ({'|'.join(VERBS)})|cmake|ctest|chmod|rm)\b [^`;:()]*$")


def unquoted_words(source):
    """(line, expression) of every value that an f-string puts into a command without making it one word."""
    tree = ast.parse(source)
    words: set[str] = set()
    for node in ast.walk(tree):  # in the order of the text: a word may be made of words
        if isinstance(node, ast.Assign):
            used = {item.id for item in ast.walk(node.value) if isinstance(item, ast.Name)}
            if used & {"word", *words}:
                words |= {item.id for target in node.targets for item in ast.walk(target) if isinstance(item, ast.Name)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before += str(part.value)
                continue
            assert isinstance(part, ast.FormattedValue)
            said = ast.unparse(part.value)
            if COMMAND.search(before) and not re.match(r"word\(", said) and said not in words and not said.isupper():
                found.append((node.lineno, said))
            before += "kerncast" if said == "kerncast" else "x"
    return found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("f'`kerncast train {path}`'", 1),
        ("f'`kerncast train {word(path)} --out {out}`'", 1),
        ("f'`kerncast train {word(path)}`: {reason}'", 0),
        ("same = word(path)\nf'next: kerncast train {same}'", 0),
        ("f'{kerncast} select {path}'", 1),
    ],
)
def test_the_walk_finds_a_value_that_is_not_one_word(source, count):
    """In backticks or not, also behind another word."""
    assert len(unquoted_words(source)) == count


def test_every_value_in_a_shown_command_is_one_word():
    """A path with a space or worse can be copied from a message into a shell."""
    # Constants of click, which are names of verbs.
    known = {("app/cli/verbs/models.py", "context.invoked_subcommand"), ("app/cli/verb.py", "option")}
    found = {(name, said) for name, source in FILES.items() for _, said in unquoted_words(source)}
    assert found - known == set()


def test_one_file_prints():
    """Everything for people goes through `api/showing.py`, line by line."""
    prints = re.compile(r"\bclick\.s?echo(_via_pager)?\(|(?<![\w.])print\(|sys\.std(out|err)\.write\(")
    own = {"app/api/showing.py", "measuring/backends/command/guard.py", "measuring/worker.py", "regenerating/figures.py"}
    found = {name for name, source in FILES.items() if prints.search(source) and not name.startswith("testing/")}
    assert found <= own


def test_pages_escape_by_themselves():
    """The only templates of HTML escape everything, and what is marked as HTML already is known."""
    marked = {name for name, source in FILES.items() if re.search(r"\bMarkup\(", source)}
    assert marked <= {"evaluating/report/page.py", "core/io/html.py", "models/card.py", "data/quality.py", "space.py"}
    assert {name for name, source in FILES.items() if "Environment(" in source} == {"evaluating/report/page.py"}
    assert re.search(r"Environment\(\s*autoescape=True", FILES["evaluating/report/page.py"])
    for template in HOME.rglob("*.j2"):
        assert all("'" in part[:-1] for part in re.findall(r"{{([^}]*)\|\s*safe", template.read_text()))


def test_every_file_that_writes_a_text_is_known():
    """A new one needs a function of `core/io` that quotes what it takes from data, and a hostile test; JSON has its own."""
    texts = re.compile(
        r"write_text\((?!checksum|names|json)|write_bytes\((?![^\n]*json_text|[^\n]*FILE\.text\(|msgspec|data\b)"
    )
    known = {
        "training/train.py",  # MODEL_CARD.md: tests/answering/exporters/test_hostile_text.py
        "regenerating/shipping.py",  # MODEL_CARD.md, continued, and NOTICE: tests/regenerating/test_shipping.py
        "native/tiers/smallest_set.py",  # labels, one per line: tests/answering/test_labels.py
        "answering/exporters/project.py",  # C, C++, CMake: tests/answering/exporters/test_hostile_text.py
        "torch/validating.py",  # SVG: tests/torch/test_validating.py
        "answering/exporters/autoheuristic.py",  # Python: tests/answering/exporters/test_inductor_files.py
        "native/build.py",  # the same C
        "measuring/backends/cpu/build.py",  # JSON
        "answering/measure.py",  # JSON
        "evaluating/report/page.py",  # HTML: tests/evaluating/test_report.py
        "learning/learners/gbdt.py",  # LightGBM's own text, compressed
        "training/warm_start.py",  # LightGBM's own text, compressed
        "measuring/sweeping/files.py",  # JSON, line by line
        "measuring/backends/command/__init__.py",  # JSON
        "measuring/backends/opencl/__init__.py",  # the path of a driver, for OpenCL's loader
        "data/formats/kernel_tuner/__init__.py",  # JSON
        "data/formats/table/__init__.py",  # a mapping in TOML: tests/data/test_exporters.py
        "answering/exporters/blob.py",  # tables of numbers, and texts that C never reads as code: tests/native/test_blob.py
        "data/formats/tt_metal/writing.py",  # JSON, line by line: tests/data/formats/test_tt_writing.py
        "data/formats/aiconfigurator/tables.py",  # parts of an archive, as they are
    }
    found = {name for name, source in FILES.items() if texts.search(source) and not name.startswith(("testing/", "core/io/"))}
    assert found <= known, f"{sorted(found - known)} write texts: see the docstring of this test"
