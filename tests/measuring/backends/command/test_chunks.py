"""Programs that take many vectors: deadlines by vector, the culprit of a hang, vectors that may share a program."""

import json

import pytest

from kerncast.core.op import Config, Problem
from kerncast.errors import KerncastError
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.benchmark import load
from kerncast.measuring.backends.command.schema import progress_pattern

SINGLE = FAMILIES.get("eltwise_unary/single")
# Says which vector it begins, and writes all results at the end, as tt-metal's runner does.
RUNNER = """
vectors = json.load(sys.stdin)
open(os.environ["NOTES"], "a").write(json.dumps([sys.argv[1], [v["problem"]["dim3"] for v in vectors]]) + "\\n")
results = []
for v in vectors:
    width = v["problem"]["dim3"]
    if sys.argv[2] != "quiet": print("x" * 70_000 + "\\r... begins " + v["id"] + "!", file=sys.stderr, flush=True)
    if width == 96: time.sleep(1000)
    if width == 128: os.kill(os.getpid(), signal.SIGSEGV)
    if width > 1000: time.sleep(1)
    results.append({"id": v["id"], "t": width})
print(json.dumps(results))
"""
BENCHMARK = """
name = "mine"
family = "eltwise_unary/single"
device = "wormhole_b0"
mode = "chunk"
argv = ["runner", "{letter}", "MODE"]
alike = ["letter"]
timeout = TIMEOUT
each = 0.1
KEY
input = { to = "stdin" }
words = { letter = { of = "problem.func", values = { exp = "e", relu = "r" } } }
[result]
format = "json"
time = { at = ["t"], unit = "ns" }
match = [{ at = ["id"], equals = "{id}" }]
"""
NAMED, UNNAMED = "progress = '... begins {id}'", "progress = '[.]{{3}} begins'"


@pytest.fixture
def ask(program, notes, tmp_path):
    """The outcome for each (func, width), and the programs that were started."""
    program("runner", RUNNER)

    def call(vectors, mode="loud", timeout=6, key=NAMED):
        path = tmp_path / "mine.toml"
        path.write_text(BENCHMARK.replace("MODE", mode).replace("TIMEOUT", str(timeout)).replace("KEY", key))
        backend = CommandBackend("0", load(str(path)))
        values = {"dtype": "bf16", "buffer": "dram"}
        asked = [(Problem(SINGLE, func=func, dim3=width, **values), Config(SINGLE)) for func, width in vectors]
        found = dict(backend.ask(asked, lambda *_: None, True, "warm"))
        backend.programs.close()
        return [found[place] for place in range(len(vectors))], [json.loads(line) for line in notes()]

    return call


def test_a_hang_in_a_chunk_costs_one_vectors_time_and_its_vector_is_known(ask):
    """The program that hangs is killed when its vector's time is over; that vector runs alone, the others together."""
    widths = [32, 64, 96, 160, 192, 224]
    found, started = ask([("exp", width) for width in widths])
    assert [getattr(item, "time_ns", None) or item.status for item in found] == [32, 64, "timeout", 160, 192, 224]
    assert "did not end within 6 s" in str(found[2])
    assert [item[1] for item in started] == [widths, [96], [32, 64, 160, 192, 224]]


def test_a_crash_in_a_chunk_is_that_of_the_vector_that_was_begun(ask):
    """Not of the first one without a result."""
    found, started = ask([("exp", width) for width in (32, 128, 64)])
    assert [item.status for item in found[1:2]] == ["crash"]
    assert [item[1] for item in started] == [[32, 128, 64], [128], [32, 64]]


def test_a_program_that_goes_on_may_take_longer_than_a_quiet_one(ask):
    """Each line gives a vector its time: eight seconds of work with five for the slowest vector and 0.1 for the others."""
    widths = [1024 + 32 * place for place in range(8)]
    found, started = ask([("exp", width) for width in widths], timeout=5, key=UNNAMED)
    assert [item.time_ns for item in found] == widths
    assert len(started) == 1


def test_a_program_that_never_says_where_it_is_has_time_by_the_number_of_vectors(ask):
    """The key `each` bounds it, and its chunk is halved down to the culprit."""
    found, started = ask([("exp", width) for width in (32, 64, 96, 160)], mode="quiet", timeout=6)
    assert [getattr(item, "time_ns", None) or item.status for item in found] == [32, 64, "timeout", 160]
    assert [item[1] for item in started] == [[32, 64, 96, 160], [32, 64], [96, 160], [96], [160]]


def test_only_vectors_that_are_alike_share_a_program(ask):
    """The order within them stays; a vector without a word for it is unsupported and starts nothing."""
    found, started = ask([("exp", 32), ("relu", 64), ("exp", 160), ("sqrt", 32)])
    assert started == [["e", [32, 160]], ["r", [64]]]
    assert found[3].status == "unsupported"


ONE = '{ of = "letter", values = ["e"]'


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('mode = "chunk"', ""), 'alike is for programs that take many vectors: set mode = "chunk"'),
        (('alike = ["letter"]', 'alike = ["leter"]'), "alike: unknown word or parameter 'leter': did you mean 'letter'?"),
        (('alike = ["letter"]', ""), "argv, environment and directory: unknown placeholder '{letter}'"),
        (("{id}'\n", "{ids}'\n"), "progress: unknown placeholder '{ids}'"),
        (("{id}'\n", "(['\n"), "is not a regular expression"),
        (("each = 0.1", "each = 0"), "timeout and each more than 0"),
        (('to = "stdin"', 'to = "stdin", variants = [{ of = "letter", values = ["e"] }]'), "input.vector, which is empty"),
        (
            ('to = "stdin"', 'to = "stdin", vector = { a = "{problem.dim3}" }, variants = [{ of = "x", values = [] }]'),
            "input.variants: unknown word or parameter 'x'",
        ),
        (
            ('"stdin"', f'"stdin", vector = {{ a = "{{problem.dim3}}" }}, variants = [{ONE}, without = ["b"] }}]'),
            "unknown key of input.vector 'b'",
        ),
        (
            ('"stdin"', f'"stdin", vector = {{ a = "{{problem.dim3}}" }}, variants = [{ONE}, without = ["a"] }}]'),
            "nothing tells the program problem.",
        ),
    ],
)  # fmt: skip
def test_keys_of_chunks_are_checked_before_anything_starts(change, why, tmp_path):
    """Each refusal names the key."""
    text = BENCHMARK.replace("TIMEOUT", "2").replace("KEY", NAMED)
    assert change[0] in text
    path = tmp_path / "mine.toml"
    path.write_text(text)
    load(str(path))
    path.write_text(text.replace(*change))
    with pytest.raises(KerncastError) as refused:
        load(str(path))
    assert why in str(refused.value)


def test_deadlines_do_not_change_the_digest_of_a_file(tmp_path):
    """They never change the meaning of a time."""
    path = tmp_path / "mine.toml"
    text = BENCHMARK.replace("TIMEOUT", "2").replace('alike = ["letter"]', "").replace('"{letter}"', '"{device}"')
    text = text.replace('words = { letter = { of = "problem.func", values = { exp = "e", relu = "r" } } }', "")
    path.write_text(text.replace("KEY", NAMED))
    digest = load(str(path)).digest
    path.write_text(text.replace("KEY", "").replace("each = 0.1", ""))
    assert load(str(path)).digest == digest
    assert progress_pattern("a{{2}}") == "a{2}"
