"""What people read on a terminal: lines that fit, whole words, and nothing lost."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerncast.core.io.terminal import HANG, Column, lay_out
from kerncast.testing.models import synthetic_dataset
from kerncast.training.train import Recipe, train

WIDTH = 80
PROBLEM = ("M=512", "N=512", "K=512", "dtype=fp16", "layout=rcr")
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
STEP = ("--batch", 4, "--context", 4096)
VERBS = [
    ("list", "device"), ("list", "device", "h100"), ("doctor",), ("list", "family"), ("list", "family", "gemm/cpu"),
    ("list", "op"), ("list", "op", "gemm"),
    ("predict", "gemm", "M=4096", "N=4096", "K=4096", "dtype=bf16", "--device", "h100"),
    ("predict", "gemm", "M=4096", "N=4096", "K=4096", "dtype=bf16", "--device", "all"),
    ("predict", "model", "problems.json"),
    ("estimate", "config.json", "--device", "h100", *STEP), ("estimate", "config.json", "--device", "all", *STEP),
    ("select", "model", *PROBLEM, "--no-compile", "--top", 3, "--explain"),
    ("select", "model", "problems.json", "--no-compile"),
    ("select", "model", *PROBLEM, "--search"),
    ("inspect", "rows"), ("export", "rows", "--to", "portfolio"), ("evaluate", "model", "rows", "--include-seen", "--no-tiers"),
    ("compare", "model", "other", "rows", "--include-seen"), ("inspect", "model", "--verify"),
]  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Data, two models, problems of which one is out of range, and the config of a decoder."""
    folder = tmp_path_factory.mktemp("narrow")
    rows = synthetic_dataset(folder / "rows")
    for name, trees in (("model", 20), ("other", 5)):
        train(rows, folder / name, Recipe(folds=2, knobs={"trees": trees, "library_trees": 4, "leaves": 15}, threads=1))
    problems = [{"M": M, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"} for M in (512, 512_000, 256)]
    (folder / "problems.json").write_text(json.dumps(problems))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


@pytest.fixture
def told(home, run, monkeypatch, tmp_path):
    """What a command prints on a terminal (`wide`) or into a pipe."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("TERM", "dumb")

    def call(*args, wide=None):
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(wide or WIDTH))  # a pipe does not care
            patch.setattr(sys.stdout, "isatty", lambda: wide is not None, raising=False)
            code, out, err = run(*args)
        assert code in (0, 1), err
        return out

    return call


def places(text):
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text if not unicodedata.combining(char))


def words(text):
    """Without the marks that may follow them."""
    return {word.strip(";,:()") for word in text.split()} - {""}


@pytest.mark.parametrize("args", VERBS, ids=lambda args: " ".join(map(str, args[:2])))
def test_a_narrow_terminal_gets_whole_words_in_lines_that_fit(args, told):
    """Every table, and what is said around it; a word is in it where it is in what a pipe gets, and the other way round."""
    narrow, plain = told(*args, wide=WIDTH), told(*args)
    assert max(map(places, plain.splitlines())) > WIDTH or narrow == plain
    assert [line for line in narrow.splitlines() if places(line) > WIDTH] == []
    assert words(narrow) - words(plain) <= {"in", "all", "rows"}
    assert words(plain) - words(narrow) == set()


def test_the_list_of_models_takes_two_lines_for_each(told):
    """Lists of devices are shortened, and columns that matter least are left out and named; a wider terminal has all."""
    plain, narrow = told("models"), told("models", wide=WIDTH).splitlines()
    models = json.loads(told("models", "--json"))
    assert len(models) > 30
    empty = next(place for place, text in enumerate(narrow) if "kerncast models add" in text)  # as long as the store's path
    assert len(narrow[empty + 1 :]) <= 2 * len(models) + 5
    assert max(map(places, narrow)) <= WIDTH
    said = "in all rows; left out; and 1 2 3 4 5 6 7 8 9 more; see --json, or a wider terminal"
    assert words(" ".join(narrow)) - words(plain) <= words(said)
    assert all(any(line.startswith(model["id"] + " ") for line in narrow) for model in models)
    left_out = next(line for line in narrow if line.startswith("left out: "))
    assert words(left_out) >= {"op", "R²"}
    assert words(" ".join(narrow[narrow.index(left_out) + 1 :])) & {"op", "R²"} == set()
    assert "left out" not in told("models", wide=120)


TEXTS = ["", "-", "a", "M=1", "M=22", "k=" + "x" * 30, "größe", "名前", "e\u0301"]
CELLS = st.lists(st.sampled_from(TEXTS), max_size=6).map(lambda parts: " ".join(filter(None, parts)))
ROWS = st.lists(
    st.tuples(CELLS, CELLS, st.lists(st.sampled_from(TEXTS[1:]), max_size=4).map(tuple), CELLS), min_size=1, max_size=6
)


@given(ROWS, st.integers(1, 100))
def test_any_table_fits_any_width_that_its_words_fit(rows, width):
    """A line is longer only where a word, a number or the first of a list is; every word of the texts is there, whole."""
    names = ("text", "right", "list", "last")
    columns = [Column(name, cells, name == "right") for name, cells in zip(names, zip(*rows, strict=True), strict=True)]
    found = lay_out(columns, width)
    texts = {word for text, _, _, last in rows for word in f"{text} {last}".split()}
    needed = max([5, *map(places, texts), *(max(places(row[1]), places(f"{', '.join(row[2])} and 9 more")) for row in rows)])
    if needed + HANG <= width:
        assert max(map(places, [*found.above, *found.head, *found.body])) <= width
    assert texts <= words(" ".join([*found.above, *found.body]))
