"""The JSON entry point in C: round trips with Python's json, every kind of bad input, fuzzing under sanitizers."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerncast.compiling.json_text import NotJson, scan
from kerncast.compiling.query import query_source
from kerncast.compiling.request import Identity
from kerncast.errors import InvalidValue
from kerncast.models import software as softwares
from kerncast.models.statuses import C_STATUSES
from kerncast.op import Op
from kerncast.parameters import Bool, Categorical, Choice, Int, JsonField
from kerncast.registry import FAMILIES
from kerncast.space import Space

HERE = Path(__file__).parent
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow", "-Wconversion", "-Wno-sign-conversion"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
STATUSES = [str(status) for status in C_STATUSES]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
ROOM = 1 << 16

# The config is declared like the problem: the stand-in engine answers with what it was asked.
TOY = {
    "M": Int(1, 2**63 - 1),
    "case": Int(0, 9, default=0),
    "dtype": Categorical({"fp8": 4, "fp16": 2, 'say "ä"\\': 7, "??=": 8, "😀": 0}),
    "größe": Int(-(2**63) + 1, 2**63 - 1),
    "tf32": Bool(),
    "mask": Choice(1, 2, 64, when=lambda p: p.dtype == "fp8"),
}
TOY_PROBLEM, TOY_CONFIG = Space("toy", "p", TOY), Space("toy/own", "c", TOY)


def build(folder, compiler, flags, *sources, op=None):
    """An executable of the stand-in artefact with the generated entry point; of an op, with the requests it declares."""
    problem, config = (TOY_PROBLEM, TOY_CONFIG) if op is None else (op.problem, Space("toy/own", "c", op.parameters))
    counts = [f"-DPROBLEM_COUNT={len(problem.parameters)}", f"-DCONFIG_COUNT={len(config.parameters)}"]
    generated, program = folder / "query.c", folder / f"{Path(sources[0]).stem}-{compiler}"
    generated.write_text('#include "query_artefact.h"\n' + query_source("kerncast", problem, config, op and identity(op)))
    files = [generated, HERE / "query_artefact.c", *(HERE / source for source in sources)]
    subprocess.run([compiler, *flags, *counts, f"-I{HERE}", *files, "-o", program, "-lm"], check=True)
    return program


class Toy(Op):
    """A tensor of three dimensions, by paths, foreign names and numbers."""

    name = "toy"
    parameters = {**TOY, "depth": Int(0, 99, default=1), "rows": Int(0, 99, default=1),
                  "out": Categorical({"fp8": 4, "fp16": 2, "in": 9}, default="in"), "extra": Bool(default=False)}  # fmt: skip
    split_group = ("M",)
    aliases = {"small": {"case": 7, "tf32": True}}
    json = (
        JsonField(("tensor.shape", "spec.logical_shape"), ("depth", "rows", "M")),
        JsonField(("tensor.dtype", "spec.layout.dtype"), ("dtype",), (("float16", "fp16"), ("ärger", "fp8"), (3, "fp8"))),
        JsonField(("out.dtype",), ("out",), (("float16", "fp16"),), same=("dtype", "in")),
        JsonField(("extra",), ("extra",), present=True),
        JsonField(("extra.rows",), ("rows",)),
        JsonField(("spec.layout.page", "scale")),
    )


TRAINED_ON = '{"commit":"abcdef0123456","compiler":"gcc 12 \u00e4","threads":2}'


def identity(op):
    return Identity(op, "toy/own", ("card", "c1"), 'toy "m"', "abcdef0123456", (TRAINED_ON,))


class Artefact:
    """The compiled driver: one request at a time, as bytes."""

    def __init__(self, program, folder, arguments=(), environment=None):
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
            )

    def raw(self, text, room=ROOM):
        """Status, bytes needed, and what was written."""
        self.process.stdin.write(struct.pack("=II", len(text), room) + text)
        self.process.stdin.flush()
        header = self.process.stdout.read(12)
        assert len(header) == 12, f"the driver died of {text!r}:\n{self.errors.read_text(errors='replace')}"
        status, needed, follows = struct.unpack("=III", header)
        return STATUSES[status], needed, self.process.stdout.read(follows)

    def ask(self, text):
        """The reply, parsed; its status is also what the call returned, and its length what was said to be needed."""
        status, needed, out = self.raw(text if isinstance(text, bytes) else text.encode())
        assert len(out) == needed
        assert out[-1:] == b"\0"
        reply = json.loads(out[:-1].decode())
        assert status == (reply["status"] if isinstance(reply, dict) else "ok")
        return reply

    def close(self):
        """Ends the driver, which must have nothing to complain about (leaks neither)."""
        self.process.stdin.close()
        code = self.process.wait(60)
        self.process.stdout.close()
        assert code == 0, self.errors.read_text(errors="replace")


@pytest.fixture(scope="module", params=COMPILERS or [pytest.param("", marks=pytest.mark.skip("no C compiler"))])
def artefact(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    started = Artefact(build(folder, request.param, [*STRICT, *SANITIZED], "query_driver.c"), folder)
    yield started
    started.close()


@pytest.fixture(scope="module", params=COMPILERS or [pytest.param("", marks=pytest.mark.skip("no C compiler"))])
def toy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"toy-{request.param}")
    started = Artefact(build(folder, request.param, [*STRICT, *SANITIZED], "query_driver.c", op=Toy()), folder)
    yield started
    started.close()


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


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("name", ["de_DE", "ps_AF"])
def test_a_locale_with_another_decimal_point_changes_nothing(tmp_path, name):
    """A comma (German) or two bytes (Pashto) stand for the point in that locale's printf."""
    charmap = Path("/usr/share/i18n/charmaps")
    if not COMPILERS or not shutil.which("localedef") or not charmap.exists():
        pytest.skip("needs a C compiler and localedef with its sources")
    subprocess.run(["localedef", "-i", name, "-f", "UTF-8", tmp_path / f"{name}.UTF-8"], check=True)
    program = build(tmp_path, COMPILERS[0], STRICT, "query_driver.c")
    started = Artefact(program, tmp_path, [f"{name}.UTF-8"], {**os.environ, "LOCPATH": str(tmp_path)})
    assert started.ask('{"M": 12345}')["time_ns"] == 1234.5
    assert started.ask('{"M": 1, "case": 9}')["upper_ns"] == 1e300
    started.close()


