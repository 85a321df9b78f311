"""The pages keep their word: commands and Python in README and docs run, or at least name verbs and options that exist."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from page_blocks import MARKERS, NEEDS, PAGES, Block, Command, blocks_of, is_printed, rewritten, starts_with, without_blocks
from page_options import all_options, check, open_word, split
from tests.support.needs import require

from kerncast.app import cli
from kerncast.app.serve.app import create_app
from kerncast.app.serve.server import Settings
from kerncast.app.serve.sources import Sources
from kerncast.errors import KerncastError

# What a shell does and a list of words does not: pipes, several commands, variables in front.
SHELL = re.compile(r"[|&;]|<<|^\w+=")
# The address that `kerncast serve` prints, asked without a network.
SERVER = "http://127.0.0.1:8321"
# Write what is printed into the pages instead of failing: `make examples`.
REWRITING = bool(os.environ.get("KERNCAST_REWRITE"))
INNER = re.compile(r"\$\(kerncast ([^)]*)\)")
NAMES = [path.name for path in PAGES]
README, *DOCS = PAGES
INSTALL = "$ pip install "
# The first pages of a new reader. What other pages show takes minutes to run.
FIRST = {"quickstart.md", "predicting.md", "training.md", "exporting.md"}
RUN = [pytest.param(path, marks=[] if path.name in FIRST else [pytest.mark.needs("a second stage")]) for path in DOCS]


class Failed(Exception):
    """A block did not do what its page says."""


class Folder:
    """Runs the blocks of one page in one folder, in their order; Python shares its names."""

    def __init__(self, page: str, path: Path) -> None:
        self.page, self.path = page, path
        self.changed: dict[Command, str] = {}
        self.printed = ""
        self.names: dict[str, Any] = {"__name__": "__page__"}

    def run(self, block: Block) -> None:
        if "file" in block.markers:
            (self.path / block.markers["file"]).write_text(block.text + "\n")
        elif block.language == "console":
            codes = [int(code) for code in block.markers.get("exits", "0").split(",")]
            for command in block.commands():
                self._run_command(command, block, codes)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "pycon":
            self._run_pycon(block)

    def _run_command(self, command: Command, block: Block, codes: list[int]) -> None:
        text = command.text.replace("$PWD", str(self.path))
        if SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", text)) or not text.startswith(("kerncast ", f"curl {SERVER}")):
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            code, printed = done.returncode, [done.stdout.decode(errors="replace")]
        elif text.startswith("curl "):
            code, printed = 0, [_of_server(*split(text)[1:])]
        else:
            text = INNER.sub(lambda inner: _in_process(split(inner[1]))[1].strip(), text)
            words = split(text)[1:]
            words, target = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
            code, out, both = _in_process([*words, *block.smaller().get(words[0], [])])
            if target:
                (self.path / target).write_text(out)
            printed = [out, both]
        whole = f"$ {command.text}\n{printed[-1]}"
        if code not in codes:
            raise Failed(f"{self.page}:{command.line}: exit code {code} of\n{whole}")
        if command.shown.strip() and "printed" not in block.markers:
            self._compare(command, printed, whole)

    def _compare(self, command: Command, printed: Sequence[str], whole: str) -> None:
        """What the page shows is what is printed now, on stdout or on both streams."""
        if any(is_printed(command.shown, text) for text in printed):
            return
        now = next(filter(None, (rewritten(command.shown, text) for text in reversed(printed))), None)
        if now is None or not REWRITING:
            todo = "run `make examples`" if now else "more than numbers changed, so edit the page by hand"
            raise Failed(
                f"{self.page}:{command.shown_at}: this is shown:\n{command.shown}\nand {todo}; this is printed:\n{whole}"
            )
        self.changed[command] = now

    def _run_python(self, block: Block) -> None:
        # Line numbers are those of the page.
        source = compile("\n" * (block.line - 1) + block.text, self.page, "exec", dont_inherit=True)
        if "needs" in block.markers:
            return
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(source, self.names)
        except Exception as error:
            raise Failed(f"{self.page}:{block.line}: {traceback.format_exc()}\n{printed.getvalue()}") from error
        self.printed = printed.getvalue()

    def _run_pycon(self, block: Block) -> None:
        example = doctest.DocTestParser().get_doctest(block.text, self.names, self.page, self.page, block.line - 1)
        printed = io.StringIO()
        if doctest.DocTestRunner(verbose=False).run(example, out=printed.write).failed:
            raise Failed(f"{self.page}:{block.line}:\n{printed.getvalue()}")


def _in_process(words: list[str]) -> tuple[int, str, str]:
    """A kerncast command in this process, which saves a second of imports: exit code, stdout, and that with stderr."""
    both = io.BytesIO()
    raw = _Copied(both)
    # As a real stdout, for some of what is printed are bytes.
    out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in (raw, both))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        cli.main(words)
    code = stopped.value.code
    return code if isinstance(code, int) else 0, raw.getvalue().decode(), both.getvalue().decode()


class _Copied(io.BytesIO):
    """Keeps what is written, and gives another stream a copy."""

    def __init__(self, other: io.BytesIO) -> None:
        super().__init__()
        self.other = other

    def write(self, data: Any) -> int:
        self.other.write(data)
        return super().write(data)


def _of_server(address: str, option: str, body: str) -> str:
    """The reply of a server to a question that curl sends."""
    assert option == "--json"

    async def ask() -> str:
        transport = httpx.ASGITransport(app=create_app(Sources.open(), Settings()))
        async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:
            return (await client.post(address, content=body, headers={"content-type": "application/json"})).text

    return asyncio.run(ask())


@contextlib.contextmanager
def _in_folder(path: Path) -> Iterator[None]:
    """Work in a folder, with its own store, in which `python3` and `kerncast` are those of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("KERNCAST_STORE", str(path / "store"))
        yield


