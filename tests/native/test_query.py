"""The JSON entry point in C: every way of writing a problem, every kind of bad input, and the text that is generated."""

import json
import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_requests import REFUSED
from query_toy import STRICT, TOY, TOY_CONFIG, TOY_PROBLEM, Artefact, build, header

from kerncast.core.parameters import Bool
from kerncast.core.space import Space
from kerncast.errors import InvalidValue
from kerncast.library.registry import FAMILIES
from kerncast.native.query import Identity, query_source
from kerncast.testing import repeats
from kerncast.testing.exported import COMPILERS, EACH_COMPILER

# -- what is asked arrives, what is answered is JSON ---------------------------------------------------------------

POINTS = st.fixed_dictionaries(
    {"M": st.integers(1, 2**63 - 1), "dtype": st.sampled_from(list(dict(TOY["dtype"].labels)))},
    optional={"größe": st.integers(-(2**63) + 1, 2**63 - 1), "tf32": st.booleans(), "mask": st.sampled_from([1, 2, 64])},
)


def written(draw, value):
    """JSON text of a value in one of the many ways that mean the same."""
    if isinstance(value, dict):
        items = draw(st.permutations(list(value.items())))
        inner = ",".join(f"{space(draw)}{written(draw, key)}{space(draw)}:{written(draw, item)}" for key, item in items)
        return f"{space(draw)}{{{inner}{space(draw)}}}{space(draw)}"
    if isinstance(value, str):
        units = [value.encode("utf-16-be")[i : i + 2].hex() for i in range(0, 2 * len(value.encode("utf-16-be")) // 2, 2)]
        escaped = "".join(f"\\u{unit}" for unit in units)
        return draw(st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False), f'"{escaped}"']))
    if type(value) is int and abs(value) < 2**53:
        digits, zeros = str(value), "0" * draw(st.integers(1, 30))
        ways = [digits, f"{digits}.{zeros}", f"{digits}E+00", f"{digits}.0e0"]
        if value != 0:
            ways.append(f"{digits}{zeros}e-{len(zeros)}")
        if value > 9:
            ways.append(f"{digits[0]}.{digits[1:]}e{len(digits) - 1}")
        return space(draw) + draw(st.sampled_from(ways)) + space(draw)
    return space(draw) + json.dumps(value) + space(draw)


def space(draw):
    return draw(st.sampled_from(["", "", " ", "\n\t", "\r\n  "]))


@settings(max_examples=repeats(200, 20_000))
@given(data=st.data(), point=POINTS, tier=st.sampled_from([None, "tree", "portfolio", "full"]))
def test_every_way_of_writing_a_problem_arrives_exactly(artefact, data, point, tier):
    """Order, space, escapes, exponents, all of int64: config and tier of the reply are those asked for."""
    request = {"problem": point} if data.draw(st.booleans()) else dict(point)
    if tier:
        request["tier"] = tier
    reply = artefact.ask(written(data.draw, request))
    assert reply == {"status": "ok", "tier": tier or "memo", "config": point, "time_ns": point["M"] / 10.0}


def test_a_list_is_answered_by_a_list_and_a_bad_element_in_its_place(artefact):
    """Positions count from the start of the whole text."""
    text = ' [ {"M": 1}, 5, {"M": 2, "tier": "full"},[{"M":1}], {"N": 3}, {"M": 0},\n{"problem": {"M": 3}} ] '
    replies = artefact.ask(text)
    assert [reply["status"] for reply in replies] == ["ok", "bad_input", "ok", *["bad_input"] * 3, "ok"]
    assert [reply["config"]["M"] for reply in replies if reply["status"] == "ok"] == [1, 2, 3]
    starts = [text.index("5"), text.index("[{"), text.index('"N"'), text.index("0}")]
    assert [reply["position"] for reply in replies if reply["status"] != "ok"] == starts
    assert artefact.ask("[]") == []


def test_each_status_of_the_engine_has_its_reply(artefact):
    """The config outside the hull is a fallback, numbers that are unknown or none are left out, broken text is fixed."""
    ask = {case: artefact.ask(json.dumps({"M": 5, "case": case})) for case in range(10)}
    assert ask[1] == {
        "status": "out_of_range",
        "message": "another case was trained",
        "parameter": "case",
        "position": 17,
        "fallback": {"M": 5, "case": 1},
    }
    assert ask[0] == {**{key: ask[1][key] for key in ask[1] if key != "fallback"}, "message": "nothing fits"}
    assert ask[2] == {"status": "unsupported", "message": "no", "position": 0}
    assert ask[3] == {"status": "no_valid_config", "message": "none", "position": 0}
    assert ask[4] == {"status": "mismatch", "message": "other header", "position": 0}
    assert ask[5] == {"status": "corrupt", "message": "checksum", "position": 0}
    assert ask[6]["status"] == "corrupt"
    assert "export the model again" in ask[6]["message"]
    assert ask[7] == {"status": "ok", "tier": "memo", "config": {"M": 5, "case": 7}, "efficiency": 0}
    assert ask[8]["message"] == "\ufffd" * 240
    assert [ask[9][name] for name in ("time_ns", "lower_ns", "upper_ns", "efficiency")] == [0.5, 0.1, 1e300, 2 / 3]