# -- bad input -----------------------------------------------------------------------------------------------------

CORPUS = json.loads((HERE.parent / "querying" / "corpus.json").read_text(encoding="utf-8"))


def text_of(entry):
    """A text of the corpus: as it stands, as bytes that are not UTF-8, or as parts that are repeated."""
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    return entry["text"] if "text" in entry else "".join(part * times for part, times in entry["parts"])


# Texts that the reader in Python answers too, byte for byte (tests/querying).
NOT_JSON = {entry["name"]: (text_of(entry), entry["position"], entry["message"]) for entry in CORPUS["not_json"]}
M_RULE = "M must be a whole number from 1 to 9223372036854775807"
REFUSED = {
    **NOT_JSON,
    # JSON, but not a request
    "number": ("5", 0, "a request must be an object of problem parameters, got 5"),
    "unknown key": ('{"M": 1, "Q": 2}', 9, '"Q": known keys are M, case, dtype, größe, tf32, mask, tier, or problem and tier'),
    "part of a key": ('{"": 1}', 1, 'unknown key ""'),
    "longer key": ('{"M\\u0000": 1}', 1, 'unknown key "M\\u0000"'),
    "huge key": ('{"' + "ä" * 9999 + '": 1}', 1, 'unknown key "' + "ä" * 20 + "...: known"),
    "twice": ('{"M": 1, "\\u004d": 1}', 9, '"\\u004d" is given twice: give it once'),
    "tier twice": ('{"tier": "full", "tier": "full"}', 17, '"tier" is given twice'),
    "problem twice": ('{"problem": {}, "problem": {}}', 16, '"problem" is given twice'),
    "beside": ('{"M": 1, "problem": {"M": 1}}', 20, "parameters must not be given next to an object problem"),
    "problem no object": ('{"problem": [1]}', 12, "problem must be an object of problem parameters, got [1]"),
    "tier inside": ('{"problem": {"tier": "full"}}', 13, 'unknown key "tier"'),
    "unknown tier": ('{"M": 1, "tier": "best"}', 17, 'tier must be one of tree, portfolio, full, got "best"'),
    "tier memo": ('{"M": 1, "tier": "memo"}', 17, "tier must be one of tree"),
    "tier null": ('{"M": 1, "tier": null}', 17, "tier must be one of"),
    "string for number": ('{"M": "128"}', 6, f'{M_RULE}, from 2^53 on in digits alone, got "128"'),
    "null for number": ('{"M": null}', 6, M_RULE),
    "object for number": ('{"M": {"a": [1, "}"]}, "tf32": true}', 6, 'got {"a": [1, "}"]}'),
    "fraction": ('{"M": 2.5}', 6, f"{M_RULE}, from 2^53 on in digits alone, got 2.5"),
    "small exponent": ('{"M": 1000e-4}', 6, "got 1000e-4"),
    "2^53 by exponent": ('{"M": 9007199254740992.0}', 6, "from 2^53 on in digits alone, got 9007199254740992.0"),
    "huge exponent": ('{"M": 1e99999999999999999999999}', 6, "got 1e99999999999999999999999"),
    "2^63": ('{"M": 9223372036854775808}', 6, "got 9223372036854775808"),
    "-2^63": ('{"größe": -9223372036854775808}', 12, "größe must be a whole number"),
    "2^64 + 1": ('{"M": 18446744073709551617}', 6, "got 18446744073709551617"),
    "1000 digits": ('{"M": ' + "1" * 1000 + "}", 6, "got " + "1" * 40 + "..."),
    "unknown label": ('{"dtype": "fp9"}', 10, 'dtype must be one of fp8, fp16, say "ä"\\, ??=, 😀, got "fp9"'),
    "code for label": ('{"dtype": 4}', 10, "dtype must be one of fp8"),
    "label with more": ('{"dtype": "fp8 "}', 10, 'got "fp8 "'),
    "number for flag": ('{"tf32": 1}', 9, "tf32 must be true or false, got 1"),
    # left to the engine, which says which parameter; where it stands is added here
    "missing": ('  {"tf32": true}', 2, "toy needs M"),
    "missing in problem": ('{"problem": {}}', 12, "toy needs M"),
    "zero": ('{"M": 0}', 6, 'M must be at least 1: "raise" it'),
    "zero by exponent": ('{"M": 0e99999999999999999999999}', 6, "M must be at least 1"),
    "negative": ('{"M": -5}', 6, "M must be at least 1"),
}  # fmt: skip


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