@pytest.fixture(scope="module")
def example_data(tmp_path_factory: pytest.TempPathFactory, few_samples: None) -> Path:
    """The small datasets, models and store that the pages use, made by the commands that the docs give for it."""
    require("a C compiler")
    path = tmp_path_factory.mktemp("example_data")
    with _in_folder(path):
        for page in PAGES:
            folder = Folder(page.name, path)
            for block in blocks_of(page.read_text()):
                if "makes" in block.markers:
                    folder.run(block)
    return path


@pytest.mark.parametrize("page", RUN, ids=NAMES[1:])
def test_what_a_page_shows_runs(page, example_data, tmp_path):
    """Every block without `needs`, in the page's order, in one folder: exit codes are right, and what is shown is printed."""
    text = page.read_text()
    for name, source in starts_with(text).items():
        original = example_data / source
        (shutil.copytree if original.is_dir() else shutil.copy)(original, tmp_path / name)
    folder = Folder(page.name, tmp_path)
    with _in_folder(tmp_path):
        for block in blocks_of(text):
            require(*block.markers.get("uses", "").split())
            if "makes" not in block.markers and ("needs" not in block.markers or block.language == "python"):
                folder.run(block)
    _rewrite(page, folder.changed)


def _rewrite(page: Path, changed: dict[Command, str]) -> None:
    """What is printed now; from the end, where nothing has moved yet."""
    lines = page.read_text().split("\n")
    for command, now in sorted(changed.items(), key=lambda item: -item[0].line):
        lines[command.shown_at - 1 : command.shown_at + command.shown.count("\n")] = now.split("\n")
    if changed:
        page.write_text("\n".join(lines))


def _after_the_install_line() -> list[Block]:
    blocks = blocks_of(README.read_text())
    return blocks[next(place for place, block in enumerate(blocks, 1) if INSTALL in block.text) :]


def test_the_readme_is_short_and_begins_with_the_two_commands():
    """A screen and a half, with the main job and the tests on the first screen, and nothing that only the tests see."""
    text = README.read_text()
    lines = text.splitlines()
    assert len(lines) <= 110
    assert "<!--" not in text
    assert {"$ make quickstart", "$ make test"} <= {line.split("  ")[0] for line in lines[:30]}


def test_what_the_commands_of_the_readme_print_is_what_it_shows(tmp_path):
    """Those below the install line, in an empty folder."""
    folder = Folder(README.name, tmp_path)
    with _in_folder(tmp_path):
        for block in _after_the_install_line():
            if block.language == "console":
                folder.run(block)
    _rewrite(README, folder.changed)


