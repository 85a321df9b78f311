"""How a model is spread over GPUs, and what it is asked to do: the rules for both."""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.errors import InvalidValue
from kerncast.estimating.decoder import Decoder, DeltaAttention, DenseMlp, ExpertMlp, GroupedAttention, Mlp
from kerncast.estimating.fields import LARGEST

PHASES = ("prefill", "decode")
MOST_GPUS = 4096


@dataclass(frozen=True)
class Workload:
    """One step of a server, or in decode the mean of several."""

    phase: str
    batch: int
    """Sequences, on all GPUs together."""
    context: int
    """Tokens of each sequence: those of the prompt, or in decode with the first new one."""
    new_tokens: int
    """Tokens of each sequence that are computed: the last of the prompt, or those that are generated."""

    @property
    def past(self) -> int:
        """Of a prompt: the tokens that are in the cache already."""
        return self.context - self.new_tokens

    @property
    def length(self) -> int:
        """Tokens that one new token attends to, itself included; in decode on the average."""
        return self.context if self.phase == "prefill" else self.context + (self.new_tokens - 1) // 2

    @property
    def steps(self) -> int:
        """Steps until the new tokens are there."""
        return 1 if self.phase == "prefill" else self.new_tokens

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of a sequence in one step."""
        return self.new_tokens if self.phase == "prefill" else 1

    @property
    def longest(self) -> int:
        """The longest that a sequence gets."""
        return self.context if self.phase == "prefill" else self.context + self.new_tokens - 1


@dataclass(frozen=True)
class Deployment:
    """Tensor parallelism over `tp` GPUs, expert parallelism over `ep`; the larger of them is how many GPUs there are.

    With `ep` above `tp` there are `ep / tp` copies of everything but the experts, each with its share of the sequences.
    """

    tp: int
    ep: int

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return max(self.tp, self.ep)

    @property
    def copies(self) -> int:
        """Copies of everything but the experts."""
        return max(1, self.ep // self.tp)

    @property
    def expert_tp(self) -> int:
        """GPUs that share each expert."""
        return max(1, self.tp // self.ep)


def checked_workload(phase: str, batch: int, context: int, new_tokens: int | None) -> Workload:
    """The workload, with the usual number of new tokens where none is given."""
    if phase not in PHASES:
        raise InvalidValue(f"`phase` must be {' or '.join(PHASES)}, got '{phase}'")
    for name, value in {"batch": batch, "context": context}.items():
        _whole(name, value)
    new = (context if phase == "prefill" else 1) if new_tokens is None else new_tokens
    _whole("new_tokens", new)
    if phase == "prefill" and new > context:
        raise InvalidValue(f"`new_tokens={new}` must be at most `context={context}` in prefill: they are its last tokens")
    return Workload(phase, batch, context, new)


def checked_deployment(decoder: Decoder, tp: int, ep: int | None) -> Deployment:
    """The deployment, if every part of the model can be divided so."""
    _whole("tp", tp, MOST_GPUS)
    _whole("ep", 1 if ep is None else ep, MOST_GPUS)
    if ep not in (None, 1) and not decoder.has_experts:
        raise InvalidValue(f"`ep={ep}` divides experts, and {decoder.name} has none: leave it out")
    spread = Deployment(tp, ep or 1)
    if spread.gpus % min(spread.tp, spread.ep):
        raise InvalidValue(f"of `tp={tp}` and `ep={ep}` one must be a multiple of the other: change one of them")
    for kind in decoder.layers:
        _divides(kind.attention.heads, "attention heads", "tp", tp)
        if isinstance(kind.attention, GroupedAttention):
            _replicates(kind.attention.kv_heads, tp)
        elif isinstance(kind.attention, DeltaAttention):
            _divides(kind.attention.value_heads, "value heads of linear attention", "tp", tp)
        _divides_mlp(kind.mlp, spread)
    return spread


def _divides_mlp(mlp: Mlp, spread: Deployment) -> None:
    if isinstance(mlp, DenseMlp):
        _divides(mlp.inter, "the intermediate size", "tp", spread.tp)
        return
    assert isinstance(mlp, ExpertMlp)
    _divides(mlp.experts, "experts", "ep", spread.ep)
    if mlp.inter % spread.expert_tp:
        raise InvalidValue(
            f"experts of intermediate size {mlp.inter} cannot be divided by {spread.expert_tp} (`tp` over `ep`): "
            f"choose a larger `ep`, or a smaller `tp`"
        )
    if mlp.shared is not None:
        _divides_mlp(mlp.shared, spread)


def _divides(size: int, what: str, argument: str, parts: int) -> None:
    if size % parts:
        fitting = [number for number in range(1, min(size, 64) + 1) if size % number == 0]
        raise InvalidValue(f"`{argument}={parts}` must divide {what}, {size}: take one of {', '.join(map(str, fitting))}")


def _replicates(kv_heads: int, tp: int) -> None:
    if kv_heads % tp and tp % kv_heads:
        raise InvalidValue(
            f"`tp={tp}` must divide the key heads, {kv_heads}, or be a multiple of them (then they are copied): take {kv_heads}"
        )


def _whole(name: str, value: int, most: int = LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidValue(f"`{name}` must be a whole number from 1 to {most:,}, got {value!r}")
