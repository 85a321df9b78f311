"""Text from data in generated C and C++: whatever it says, it stays a comment, a string or a name."""

import re
import subprocess
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.hostile import LONG, TEXTS

from kerncast.core.io.quoting import KEYWORDS, c_string, comment, filled, identifiers, plain_words
from kerncast.testing import repeats

HOSTILE = (*TEXTS, LONG)
COMPILERS = [
    pytest.param(name, standard, marks=pytest.mark.needs("g++" if (name, standard) == ("gcc", "c++17") else name))
    for name, standard in product(("gcc", "clang"), ("c99", "gnu17", "c++17"))
]


@pytest.mark.parametrize(("compiler", "standard"), COMPILERS)
def test_comments_strings_and_names_hold_hostile_text_in_every_dialect(tmp_path, compiler, standard):
    """A file of hostile comments, strings and names compiles without a warning, and no declaration came out of the text."""
    names = identifiers([*HOSTILE, *HOSTILE, "int", "1st", "é", "_", "class"])
    lines = [f"/* {comment(text)} */\n// {comment(text)}" for text in HOSTILE] if standard != "c99" else []
    lines += [f"/* {comment(text)} */" for text in HOSTILE]
    lines += [f"static const char *const text_{place} = {c_string(text[:1000])};" for place, text in enumerate(HOSTILE)]
    used = "".join(f"    (void)text_{place};\n" for place in range(len(HOSTILE)))
    lines += [
        "enum {",
        *(f"    {name}," for name in names),
        "    last",
        "};",
        f"int stranger(void) {{\n{used}    return last;\n}}",
    ]
    file = tmp_path / ("a.cpp" if "++" in standard else "a.c")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-trigraphs", "-c", file.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@settings(max_examples=repeats(300, 20_000))
@given(st.text(alphabet=st.sampled_from("*/\\?\n\r \"'ab\u2028\0"), max_size=30))
def test_a_comment_is_one_line_that_cannot_end_itself(text):
    """No end or begin of a comment, no trigraph, no backslash, no line break is left of any text."""
    written = comment(text)
    assert not re.search(r"\*/|/\*|\?\?|\\|[\x00-\x1f]", written)
    assert len(written.splitlines()) <= 1


def test_names_are_told_apart_and_never_a_keyword():
    """What maps to the same letters gets a number; what is taken is not used again."""
    names = identifiers(["a-b", "a_b", "a b", "int", "int_", "free"], taken=["free"])
    assert names == ["a_b", "a_b_2", "a_b_3", "int_", "int__2", "free_2"]
    assert not KEYWORDS & set(names)


def test_a_template_fills_its_blocks_once():
    """The prefix goes into the template alone, and a block that looks like a block or the interface stays as it is."""
    text = filled("kerncast_f KERNCAST_X @PREFIX@ @SAID@", "mine", said="@PREFIX@ kerncast_f KERNCAST_X")
    assert text == "mine_f MINE_X mine @PREFIX@ kerncast_f KERNCAST_X"


def test_words_for_cmake_are_one_plain_line():
    """Variables, quotes, commands and line ends become underscores."""
    assert plain_words('a@b@\n${HOME} "x" $(rm) gemm/cpu 1.2') == "a_b____HOME_ _x_ __rm_ gemm/cpu 1.2"
