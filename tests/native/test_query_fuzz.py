"""The JSON entry point in C: any bytes get one valid reply, under sanitizers, and Python agrees on what is JSON."""

import json
import random
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from query_requests import DECLARED, DECLARED_REFUSED, REFUSED
from query_toy import SANITIZED, STATUSES, STRICT, build

from kerncast.answering.json_text import NotJson, scan
from kerncast.testing import repeats

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


@settings(max_examples=repeats(600, 100_000))
@given(seed=st.integers(0, 2**64 - 1))
def test_any_bytes_around_declared_requests_get_one_valid_reply(toy, seed):
    """Cut, spliced and strewn with tokens, under sanitizers."""
    texts = [json.dumps(request).encode() for request, _ in DECLARED.values()]
    reply = toy.ask(mutated(seed, [*texts, *(item[0].encode() for item in DECLARED_REFUSED.values())]))
    assert {item["status"] for item in (reply if isinstance(reply, list) else [reply])} <= set(STATUSES[:-1])


@settings(max_examples=repeats(600, 100_000))
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


@pytest.mark.needs("clang")
def test_libfuzzer_finds_nothing_within_its_budget(tmp_path):
    """Coverage-guided, from the requests of this file; a fixed number of runs, the same every time."""
    program = build(tmp_path, "clang", [*STRICT, *SANITIZED, "-fsanitize=fuzzer"], "fuzz_query.c")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for place, seed in enumerate(SEEDS):
        (corpus / str(place)).write_bytes(seed)
    command = [program, f"-runs={repeats(30_000, 5_000_000)}", "-seed=1", "-max_len=400", "-timeout=20", "-verbosity=0", corpus]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-4000:]
