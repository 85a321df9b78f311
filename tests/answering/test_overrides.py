"""Overrides: what the integrator decides is honoured by every tier, said in the answer, and refused where it cannot be."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.support.needs import require

from kerncast.answering.selector import Selector
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models.answer import CHOOSING as TIERS
from kerncast.models.answer import Answered, Pin, Tier

SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}


@pytest.fixture(params=[True, False], ids=["compiled", "interpreted"])
def selector(model, tiers, request):
    if request.param:
        require("a C compiler")
    return Selector(model, tiers=tiers, compile=request.param)


def test_what_is_denied_is_never_chosen_and_the_memo_does_not_bring_it_back(selector):
    """One after another, down to none: each answer is new, and forgotten when the mask changes."""
    denied, shape = [], selector.problem(SHAPE)
    while len(denied) < len(selector.configs):
        for tier in TIERS:
            chosen = selector.select(shape, tier)
            assert selector.select(shape, tier).tier is (Tier.MEMO if chosen.ok else None)
            assert chosen.tier is not Tier.MEMO
            assert not chosen.ok or selector.configs.index(chosen.config) not in denied
        if not chosen.ok:
            break
        best = selector.rank(SHAPE, 1)[0]
        assert best.config == chosen.config
        denied.append(selector.configs.index(chosen.config))
        if len(denied) < len(selector.configs):
            selector.override({"deny": denied})
    assert len(denied) == len(selector.configs)
    with pytest.raises(InvalidValue, match="leave none"):
        selector.override({"deny": denied})
    selector.override(None)
    assert selector.configs.index(selector.select(SHAPE, "full").config) == denied[0]


def test_without_the_portfolio_all_others_are_asked_and_a_ranking_goes_on(selector, tiers):
    """The tier that answers is named; a list of ten has ten if there are ten."""
    assert len(selector.rank(SHAPE, 10, "portfolio")) == min(10, len(selector.configs))
    selector.override({"deny": list(tiers.portfolio)})
    if len(tiers.portfolio) < len(selector.configs):
        assert {selector.select(SHAPE, tier).tier for tier in TIERS} == {Tier.FULL}


def test_a_pin_decides_in_every_tier_and_the_answer_says_so(selector):
    """First in a ranking too, with the model's time for it; the last pin that matches counts."""
    worst = selector.configs.index(selector.rank(SHAPE, 100)[-1].config)
    selector.override({"pin": [{"problem": {"M": SHAPE["M"]}, "candidate": worst}]})
    shape = selector.problem(SHAPE)
    for tier in TIERS:
        answer = selector.select(shape, tier)
        assert (answer.config, answer.tier, answer.pin) == (selector.configs[worst], Tier.PIN, Pin.DECIDED)
        assert answer.time_ns == pytest.approx(selector.predict(SHAPE, answer.config).time_ns, rel=1e-12)
        assert (selector.select(shape, tier).tier, selector.select(shape, tier).pin) == (Tier.MEMO, Pin.DECIDED)
        ranked = selector.rank(SHAPE, 3, tier)
        assert ranked[0].config == answer.config
        assert [item.pin for item in ranked] == [Pin.DECIDED, None, None]
        assert len({item.config for item in ranked}) == 3
    assert b'"pin":"decided"' in selector.query('{"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}')
    assert selector.select({**SHAPE, "M": 1001}).pin is None
    more = [{"problem": {}, "candidate": worst}, {"problem": {"M": SHAPE["M"]}, "candidate": 0}]
    selector.override({"pin": more})
    assert selector.select(SHAPE).config == selector.configs[0]
    assert selector.select({**SHAPE, "M": 1001}).config == selector.configs[worst]
    outside = selector.select({**SHAPE, "M": 1_000_000})
    assert (outside.status, outside.config, outside.time_ns) == (Answered.OK, selector.configs[worst], None)
    assert selector.explain(selector.select(SHAPE, "full")).reasons[0].endswith("not the model") or not [
        item for item in selector.rank(SHAPE, 7) if item.time_ns < selector.select(SHAPE).time_ns
    ]


