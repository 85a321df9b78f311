"""Texts that a stranger may put into a file: for tests of whatever writes text from data somewhere."""

from __future__ import annotations

from kerncast.testing import repeats

TEXTS = (
    "*/ int stranger; /*",
    "*\\\n/ int stranger; /*",
    "*??/\n/ int stranger; /*",
    "line\nint stranger;\n//",
    "carriage\rint stranger;",
    'quote " int stranger; "',
    "'; touch stranger; '",
    "$(touch stranger) `touch stranger` ${HOME} %PATH%",
    "ends with a backslash \\",
    "ends with a trigraph ??/",
    "@LABELS@ @PREFIX@ kerncast_context {{ 7 * 7 }} {0} %s",
    "</script><script>stranger()</script><img src=x onerror=stranger()>",
    "<!-- --> & &lt; ]]>",
    "| cell | **bold** [link](javascript:stranger()) ![image](x) `code` # heading",
    "\x1b[2J\x1b]0;stranger\x07\x1b]8;;http://stranger\x1b\\",
    "\x9b2J \x7f \x08\x08\x08",
    "\u2028int stranger;\u2029 \u202e reversed \u2066 \u200b \ufeff",
    "\0 zero",
    '"""\n[stranger]\nkey = 1',
    "= - + @ # ~",
    "",
    " ",
    "é 語 🙂",
)
LONG = "x" * repeats(5_000_000, 50_000_000)
