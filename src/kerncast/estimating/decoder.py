"""What a decoder is made of, how it is spread over GPUs, and what it is asked to do: kinds of layers, sizes, formats, rules."""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.errors import InvalidValue

# Larger than any size of any model: sums and products of sizes stay exact and finite.
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class GroupedAttention:
    """Query heads that share key and value heads in groups: multi-head, grouped-query and multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    """Keys that a query sees at most; 0: all before it."""
    qk_norm: bool = False
    output_gate: bool = False
    """Whether the result is multiplied by a gate, which is projected beside the queries."""

    @property
    def gate_dim(self) -> int:
        """Elements of the gate of one head."""
        return self.value_dim if self.output_gate else 0

    @property
    def parameters_per_hidden(self) -> int:
        """Weights for each element of a token: the projections of queries, keys, values and gates, and back."""
        both = self.head_dim + self.value_dim
        return self.heads * (both + self.gate_dim) + self.kv_heads * both


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values of all heads come from one latent vector per token."""

    heads: int
    q_rank: int
    """Elements of the latent query; 0: queries are projected from the token."""
    kv_rank: int
    nope_dim: int
    """Elements of a query and a key without positions."""
    rope_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Elements of one query."""
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Elements that the cache holds for a token."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class DeltaAttention:
    """A gated delta network: linear attention with a state per value head, after a short convolution."""

    heads: int
    """Of queries and keys."""
    value_heads: int
    key_dim: int
    value_dim: int
    width: int
    """Tokens that the convolution sees."""

    @property
    def channels(self) -> int:
        """What is convolved: queries, keys and values."""
        return 2 * self.heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def parameters_per_hidden(self) -> int:
        """Weights for each element of a token: queries, keys, values and their gate, two gates of the state, and back."""
        return self.channels + 2 * self.value_heads * self.value_dim + 2 * self.value_heads


@dataclass(frozen=True)
class DenseMlp:
    """Projections up and down, with a gate beside the first if `gated`."""

    inter: int
    gated: bool = True

    @property
    def up_columns(self) -> int:
        """Columns of the projection up, with the gate."""
        return (2 if self.gated else 1) * self.inter


@dataclass(frozen=True)
class ExpertMlp:
    """A mixture of experts: each token goes to `top_k` of them, and through the shared ones."""

    experts: int
    top_k: int
    inter: int
    shared: DenseMlp | None = None


Attention = GroupedAttention | LatentAttention | DeltaAttention
Mlp = DenseMlp | ExpertMlp


@dataclass(frozen=True)
class LayerKind:
    """Layers that are all alike."""

    attention: Attention
    mlp: Mlp
    count: int


@dataclass(frozen=True)
class Formats:
    """The element types of weights, activations and the cache."""

    activations: str = "bf16"
    attention: str = "bf16"
    """Of the projections around attention."""
    mlp: str = "bf16"
    experts: str = "bf16"
    cache: str = "bf16"
    dynamic: bool = True
    """Whether activations of 8 bits get their scale when they are there; otherwise it was found beforehand."""


@dataclass(frozen=True)
class Decoder:
    """A transformer decoder: tokens in, the logits of the next token out."""

    name: str
    model_type: str
    hidden: int
    vocab: int
    tied: bool
    """Whether the embedding is the output projection, too."""
    layers: tuple[LayerKind, ...]
    norms_per_layer: int = 2
    formats: Formats = Formats()
    longest: int | None = None
    """The longest context that it was made for."""
    assumed: tuple[str, ...] = ()
    """What its config does not say and is taken to be so."""

    @property
    def layer_count(self) -> int:
        """How many layers it has."""
        return sum(kind.count for kind in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether some layer is a mixture of experts."""
        return any(isinstance(kind.mlp, ExpertMlp) for kind in self.layers)

    @property
    def parameters(self) -> int:
        """Weights of projections, experts, embeddings and norms; biases and scales are left out."""
        hidden, norms = self.hidden, self.norms_per_layer * self.hidden
        embeddings = self.vocab * hidden * (1 if self.tied else 2)
        layers = sum(
            kind.count * (attention_parameters(kind.attention, hidden) + mlp_parameters(kind.mlp, hidden) + norms)
            for kind in self.layers
        )
        return embeddings + layers + hidden


def attention_parameters(attention: Attention, hidden: int) -> int:
    """Weights of the projections around attention."""
    if isinstance(attention, GroupedAttention):
        return hidden * attention.parameters_per_hidden
    if isinstance(attention, DeltaAttention):
        return hidden * attention.parameters_per_hidden + attention.channels * attention.width
    query = attention.heads * attention.query_dim
    queries = hidden * attention.q_rank + attention.q_rank * query if attention.q_rank else hidden * query
    latent = hidden * attention.cached_dim
    keys_and_values = attention.kv_rank * attention.heads * (attention.nope_dim + attention.value_dim)
    return queries + latent + keys_and_values + attention.heads * attention.value_dim * hidden


def mlp_parameters(mlp: Mlp, hidden: int) -> int:
    """Weights of the feed-forward part, the router included."""
    if isinstance(mlp, DenseMlp):
        return hidden * (mlp.up_columns + mlp.inter)
    shared = 0 if mlp.shared is None else mlp_parameters(mlp.shared, hidden)
    return mlp.experts * 3 * hidden * mlp.inter + hidden * mlp.experts + shared


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
            keys = kind.attention.kv_heads
            if keys % tp and tp % keys:
                raise InvalidValue(
                    f"`tp={tp}` must divide the key heads, {keys}, or be a multiple of them (then they are copied): take {keys}"
                )
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


def _whole(name: str, value: int, most: int = LARGEST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidValue(f"`{name}` must be a whole number from 1 to {most:,}, got {value!r}")