# -- the requests that an op declares ------------------------------------------------------------------------------------

DECLARED = {
    "short": ({"tensor": {"shape": [2, 3, 5], "dtype": "float16"}}, {"depth": 2, "rows": 3, "M": 5, "dtype": "fp16"}),
    "padded": ({"tensor": {"shape": [5]}}, {"depth": 1, "rows": 1, "M": 5}),
    "foreign": ({"spec": {"layout": {"page": [[{}]], "dtype": 3}, "logical_shape": [5.0]}}, {"dtype": "fp8", "M": 5}),
    "not ASCII": ({"M": 5, "tensor": {"dtype": "ärger"}}, {"dtype": "fp8", "M": 5}),
    "flat": ({"M": 5, "rows": 7}, {"M": 5, "rows": 7}),
    "inside": ({"problem": {"tensor": {"shape": [5]}}, "tier": "full"}, {"M": 5}),
    "present": ({"M": 5, "extra": {"rows": 4}, "scale": {"any": [1]}}, {"extra": True, "rows": 4}),
    "absent": ({"M": 5, "extra": None}, {"extra": False}),
    "nulls": ({"M": 5, "tensor": None, "out": {"dtype": None}, "spec": {"layout": None, "logical_shape": None}}, {"M": 5}),
    "own flag": ({"M": 5, "extra": True}, {"extra": True}),
    "agreeing": ({"tensor": {"shape": [4, 5]}, "extra": {"rows": 4}}, {"rows": 4, "M": 5}),
    "same": ({"M": 5, "out": {"dtype": "float16"}, "dtype": "fp16"}, {"out": "in", "dtype": "fp16"}),
    "not the same": ({"M": 5, "out": {"dtype": "fp8"}, "dtype": "fp16"}, {"out": "fp8", "dtype": "fp16"}),
    "alias": ({"op": "small", "M": 5, "device": "c1", "family": "own"}, {"case": 7, "tf32": True}),
    "alias agreeing": ({"tf32": True, "op": "small", "M": 5}, {"tf32": True}),
}


