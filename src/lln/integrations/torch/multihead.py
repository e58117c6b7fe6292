"""`torch.nn.MultiheadAttention` with the attention of this package.

A subclass of torch's module, because models ask `isinstance(…, nn.MultiheadAttention)` when they
initialise, wrap or convert their layers, and so that constructor, initialisation and state dict are
torch's. The forward pass is not: see `MultiheadAttention._reset_parameters` for what keeps torch
from going around it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.attention import Attention
from lln.integrations.torch.cross import across
from lln.integrations.torch.masks import causality, key_mask_of
from lln.integrations.torch.weights import weights_of
from lln.registry import build_core


class MultiheadAttention(nn.MultiheadAttention):
    """A drop-in for `torch.nn.MultiheadAttention`, whose documentation holds but for this.

    Where query and key have the same length, place i is one token in both, padded or not in both.
    A query without a key gives the bias of the output, where torch gives NaN.

    Args:
        embed_dim: features per token, a multiple of `num_heads`.
        num_heads: number of heads.
        dropout: in training, a key of a head is left out with this probability, for all queries
            together, and the others weigh 1/(1 − p) of their weight. Each weight is dropped as
            often as in torch, but there is one draw per key instead of one per pair of tokens.
        bias: of the projections.
        add_bias_kv: refused: it adds a key that has no place in the sequence.
        add_zero_attn: refused likewise.
        kdim: features of a key, `embed_dim` by default.
        vdim: features of a value, `embed_dim` by default.
        batch_first: tokens are `(B, N, C)`, not `(N, B, C)`.
        device: of the parameters.
        dtype: of the parameters.
        attention: a core, by its name in `lln.available()`.
        options: the core's own, and `max_len`, as in `lln.build_core`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        attention: str = "lln_diag",
        **options: Any,
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise NotImplementedError(
                "add_bias_kv and add_zero_attn are not supported, because the key that they add "
                "has no place in the sequence: use torch.nn.MultiheadAttention"
            )
        if "kv_heads" in options:
            raise ValueError("kv_heads is no option here: torch has a key head per query head")
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        core = build_core(attention, heads=num_heads, head_dim=self.head_dim, **options)
        assert isinstance(core, Attention)
        self.core = core.to(device=device, dtype=dtype)

    @classmethod
    def from_torch(
        cls, module: nn.MultiheadAttention, attention: str = "lln_diag", **options: Any
    ) -> "MultiheadAttention":
        """A copy of torch's module, weights included, with another attention."""
        weight = module.out_proj.weight
        new = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            bias=module.in_proj_bias is not None,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device=weight.device,
            dtype=weight.dtype,
            attention=attention,
            **options,
        )
        projections = {
            name: x for name, x in module.state_dict().items() if not name.startswith("core.")
        }
        new.load_state_dict(new.state_dict() | projections)
        for name, parameter in module.named_parameters():
            if name in projections:
                new.get_parameter(name).requires_grad_(parameter.requires_grad)
        return new.train(module.training)

    @classmethod
    def replace(cls, model: nn.Module, attention: str = "lln_diag", **options: Any) -> nn.Module:
        """Puts another attention into each `nn.MultiheadAttention` within `model`, and returns it.

        With `lln` and `lln_diag`, the cross-attention of an `nn.TransformerDecoderLayer` becomes
        LLN with stored statistics, which `lln.matching.calibrating` fills.
        """
        new: dict[nn.Module, MultiheadAttention] = {}
        places = []
        for path, old in model.named_modules(remove_duplicate=False):
            if not (path and isinstance(old, nn.MultiheadAttention)):
                continue
            holder, _, name = path.rpartition(".")
            parent = model.get_submodule(holder)
            if old not in new:
                crosses = isinstance(parent, nn.TransformerDecoderLayer) and name != "self_attn"
                kind, own = across(attention, options) if crosses else (attention, options)
                new[old] = cls.from_torch(old, kind, **own)
            places.append((parent, name, new[old]))
        if not places:
            raise ValueError(
                f"{type(model).__name__} has no nn.MultiheadAttention within: nothing to replace; "
                "from_torch converts a module that is one"
            )
        for parent, name, module in places:  # only now: a module that is refused changes nothing
            setattr(parent, name, module)
        return model

    def _reset_parameters(self) -> None:
        # In evaluation nn.TransformerEncoderLayer takes our weights, computes softmax attention by
        # itself and never calls us, unless this flag is False. The flag also says which weights
        # there are, but only here and in torch's constructor, which ends with this method.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # torch's state dict knows no core: what the core has not learned stays as it is.
        own = f"{prefix}core."
        if not any(key.startswith(own) for key in state_dict):
            learned = dict(self.core.named_parameters())
            for name, x in self.core.state_dict().items():
                if name not in learned:
                    state_dict[own + name] = x
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            query: `(N_q, B, embed_dim)`, `(B, N_q, embed_dim)` if `batch_first`, or
                `(N_q, embed_dim)`.
            key: `(N_k, B, kdim)` likewise.
            value: `(N_k, B, vdim)` likewise.
            key_padding_mask: `(B, N_k)` or `(N_k,)`: True or −inf = ignore, False or 0 = keep.
            need_weights: also return the attention weights. They cost N², and have no gradient.
            attn_mask: `(N_q, N_k)` or `(B · H, N_q, N_k)`, causal or hiding nothing: True or −inf
                hides a key from a query. For N_q ≠ N_k the last query stands beside the last key.
            average_attn_weights: the mean of the weights over heads.
            is_causal: attention is causal. `attn_mask` may be left out then, which saves N², and
                needs not be waited for on a GPU if it is given.

        Returns:
            The output, shaped like `query`, and None or the weights, `(B, N_q, N_k)`, or
            `(B, H, N_q, N_k)` if they are not averaged, without B for a single sequence.
        """
        if self.core.shares_queries and key is not query:
            raise ValueError(
                f"{self.core.name} makes its keys of the queries: pass one tensor as both"
            )
        if query.is_nested or key.is_nested or value.is_nested:
            same = query is key is value and self.batch_first and query.layout == torch.strided
            if not same or need_weights or key_padding_mask is not None or attn_mask is not None:
                raise ValueError(
                    "a nested tensor must be query, key and value at once, strided, and come with "
                    "batch_first=True, need_weights=False and no mask"
                )
            return self._attend_nested(query, is_causal), None
        q, k, v = self._project(query, key, value)
        batch, heads, n_q, _ = q.shape
        n_k = k.shape[2]
        key_mask = key_mask_of(key_padding_mask, batch, n_k)
        causal = causality(attn_mask, is_causal, batch, heads, n_q, n_k)
        dropped = None
        if self.training and self.dropout:
            dropped = F.dropout(v.new_ones(batch, heads, n_k, 1), self.dropout)
            v = v * dropped
        mixed: Tensor = self.core(q, k, v, key_mask=key_mask, causal=causal)
        mixed = mixed.transpose(1, 2)  # (B, N_q, H, D)
        single = query.dim() == 2
        if single:
            mixed = mixed.squeeze(0)  # (N_q, H, D)
        elif not self.batch_first:
            mixed = mixed.transpose(0, 1)  # (N_q, B, H, D)
        out: Tensor = self.out_proj(mixed.flatten(-2))
        if not need_weights:
            return out, None
        weights = weights_of(self.core, q, k, key_mask=key_mask, causal=causal)
        if dropped is not None:
            weights = weights * dropped.mT
        if average_attn_weights:
            weights = weights.mean(1)  # (B, N_q, N_k)
        return out, weights.squeeze(0) if single else weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each `(B, H, N, D)`."""
        if self.in_proj_weight is None:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = []
        for name, x, weight, bias in zip(
            ("query", "key", "value"), (query, key, value), weights, biases, strict=True
        ):
            size = weight.shape[1]
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != size:
                layout = f"(B, N, {size})" if self.batch_first else f"(N, B, {size})"
                raise ValueError(
                    f"{name} must have shape {layout}, or all three (N, C), got {tuple(x.shape)}"
                )
            if x.dim() == 2:
                x = x.unsqueeze(0)
            elif not self.batch_first:
                x = x.transpose(0, 1)
            heads = F.linear(x, weight, bias).unflatten(2, (self.num_heads, -1))  # (B, N, H, D)
            projected.append(heads.transpose(1, 2))
        q, k, v = projected
        return q, k, v

    def _attend_nested(self, x: Tensor, is_causal: bool) -> Tensor:
        """Self-attention of sequences of different lengths.

        In evaluation nn.TransformerEncoder turns a padded batch into a nested tensor, and cannot
        be told not to from here if it was built before its attention was replaced.
        """
        lengths = [len(sequence) for sequence in x.unbind()]
        padded = x.to_padded_tensor(0.0)  # (B, N, C)
        position = torch.arange(padded.shape[1], device=x.device)
        padding = position >= torch.tensor(lengths, device=x.device)[:, None]  # (B, N)
        out, _ = self.forward(
            padded, padded, padded, padding, need_weights=False, is_causal=is_causal
        )
        rows = [row[:length] for row, length in zip(out, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.strided)

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, "
            f"batch_first={self.batch_first}"
        )
