"""Attentions that others have published, as they come, without their projections.

Most are layers on tokens. Here their tokens are q, k and v side by side, and each projection only
picks its part, so that all rows of a table start from q, k and v and end with heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

LANDMARKS, WINDOW = 64, 512  # the defaults of transformers' Nyströmformer and Longformer


@dataclass(frozen=True)
class Peer:
    """Other people's code.

    Attributes:
        label: how tables call it.
        package: the module to import.
        make: the attention for so many heads, of such a dimension, for sequences of such a length.
    """

    label: str
    package: str
    make: Callable[[int, int, int], nn.Module]


def installed() -> list[str]:
    """The peers that this machine has."""
    return [name for name, peer in PEERS.items() if find_spec(peer.package) is not None]


class _Part(nn.Module):
    """A projection that picks the `place`-th of q, k and v."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        # A copy, as a projection's output is: the peers may write into it.
        return x.chunk(3, -1)[self.place].clone(memory_format=torch.contiguous_format)


class _Given(nn.Module):
    """A projection whose output is set beforehand."""

    tensor: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.tensor


class _OnHeads(nn.Module):
    """A peer on tokens, called on heads."""

    def __init__(self, peer: nn.Module, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.peer, self.run = peer, run

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)  # (B, N, 3 · H · D)
        out: Tensor = self.run(self.peer, x).unflatten(2, q.shape[1::2])
        return out.transpose(1, 2)


def _performer(heads: int, head_dim: int, n: int) -> nn.Module:
    from performer_pytorch import FastAttention

    peer: nn.Module = FastAttention(head_dim)  # takes heads as it is
    return peer


def _linformer(heads: int, head_dim: int, n: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    peer = LinformerSelfAttention(heads * head_dim, n, heads=heads)
    peer.to_q, peer.to_k, peer.to_v, peer.to_out = _Part(0), _Part(1), _Part(2), nn.Identity()
    return _OnHeads(peer, lambda peer, x: peer(x))


def _nystrom(heads: int, head_dim: int, n: int) -> nn.Module:
    from nystrom_attention import NystromAttention

    peer = NystromAttention(heads * head_dim, dim_head=head_dim, heads=heads)
    peer.to_qkv, peer.to_out = nn.Identity(), nn.Identity()
    return _OnHeads(peer, lambda peer, x: peer(x))


def _hf_nystromformer(heads: int, head_dim: int, n: int) -> nn.Module:
    from transformers import NystromformerConfig
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    refuse_rest(n, LANDMARKS)
    config = NystromformerConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        num_landmarks=LANDMARKS,
        segment_means_seq_len=n,
        attention_probs_dropout_prob=0.0,
    )
    peer = NystromformerSelfAttention(config)
    peer.query, peer.key, peer.value = _Part(0), _Part(1), _Part(2)
    return _OnHeads(peer, lambda peer, x: peer(x)[0])


def _hf_longformer(heads: int, head_dim: int, n: int) -> nn.Module:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    refuse_rest(n, WINDOW)
    config = LongformerConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        attention_window=[WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    peer = LongformerSelfAttention(config, layer_id=0)
    peer.query, peer.key, peer.value = _Given(), _Given(), _Given()
    # Projections of global tokens, of which there are none here.
    peer.query_global = peer.key_global = peer.value_global = None

    def run(peer: Any, x: Tensor) -> Tensor:
        # It refuses tokens that are wider than its heads, and turns them before it projects.
        for place, projection in enumerate((peer.query, peer.key, peer.value)):
            projection.tensor = _Part(place)(x.transpose(0, 1))
        local = x.new_zeros(x.shape[:2])
        tokens = x.chunk(3, -1)[0]
        out: Tensor = peer(tokens, local, local.bool(), local.bool(), False)[0]
        return out

    return _OnHeads(peer, run)


def refuse_rest(n: int, size: int) -> None:
    """Raises unless a sequence can be cut into pieces of one size."""
    if n % size:
        raise ValueError(f"takes N in multiples of {size}")


PEERS = {
    "peer_performer": Peer("performer-pytorch", "performer_pytorch", _performer),
    "peer_linformer": Peer("linformer", "linformer", _linformer),
    "peer_nystrom": Peer("nystrom-attention", "nystrom_attention", _nystrom),
    "hf_nystromformer": Peer("Nyströmformer of transformers", "transformers", _hf_nystromformer),
    "hf_longformer": Peer("Longformer of transformers", "transformers", _hf_longformer),
}