@pytest.mark.parametrize("name", DECLARED)
def test_paths_and_spellings_of_the_op_arrive(toy, name):
    """In all forms, beside the parameters' own names; the reply says whose it is."""
    request, wanted = DECLARED[name]
    reply = toy.ask(json.dumps(request))
    assert reply["status"] == "ok"
    assert {key: reply["config"].get(key) for key in wanted} == wanted
    assert (reply["model"], reply["software"]) == ('toy "m"', "abcdef0123456")


DECLARED_REFUSED = {
    "label": ('{"M": 5, "tensor": {"dtype": "fp9"}}', "unsupported", 29, 'dtype must be one of fp8, .*, got "fp9"'),
    "number": ('{"M": 5, "tensor": {"dtype": 4}}', "unsupported", 29, "dtype must be one of"),
    "rank": ('{"tensor": {"shape": [1, 1, 1, 1]}}', "unsupported", 21, "tensor.shape must have at most 3 dimensions, got"),
    "no dimension": ('{"tensor": {"shape": [1, "x"]}}', "bad_input", 25, 'M must be a whole number .*, got "x"'),
    "no list": ('{"tensor": {"shape": 4}}', "bad_input", 21, "tensor.shape must be a list of whole numbers, got 4"),
    "no object": ('{"M": 5, "tensor": [4]}', "bad_input", 19, "tensor must be an object, got"),
    "list for a label": ('{"M": 5, "tensor": {"dtype": [3]}}', "bad_input", 29, "dtype must be"),
    "inner key": ('{"tensor": {"shapes": 4}}', "bad_input", 12, 'unknown key "shapes": known keys are M, .*, software, tier'),
    "contradiction": ('{"rows": 3, "tensor": {"shape": [4, 5]}}', "bad_input", 23, '"shape" contradicts what is given else'),
    "alias": ('{"op": "small", "tf32": false, "M": 5}', "bad_input", 7, '"small" contradicts'),
    "twice": ('{"op": "toy", "op": "toy"}', "bad_input", 14, '"op" is given twice'),
    "object twice": ('{"tensor": {"shape": [5]}, "tensor": {"shape": [5]}}', "bad_input", 27, '"tensor" is given twice'),
    "inner twice": ('{"tensor": {"shape": [5], "shape": [5]}}', "bad_input", 26, '"shape" is given twice'),
    "null": ('{"M": 5, "dtype": null}', "bad_input", 18, "dtype must be"),
    "op": ('{"op": "big", "M": 5}', "unsupported", 7, 'op must be one of toy, small, got "big"'),
    "device": ('{"device": "a100"}', "unsupported", 11, 'device must be one of card, c1, got "a100"'),
    "family": ('{"family": 4}', "unsupported", 11, "family must be one of toy/own, own"),
    "op no label": ('{"op": [4]}', "bad_input", 7, "op must be"),
    "software": ('{"software": null}', "bad_input", 13, "software must be the name of a commit"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED_REFUSED)
def test_what_the_op_does_not_know_is_unsupported_and_what_cannot_be_is_bad_input(toy, name):
    """A label or a rank that some other system may have is no mistake of the caller's."""
    text, status, position, message = DECLARED_REFUSED[name]
    reply = toy.ask(text)
    assert (reply["status"], reply["position"]) == (status, position)
    assert re.search(message, reply["message"])


SOFTWARE = {
    "abcdef0123456": True, "abcdef0": True, "commit=abcdef0": True, "abcdef01234567": True, "gcc 12 ä": True,
    "compiler=gcc 12 ä": True, "threads=2": True, TRAINED_ON: True, "": False, "{": False, "{}": False, "commit=": False,
    "abcdef": False, "abcdef1": False, "abcdef0123456g": False, "bcdef0123456": False, "compiler=abcdef0123456": False,
    "gcc 12": False, "compiler=gcc": False, "commit=abcdef1234567": False, "x" * 5000: False, "[" * 5000: False,
    '{"threads": 2, "compiler": "gcc 12 ä", "commit": "abcdef0123456"}': True,
    '{"threads": 2, "compiler": "gcc 12 ä"}': False,
    '{"threads": 2, "threads": 2, "commit": "abcdef0123456"}': False,
    '{"threads": 2, "compiler": "gcc 12 ä", "commit": "abcdef0123456", "more": 1}': False,
    '{"threads": 3, "compiler": "gcc 12 ä", "commit": "abcdef0123456"}': False,
}  # fmt: skip


@pytest.mark.parametrize("ascii_only", [True, False])
def test_software_is_the_same_in_c_and_python(toy, ascii_only):
    """Whole, by a part, by NAME=VALUE, in another order, commits by their beginning on either side; escapes decoded."""
    for text, same in SOFTWARE.items():
        reply = toy.ask(json.dumps({"M": 5, "software": text}, ensure_ascii=ascii_only))
        assert ("warning" not in reply) is same, text
        assert softwares.is_same([TRAINED_ON], text) is same, text


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**64 - 1))
def test_any_bytes_around_declared_requests_get_one_valid_reply(toy, seed):
    """Cut, spliced and strewn with tokens, under sanitizers."""
    texts = [json.dumps(request).encode() for request, _ in DECLARED.values()]
    reply = toy.ask(mutated(seed, [*texts, *(item[0].encode() for item in DECLARED_REFUSED.values())]))
    assert {item["status"] for item in (reply if isinstance(reply, list) else [reply])} <= set(STATUSES[:-1])


