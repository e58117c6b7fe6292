"""Softmax attention and the attention that shall replace it, side by side on the same input."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lln.functional import softmax_attention
from lln.integrations.hf.attention import attend, in_window, mapped, read
from lln.integrations.hf.probe import instead


@contextmanager
def beside_softmax(*, learn: bool = False) -> Iterator[dict[nn.Module, Tensor]]:
    """Inside, models attend by softmax, and the core of each layer tries to do the same.

    Layers get what they would get in the original model, so none has to make up for the errors of
    another, and one pass serves all of them. Nothing else is differentiated.

    Args:
        learn: add the gradient of each layer's error to its core's parameters.

    Yields:
        For each layer `(2,)`: the sums of the squared errors of its output
        and of its squared output.
    """
    found: dict[nn.Module, Tensor] = {}

    def compare(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if in_window(module, options):
            return attend(module, query, key, value, attention_mask, dropout, scaling, **options)
        asked = read(module, query, key, value, attention_mask, scaling, options)
        core, q, k, v, key_mask, causal, cu_seqlens = asked
        masks: dict[str, Any] = {
            "key_mask": key_mask,
            "causal": causal,
            "cu_seqlens": cu_seqlens,
        }
        with torch.no_grad():
            target = softmax_attention(q, k, v, **masks, scale=core.scale)
        with torch.set_grad_enabled(learn):
            _, q, k, v, *_ = mapped(asked)
            sums = torch.stack(
                [(core(q, k, v, **masks) - target).square().sum(), target.square().sum()]
            )
            if learn:
                (sums[0] / sums[1]).backward()
        found[module] = found.get(module, 0) + sums.detach()
        return target.transpose(1, 2).contiguous(), None

    with instead(compare):
        yield found