@pytest.mark.needs("a C compiler", "a second stage")
def test_every_block_of_the_readme_runs_in_an_empty_folder(tmp_path):
    """Below the install line and in the order of the page; the choice is `ok`, and there is a verdict."""
    folder = Folder(README.name, tmp_path)
    with _in_folder(tmp_path):
        for block in _after_the_install_line():
            folder.run(block)
    assert folder.names["answer"].status == "ok"
    assert re.search(r"^(BETTER|SAME|WORSE|AMBIGUOUS): ", folder.printed, re.M)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_of_a_page_has_options_that_exist(page):
    """Those that are not run, too; and markers are spelt right."""
    wrong = []
    for block in blocks_of(page.read_text()):
        assert set(block.markers) <= MARKERS, f"{page.name}:{block.line}: {block.markers}"
        assert block.markers.get("needs", "gpu") in NEEDS, f"{page.name}:{block.line}: {block.markers}"
        if block.language != "console":
            continue
        assert block.commands(), f"{page.name}:{block.line}: a console block without a command"
        for command in block.commands():
            inner = INNER.findall(command.text)
            outer = [part.strip() for part in INNER.sub("FOUND", command.text).split(" && ")]
            for words in [*inner, *(part.removeprefix("kerncast ") for part in outer if part.startswith("kerncast "))]:
                wrong += _complaint(page.name, command.line, words, whole=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_option_in_the_text_of_a_page_exists(page):
    """`kerncast VERB …` and `--option` between backquotes, except in the columns for other systems."""
    wrong = []
    options = all_options()
    for line, text in enumerate(without_blocks(page.read_text()).split("\n"), start=1):
        ours = text.split(" | ", 1)[-1] if page.name == "coming-from.md" and text.startswith("| ") else text
        for span in re.findall(r"`([^`]+)`", ours.replace("\\|", "|")):
            if span.startswith("kerncast "):
                wrong += _complaint(page.name, line, span.removeprefix("kerncast "), whole=False)
            elif span.startswith("--") and (name := re.match(r"[-\w]+", span)[0]) not in options:
                wrong.append(f"{page.name}:{line}: no verb has an option {name}")
    assert not wrong, "\n".join(wrong)


def _complaint(page: str, line: int, text: str, *, whole: bool) -> list[str]:
    words = split(text)
    if ">" in words:
        words = words[: words.index(">")]
    try:
        check(words, whole=whole and not any(open_word(word) for word in words))
    except (KerncastError, click.ClickException) as error:
        said = error.format_message() if isinstance(error, click.ClickException) else error
        return [f"{page}:{line}: kerncast {text}: {said}"]
    return []


PAGE = """# A page

<!-- starts with: mine more=held_out -->

<!-- exits: 0, 1 -->
<!-- smaller: train --trees 5; collect --samples 1 -->
```console
$ kerncast train mine \\
    --out model     # a comment
some output
$ cat > list <<'END'
$ not a command
END
```
"""


def test_commands_are_found_with_their_continuations_and_markers():
    """Output is no command, nor is what a here-document holds."""
    (block,) = blocks_of(PAGE)
    assert [(item.line, item.text) for item in block.commands()] == [
        (8, "kerncast train mine \\\n    --out model     # a comment"),
        (11, "cat > list <<'END'\n$ not a command\nEND"),
    ]
    assert [(item.shown_at, item.shown) for item in block.commands()] == [(10, "some output"), (14, "")]
    assert split(block.commands()[0].text) == ["kerncast", "train", "mine", "--out", "model"]
    assert block.markers["exits"] == "0, 1"
    assert block.smaller() == {"train": ["--trees", "5"], "collect": ["--samples", "1"]}
    assert starts_with(PAGE) == {"mine": "mine", "more": "held_out"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trian mine", "trian"),
        ("models ad m", "there is no verb 'ad'"),
        ("train mine --tres 5 --out m", "no option --tres"),
        ("train mine", "Missing option '--out'"),
        ("train mine --model forest --out m", "forest"),
        ("collect gemm/cuda --problems llm --out d", "gemm/cuda"),
        ("collect gemm/cpu --problems lm --out d", "no problem set 'lm'"),
        ("collect gemm/cpu --problems llm --vary dtyp=fp32 --out d", "dtyp"),
        ("collect gemm/cpu --problems 'grid:M=1;Q=2' --out d", "Q"),
        ("collect gemm/cpu --benchmark ck-tile --set build_dir=b --set arch=gfx950 --problems llm --out d", "does not measure"),
        ("import cvs a.csv --out d", "no format 'cvs'"),
        ("sweep gemm/triton --problems llm --device a1000 --out v", "a1000"),
        ("collect gemm/cpu --problems llm --cache hot --out d", "hot"),
    ],
)
def test_a_command_that_cannot_be_right_is_named(text, why):
    """Page, line, command and what is wrong with it."""
    (said,) = _complaint("page.md", 3, text, whole=True)
    assert said.startswith(f"page.md:3: kerncast {text}: ")
    assert why in said


SHOWN = 'M=1 N=16\ntime  1.75 ms  …  84.0%\n{"a":[1,\n 2]}'
OTHER = SHOWN.replace("1.75", "11.9").replace("84.0", "85.1").replace(" 2]", " -3e-9]")


@pytest.mark.parametrize(
    ("printed", "now"),
    [
        ("M=1 N=16\ntime  1.75 ms  0.5 to 2  84.0%\n{\"a\":[1,2]}\n", SHOWN),
        ("M=1 N=16\ntime  11.9 ms  0.5 to 2  85.1%\n{\"a\":[1,-3e-9]}\n", OTHER),
        ("M=1 N=16\nduration  1.75 ms  84.0%\n{\"a\":[1,2]}\n", None),
    ],
)  # fmt: skip
def test_what_a_page_shows_is_compared_and_its_numbers_rewritten(printed, now):
    """White space and `…` may differ; other numbers are written, other words where something is left out need a person."""
    assert is_printed(SHOWN, printed) == (now == SHOWN)
    assert rewritten(SHOWN, printed) == now