# -- fuzzing -------------------------------------------------------------------------------------------------------

SEEDS = [text if isinstance(text, bytes) else text.encode() for text, _, _ in REFUSED.values() if len(text) < 200]
SEEDS += ['[{"M": 1, "größe": -7.0e2, "dtype": "😀"}, {"problem": {"M": 4, "mask": null}, "tier": "tree"}]'.encode()]
TOKENS = [
    *(bytes([c]) for c in b'{}[]:,"\\ -.e0'),
    b"\\ud83d",
    b"\\ude00",
    b'"M"',
    b'"tier"',
    b"null",
    b"1e5",
    b"\xf0\x9f",
    b"\0",
]


def mutated(seed, seeds=SEEDS):
    """A request, cut, spliced with another, repeated in part and strewn with tokens."""
    chance = random.Random(seed)
    text = chance.choice(seeds)
    for _ in range(chance.randint(1, 6)):
        at, end = sorted(chance.randint(0, len(text)) for _ in range(2))
        piece = chance.choice([b"", chance.choice(TOKENS), chance.choice(seeds), text[at:end] * 2, chance.randbytes(3)])
        text = text[:at] + piece + text[chance.choice([at, end]) :]
    return text


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(st.binary(max_size=200), st.integers(0, 2**64 - 1).map(mutated), st.text().map(json.dumps).map(str.encode))
)
def test_any_bytes_get_one_valid_reply_and_python_agrees_on_what_is_json(artefact, text):
    """No sanitizer report; Python's json refuses the same texts, and our own reader in the same words at the same byte."""
    reply = artefact.ask(text)
    replies = reply if isinstance(reply, list) else [reply]
    assert {item["status"] for item in replies} <= set(STATUSES[:-1])
    assert all("message" in item for item in replies if item["status"] != "ok")
    refused = isinstance(reply, dict) and ", found " in reply.get("message", "")
    if refused != (not is_json(text)):
        assert "nest" in reply["message"]
    assert not_json(text) == ((reply["message"], reply["position"]) if refused else None)