def test_a_reply_that_does_not_fit_is_not_written_but_measured(artefact):
    """Any room from none to one byte too few gives too_small, the needed bytes and an empty text."""
    text = b'[{"M": 128, "dtype": "fp8"}, {"Q": 1}]'
    status, needed, whole = artefact.raw(text)
    assert (status, len(whole)) == ("ok", needed)
    for room in range(needed):
        assert artefact.raw(text, room) == ("too_small", needed, b"\0" if room else b"")
    assert artefact.raw(text, needed) == ("ok", needed, whole)


@pytest.mark.needs("a C compiler", "sources of locales")
@pytest.mark.parametrize("name", ["de_DE", "ps_AF"])
def test_a_locale_with_another_decimal_point_changes_nothing(tmp_path, name):
    """A comma (German) or two bytes (Pashto) stand for the point in that locale's printf."""
    subprocess.run(["localedef", "-i", name, "-f", "UTF-8", tmp_path / f"{name}.UTF-8"], check=True)
    program = build(tmp_path, COMPILERS[0], STRICT, "query_driver.c")
    started = Artefact(program, tmp_path, [f"{name}.UTF-8"], {**os.environ, "LOCPATH": str(tmp_path)})
    assert started.ask('{"M": 12345}')["time_ns"] == 1234.5
    assert started.ask('{"M": 1, "case": 9}')["upper_ns"] == 1e300
    started.close()


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_with_the_rule_and_the_place(artefact, name):
    """One typed reply, the byte where the trouble begins, the rule that was broken."""
    text, position, message = REFUSED[name]
    reply = artefact.ask(text)
    assert (reply["status"], reply["position"]) == ("bad_input", position)
    assert message in reply["message"]


def test_null_says_that_a_conditional_parameter_does_not_apply(artefact):
    """As in the problems that Python writes out; a parameter that always applies takes none."""
    assert artefact.ask('{"M": 1, "mask": null}')["config"] == {"M": 1}
    assert artefact.ask('{"M": 1, "tf32": null}')["parameter"] == "tf32"


# -- the generated text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", EACH_COMPILER)
def test_every_family_compiles_under_a_prefix_of_its_own(tmp_path, compiler):
    """Tables of any shape, an empty config too, in strict C99; two artefacts share no external name."""
    for place, family in enumerate(FAMILIES):
        prefix = f"lib{place}"
        asked = Identity(family.op, family.id, ("card",), "m", None)
        text = header(tmp_path) + query_source(prefix, family.problem, family.config, asked)
        text = text.replace("kerncast_", f"{prefix}_").replace("KERNCAST_", f"{prefix.upper()}_")
        counts = [f"-DPROBLEM_COUNT={len(family.problem.parameters)}", f"-DCONFIG_COUNT={len(family.config.parameters)}"]
        (tmp_path / f"{prefix}.c").write_text(text)
        subprocess.run([compiler, *STRICT, *counts, "-fsyntax-only", tmp_path / f"{prefix}.c"], check=True)
    assert any(not family.config.parameters for family in FAMILIES)


@pytest.mark.needs("a C compiler")
def test_a_header_with_another_number_of_parameters_does_not_compile(tmp_path):
    """The tables and the struct must be of one export."""
    (tmp_path / "q.c").write_text('#include "query_artefact.h"\n' + query_source("kerncast", TOY_PROBLEM, TOY_CONFIG))
    header(tmp_path)
    counts = [f"-DPROBLEM_COUNT={len(TOY) + 1}", f"-DCONFIG_COUNT={len(TOY)}"]
    command = [COMPILERS[0], *STRICT, *counts, f"-I{tmp_path}", "-fsyntax-only", tmp_path / "q.c"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert "query_problem_layout" in ended.stderr
    assert ended.returncode != 0


def test_a_parameter_named_like_a_key_of_the_request_is_refused():
    """`tier` beside the parameters would be read as one of them."""
    with pytest.raises(InvalidValue, match="JSON requests reserve the key 'tier': rename"):
        query_source("kerncast", Space("toy", "p", {"tier": Bool()}), TOY_CONFIG)