def test_a_pin_may_name_the_usual_value_of_an_optional_parameter(selector):
    """The leading dimension of a packed matrix, or that there is no bias: problems have it as nothing, pins mean the same."""
    worst = selector.configs.index(selector.rank(SHAPE, 100)[-1].config)
    for usual in ({"lda": 768}, {**SHAPE, "lda": 768, "bias": False}, {"lda": 0, "activation": "none"}, {**SHAPE, "ldc": 512}):
        selector.override({"pin": [{"problem": usual, "candidate": worst}]})
        for problem in (SHAPE, {**SHAPE, "lda": 768}):
            assert (selector.select(problem).config, selector.select(problem).pin) == (selector.configs[worst], Pin.DECIDED)
        assert selector.select({**SHAPE, "K": 640, "N": 640}).pin is (Pin.DECIDED if usual.get("lda") == 0 else None)
        gaps = selector.select({**SHAPE, "lda": 1024, "ldc": 1024})
        assert gaps.pin is None
    selector.override({"pin": [{"problem": {"lda": 1024}, "candidate": worst}]})
    assert selector.select(SHAPE).pin is None
    assert selector.select({**SHAPE, "lda": 1024}).pin is Pin.DECIDED
    assert selector.select({**SHAPE, "K": 1024}).pin is Pin.DECIDED


def test_what_could_never_be_applied_is_refused_by_name(selector, tmp_path):
    """Unknown kernels, parameters, values and keys; a pin of what is denied; overrides stay as they were."""
    chosen = selector.select(SHAPE, "full").config
    for wrong, kind, said in [
        ({"deny": [10**6]}, NotFound, "none of the"),
        ({"deny": ["gemm_a"]}, InvalidValue, "name no kernels"),
        ({"deny": [{"BLOCK_Q": 16}]}, NotFound, "BLOCK_Q"),
        ({"deny": [{"BLOCK_M": 17}]}, InvalidValue, "BLOCK_M must be"),
        ({"deny": [True]}, BadFile, "deny"),
        ({"denied": [0]}, BadFile, "denied"),
        ({"deny": [0], "pin": [{"problem": {}, "candidate": 0}]}, InvalidValue, "denied or not available"),
        ({"pin": [{"problem": {"Q": 1}, "candidate": 0}]}, NotFound, "'Q'"),
        ({"pin": [{"problem": {"M": 0}, "candidate": 0}]}, InvalidValue, "M=0: M must be"),
        ({"pin": [{"problem": {"M": 1}}]}, InvalidValue, "exactly one of label, config and candidate"),
        ({"pin": [{"problem": {"M": 1}, "config": {}}]}, InvalidValue, "configs are so named"),
    ]:
        with pytest.raises(kind, match=said):
            selector.override(wrong)
    (tmp_path / "o.toml").write_text("deny = [")
    with pytest.raises(BadFile, match=r"o\.toml"):
        selector.override(tmp_path / "o.toml")
    with pytest.raises(NotFound, match="cannot read"):
        selector.override(tmp_path / "none.toml")
    assert selector.select(SHAPE, "full").config == chosen
    assert selector.override({"available": [0, 10**6]}) == ("1 of 2 available kernels are not in the model (first: 1000000)",)


def test_overrides_may_change_while_others_choose(selector):
    """No thread ever keeps an answer of an earlier mask: after the last change, all answers are of the last mask."""
    problems = [selector.problem({**SHAPE, "M": 130 + 7 * i}) for i in range(20)]
    half = list(range(len(selector.configs) // 2))

    def ask(_):
        return [selector.select(problem) for problem in problems]

    with ThreadPoolExecutor(3) as executor:
        asked = [executor.submit(ask, None) for _ in range(6)]
        for turn in range(6):
            selector.override({"deny": half} if turn % 2 else None)
        assert all(answer.ok for future in asked for answer in future.result())
    assert not np.isin([selector.configs.index(answer.config) for answer in ask(None)], half).any()
