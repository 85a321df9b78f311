"""A benchmark is refused when it is loaded: the key, the value, and what is known."""

import pytest

from kerncast.data.schema import Status
from kerncast.errors import KerncastError
from kerncast.measuring.backends.command.benchmark import STATUSES, load
from kerncast.measuring.backends.command.schema import Scope, WordTable

GOOD = """
name = "mine"
family = "matmul_sharded/single"
device = "wormhole_b0"
argv = ["bench", "{problem.M}", "{problem.K}", "{problem.N}", "{cores}", "{rest}"]
[settings]
speed = { doc = "how fast", default = "7" }
[words.cores]
of = "problem.num_cores"
values = { 1 = "one", 8 = "eight" }
[words.tensor]
text = "{problem.dim0} {problem.dim1} {problem.dtype} {problem.buffer} {problem.layout} {problem.sharding}"
[words.rest]
text = "{tensor} {problem.out_buffer} {problem.out_sharding}"
[result]
format = "json"
time = { at = ["t"], unit = "us" }
"""

# Its program is there; its folders are where the settings say, and its reset fails, which must not hide why it does not start.
READY = (
    GOOD.replace('argv = ["bench"', 'directory = "{setting.place}"\nreset = ["false"]\nargv = ["true", "{binary}"')
    .replace("[settings]", '[settings]\nplace = { doc = "", default = "." }\nmade = { doc = "", default = "." }')
    .replace("[words.cores]", '[words.file]\ntext = "{setting.made}/{problem.M}"\n[words.cores]')
    + '[build]\nargv = ["true"]\noutput = "{file}"\n[software]\nx = ["false"]\n'
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('"{problem.K}", ', ""), "nothing tells the program problem.K: put {problem.K} where it reads it"),
        (("{problem.M}", "{problem.m}"), "unknown placeholder '{problem.m}': did you mean '{problem."),
        (("{cores}", "{core}"), "unknown placeholder '{core}': did you mean '{cores}'?"),
        (("{problem.M}", "{problem.M"), "a single '{' in '{problem.M': write {{ for the character itself"),
        (("matmul_sharded/single", "matmul/single"), "unknown family 'matmul/single'"),
        (("of = ", "off = "), "there is no key 'words.….off'"),
        (('"us"', '"weeks"'), "result.time.unit must be one of ns, us, ms, s, gflops, tflops, got 'weeks'"),
        (('["t"]', '"t"'), "result.time: for json `at` is a list of keys"),
        (("[settings]", 'mode = "chunk"\n[settings]'), 'mode = "chunk" needs [input] and result.match'),
        (("[settings]", 'exit_codes = { 3 = "broken" }\n[settings]'), "unknown status 'broken'"),
        (("[settings]", 'exit_codes = { SIGSEGV = "crash" }\n[settings]'), "exit_codes must be numbers, got 'SIGSEGV'"),
        (("[settings]", 'only = { "problem.K" = [0] }\n[settings]'), "[only] problem.K must be a whole number from 1"),
        (("[settings]", 'patterns = [{ text = "(", status = "crash" }]\n[settings]'), "'(' is not a regular expression"),
        (("[settings]", 'build = { argv = ["make"] }\n[settings]'), "a build step makes {binary}, but argv does not use it"),
        (("[settings]", 'reset = ["r", "{problem.M}"]\n[settings]'), "reset: unknown placeholder '{problem.M}'"),
        (("[settings]", 'input = { to = "file" }\n[settings]'), "nothing tells the program its path: put it into argv"),
        (("argv = [", "argv = "), "is not a benchmark"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_work_is_refused_by_name(change, why, tmp_path):
    """Before anything is started."""
    assert change[0] in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    load(str(path))
    path.write_text(GOOD.replace(*change))
    with pytest.raises(KerncastError) as refused:
        load(str(path))
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--benchmark", "mine"], "unknown benchmark 'mine'"),
        (["--benchmark", "absent.toml"], "the benchmark absent.toml cannot be read"),
        (["--benchmark", "mine.toml"], "benchmark mine runs 'bench', which is not a program here: install it, or fix argv"),
        (["--benchmark", "mine.toml", "--set", "sped=8"], "unknown setting of benchmark mine 'sped': did you mean 'speed'?"),
        (["--benchmark", "mine.toml", "--set", "speed"], "--set takes NAME=VALUE, got 'speed'"),
        (["--benchmark", "mine.toml", "--backend", "cpu"], "--benchmark is for the backend command, not for cpu"),
        (
            ["--benchmark", "mine.toml", "--warmup", "1s"],
            "benchmark mine warms up by itself: leave out --warmup",
        ),
        (["--benchmark", "mine.toml", "--cache", "cold"], "benchmark mine measures warm caches: leave out --cache cold"),
        (["--benchmark", "ck-tile", "--set", "arch=gfx942"], "benchmark ck-tile needs --set build_dir=…"),
        (["--set", "speed=8"], "--set changes a setting of a benchmark"),
        (["--backend", "command"], "backend command runs external programs: name its benchmark with --benchmark"),
        (
            ["--benchmark", "ready.toml", "--set", "place=gone"],
            "/gone' (directory), which is not here: give",
        ),
        (["--benchmark", "ready.toml", "--set", "made=gone"], "mine needs the folder 'gone' (build.output), which is not here"),
        (
            ["--benchmark", "ready.toml"],
            "`false` for the version of x, but the program ended with exit code 1: fix that",
        ),
        (["--benchmark", "ready.toml", "--devices", "0,,1"], "--devices takes an index or several with commas between them"),
        (["--benchmark", "ready.toml", "--timeout", "0s"], "--timeout must be more than 0, got '0s'"),
    ],
)
def test_the_command_line_refuses_in_one_sentence_and_writes_nothing(arguments, why, tmp_path, collect):
    """A missing program is said before the first vector."""
    (tmp_path / "mine.toml").write_text(GOOD)
    (tmp_path / "ready.toml").write_text(READY)
    code, rows, shown = collect("matmul_sharded/single", *arguments, "--problems", "grid:M=32;K=32;N=32;num_cores=1")
    assert (code, rows) == (2, None)
    assert why in shown.err
    assert len(shown.err.strip().splitlines()) == 1


def test_a_value_without_a_word_is_unsupported_and_texts_keep_their_braces():
    """Filling fails over a value alone; a text that is one placeholder keeps its type in JSON."""
    scope = Scope({"a": 3, "b": True}, {"w": WordTable("a", {"1": "one"}, ""), "t": WordTable("", {}, "{a}-{b}")})
    assert scope.fill("{{{t}}}") == "{3-true}"
    assert scope.document({"x": ["{a}", "{b}", "<{a}>", 5]}) == {"x": [3, True, "<3>", 5]}
    with pytest.raises(Exception, match="there is no word for a = 3") as unsupported:
        scope.fill("{w}")
    assert unsupported.value.status == "unsupported"


def test_the_statuses_are_those_of_a_measurement():
    """One list, spelled twice to keep workers light."""
    assert tuple(STATUSES) == tuple(Status)