def not_json(text):
    """Why and where our own reader in Python says that a text is not JSON; None when it is."""
    try:
        scan(text)
    except NotJson as error:
        return str(error), error.position
    return None


def is_json(text):
    """By Python's parser, held to the letter: no NaN, no lone surrogates, nothing but UTF-8 without a mark."""

    def refuse(name):
        raise ValueError(name)

    try:
        if text.startswith(b"\xef\xbb\xbf"):
            return False
        json.dumps(
            json.loads(text.decode("utf-8"), parse_constant=refuse, parse_int=str, parse_float=str), ensure_ascii=False
        ).encode()
    except (ValueError, RecursionError):
        return False
    return True


def test_libfuzzer_finds_nothing_within_its_budget(tmp_path):
    """Coverage-guided, from the requests of this file; a fixed number of runs, the same every time."""
    if "clang" not in COMPILERS:
        pytest.skip("needs clang")
    try:
        program = build(tmp_path, "clang", [*STRICT, *SANITIZED, "-fsanitize=fuzzer"], "fuzz_query.c")
    except subprocess.CalledProcessError:
        pytest.skip("this clang has no libFuzzer")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for place, seed in enumerate(SEEDS):
        (corpus / str(place)).write_bytes(seed)
    command = [program, "-runs=60000", "-seed=1", "-max_len=400", "-timeout=20", "-verbosity=0", corpus]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-4000:]


# -- the generated text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_family_compiles_under_a_prefix_of_its_own(tmp_path, compiler):
    """Tables of any shape, an empty config too, in strict C99; two artefacts share no external name."""
    for place, family in enumerate(FAMILIES):
        prefix = f"lib{place}"
        asked = Identity(family.op, family.id, ("card",), "m", None)
        text = (HERE / "query_artefact.h").read_text() + query_source(prefix, family.problem, family.config, asked)
        text = text.replace("kerncast_", f"{prefix}_").replace("KERNCAST_", f"{prefix.upper()}_")
        counts = [f"-DPROBLEM_COUNT={len(family.problem.parameters)}", f"-DCONFIG_COUNT={len(family.config.parameters)}"]
        (tmp_path / f"{prefix}.c").write_text(text)
        subprocess.run([compiler, *STRICT, *counts, "-fsyntax-only", tmp_path / f"{prefix}.c"], check=True)
    assert any(not family.config.parameters for family in FAMILIES)


def test_a_header_with_another_number_of_parameters_does_not_compile(tmp_path):
    """The tables and the struct must be of one export."""
    if not COMPILERS:
        pytest.skip("no C compiler")
    (tmp_path / "q.c").write_text('#include "query_artefact.h"\n' + query_source("kerncast", TOY_PROBLEM, TOY_CONFIG))
    counts = [f"-DPROBLEM_COUNT={len(TOY) + 1}", f"-DCONFIG_COUNT={len(TOY)}"]
    command = [COMPILERS[0], *STRICT, *counts, f"-I{HERE}", "-fsyntax-only", tmp_path / "q.c"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert "query_problem_layout" in ended.stderr
    assert ended.returncode != 0


def test_a_parameter_named_like_a_key_of_the_request_is_refused():
    """`tier` beside the parameters would be read as one of them."""
    with pytest.raises(InvalidValue, match="JSON requests reserve the key 'tier': rename"):
        query_source("kerncast", Space("toy", "p", {"tier": Bool()}), TOY_CONFIG)
