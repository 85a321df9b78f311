"""Every dotted name of kerncast in a page exists: in its text, its Python, its directives, and behind `python -m`."""

import re

import pytest
from page_blocks import PAGES, ROOT
from page_names import wrong_names

FENCE = "`" * 3


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_name_in_a_page_exists(page):
    """A method that was renamed is found where a reader would copy it from."""
    wrong = [f"{page.name}:{line}: {name}" for line, name in wrong_names(page.read_text())]
    assert not wrong, "these names do not exist:\n" + "\n".join(wrong)


def test_every_path_in_contributing_exists():
    """Below the repository, below the package, or in the place that the same cell names first."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[\w.]*)`", text)) - {"docs/_build/"}
    missing = [path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "src" / "kerncast"))]
    assert not missing, missing


def block(language, *lines):
    return "\n".join(["Text.", f"{FENCE}{language}", *lines, FENCE])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`kc.train` and\n`kc.trian(…)`", [(2, "kc.trian")]),
        ("`Selector.load`, `model.predict()`, `answer.tim`", [(1, "Selector.load"), (1, "answer.tim")]),
        ("`kerncast.testing.chaos.rum`", [(1, "kerncast.testing.chaos.rum")]),
        # Files, other people's names, and what is part of another word.
        ("`model.json`, `kerncast.h`, `docs/model.md`, `my_model.x`, `x.model.y`, `torch.compile`, kc.nothing", []),
        (block("python", "import kerncast as kc", "model = kc.train('d')", "model.figures.runtime.mape.valu"),
         [(5, "model.figures.runtime.mape.valu")]),
        (block("python", "import kerncast", "for line in kerncast.evaluate('m', 'd').worst:", "    line.device, line.devic"),
         [(5, "line.devic")]),
        (block("python", "from kerncast.core.op import Problem, Problm", "import kerncast.nothing"),
         [(3, "kerncast.core.op.Problm"), (4, "kerncast.nothing")]),
        (block("python", "import kerncast as kc", "pick = kc.Selector('m')", "pick(M=1).time_n",
               "[a.x for a in pick.rank({}, 3)]", "kc.Store.open('s').find('gemm').load().predic({})",
               "kc = make(lambda pick: pick.x)", "kc.anything"),
         [(5, "pick(M=1).time_n"), (6, "a.x"), (7, "kc.Store.open('s').find('gemm').load().predic")]),
        (block("pycon", ">>> import kerncast as kc", ">>> if kc.nothing:", "...     kc.more()", "3"),
         [(4, "kc.nothing"), (5, "kc.more")]),
        (block("{eval-rst}", ".. autofunction:: kerncast.red", ".. autoclass:: kerncast.Dataset", "   :members: open, frme"),
         [(3, "kerncast.red"), (4, "kerncast.Dataset.frme")]),
        (block("console", "$ python -m kerncast.testing.backends && python -m kerncast.tests"), [(3, "kerncast.tests")]),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_found_with_its_line(text, wrong):
    """In text and code, through the types of calls, fields, items and loops; where types end, nothing is claimed."""
    assert list(wrong_names(text)) == wrong
