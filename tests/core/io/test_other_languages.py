"""Text from data in TOML, Markdown, shell commands, HTML scripts and terminals: it stays one value, cell, word or line."""

import io
import json
import subprocess
import sys
import tomllib
from html.parser import HTMLParser

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.support.hostile import LONG, TEXTS

from kerncast.app.api.showing import LineShow, TerminalShow, echo
from kerncast.app.cli.views import draw
from kerncast.core.io import html
from kerncast.core.io.quoting import markdown_code, markdown_text, toml_comment, toml_string, toml_table, word
from kerncast.core.io.terminal import LONGEST_LINE, TextTable, json_printable, line
from kerncast.data.formats.table.guess import draft_mapping
from kerncast.testing import repeats

# What a stranger can put into a file: any characters, the strange ones often.
ODD = "\"'\\`|*_[]<>&#$\n\r\t\x1b\x9b\u202e\ud800"
ANY = st.one_of(st.sampled_from(TEXTS), st.text(max_size=20), st.text(alphabet=ODD, max_size=12))


def is_plain(text):
    """Whether a terminal shows the text as it is: no control character but the ends of lines."""
    return all(char.isprintable() or char == "\n" for char in text)


@settings(max_examples=repeats(200, 20_000))
@given(ANY, ANY)
def test_a_toml_string_is_one_string(key, value):
    """As a key, a value and a comment; a half character becomes the replacement character."""
    text = f"{toml_comment(value)}\n{toml_string(key)} = {toml_table({value: key})}\n"
    assert is_plain(text)

    def whole(given):
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in given)

    assert tomllib.loads(text) == {whole(key): {whole(value): whole(key)}}


@settings(max_examples=repeats(200, 20_000))
@given(ANY)
def test_markdown_text_has_no_markup(text):
    """In a cell, a heading and a code span: no element, link, image, emphasis or further cell comes out of it."""
    page = f"# a {markdown_text(text)}\n\n| h | i |\n|---|---|\n| {markdown_text(text)} | {markdown_code(text)} |\n"
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(page)
    assert [token.type for token in tokens].count("td_open") == 2
    assert [token.type for token in tokens].count("heading_open") == 1
    inside = {child.type for token in tokens for child in token.children or ()}
    assert inside <= {"text", "code_inline", "text_special"}
    assert is_plain(page)


@pytest.mark.parametrize("text", [text for text in TEXTS if "\0" not in text])
def test_a_shell_reads_one_word(text):
    """bash reads the text itself, and nothing of it is run."""
    shown = word(text)
    assert is_plain(shown)
    assert "\n" not in shown
    done = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True)
    assert done.stdout.decode() == text


@settings(max_examples=repeats(200, 20_000))
@given(ANY)
def test_a_terminal_gets_one_line_of_printable_text(text):
    """Also where the text is JSON, which a program reads as before."""
    assert is_plain(line(text))
    assert "\n" not in line(text)
    written = json.dumps({"label": text}, ensure_ascii=False, indent=1)
    assert is_plain(json_printable(written))
    assert json.loads(json_printable(written)) == {"label": text}


def test_a_line_is_cut_where_nobody_reads_on():
    """With the number of characters that there were."""
    assert len(line(LONG)) < LONGEST_LINE + 50
    assert line(LONG).endswith("(5,000,000 characters)")


@settings(max_examples=repeats(200, 20_000))
@given(ANY)
def test_html_text_is_one_text(text):
    """A parser reads one element with one attribute and the text, whose hidden characters are replaced."""
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, attrs))

        def handle_data(self, data):
            found.append(data)

    reader = Reader()
    reader.feed(f'<p title="{html.escape(text)}">{html.escape(text)}</p>')
    reader.close()
    shown = html.visible(text)
    assert not any(char in shown for char in "\x1b\x9b\x00\u202e\u2066")
    assert found[0] == ("p", [("title", shown)])
    assert "".join(found[1:]) == shown


class Terminal(io.StringIO):
    """A terminal without colours, so that every control character in it comes from the text."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return lambda: out.getvalue() + err.getvalue()


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_printed_on_a_terminal_is_plain(text, terminal):
    """Lines, tables, and progress: stages, results and sentences, with and without a live display."""
    echo(text)
    echo(text, err=True)
    draw(TextTable((f"a{text}", "b"), [[text, 1]], title=text))
    for show in (LineShow(), TerminalShow("waiting")):
        with show:
            show.stage(text)
            show.step(text, 1, 2)
            show.say(text)
            show.result("ok", device=text, problem={text: text}, time_ns=1.0)
            show.tick()
    assert is_plain(terminal())


def test_a_draft_of_a_mapping_holds_any_columns_and_cells():
    """`import --guess` writes TOML with the strange names and cells of a table as they are."""
    strange = [text for text in TEXTS if text.strip()]
    table = pl.DataFrame({"M": [64, 128], "N": [64, 64], "K": [32, 32], "dtype": ["fp16", "fp16"], "time_us": [1.0, 2.0]})
    table = table.with_columns(pl.Series(name, [name, f"other {name}"]) for name in strange)
    table = table.with_columns(status=pl.Series(["ok", strange[0]]))
    draft = draft_mapping(table)
    assert is_plain(draft)
    read = tomllib.loads(draft)
    assert set(strange) <= set(read["ignore"])
    assert read["measured"]["status"]["values"][strange[0]] == "?"
