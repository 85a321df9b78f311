"""What a decoder is made of: its kinds of layers, their sizes and the formats of their weights."""

from __future__ import annotations

from dataclasses import dataclass


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
