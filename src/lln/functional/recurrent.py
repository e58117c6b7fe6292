"""Decoding with a state of constant size: prefill and steps give what one causal pass gives."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.functional.blocks import block_diagonal_attention
from lln.functional.checks import check_attention, check_positive, check_power_of_two
from lln.functional.chunked import attend_causal, normalise, with_ones
from lln.functional.lln import Factor, log_features
from lln.functional.log_kernel import LogKernel
from lln.functional.precision import no_autocast, or_zero, upcast
from lln.functional.prefix import Sums
from lln.functional.slots import assign
from lln.functional.softmax import blank, masked_softmax


class LLNState(NamedTuple):
    """What LLN remembers of the past: one weighted mean of the values per feature.

    Attributes:
        mean: `(B, H_kv, D, E)` Σ_j softmax_j(β k_jc) v_j.
        log_weight: `(B, H_kv, D)` z_c = log Σ_j exp(β k_jc); −inf before the first token.
    """

    mean: Tensor
    log_weight: Tensor

    def reorder(self, index: Tensor) -> "LLNState":
        """The state of the batch `[batch[i] for i in index]`, as beam search needs it."""
        return LLNState(*(x.index_select(0, index) for x in self))


class BlockState(NamedTuple):
    """The block that is being filled.

    Attributes:
        keys: `(B, H_kv, block size, D)`.
        values: `(B, H_kv, block size, E)`.
        filled: `(B,)` how many places are filled, less than the block size.
    """

    keys: Tensor
    values: Tensor
    filled: Tensor

    def reorder(self, index: Tensor) -> "BlockState":
        """The state of the batch `[batch[i] for i in index]`."""
        return BlockState(*(x.index_select(0, index) for x in self))


def state_tensors(state: Any) -> Iterator[Tensor]:
    """The tensors that a state is made of; none for None, the state before the first token."""
    if isinstance(state, Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from state_tensors(part)


def lln_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Factor,
    beta: Factor,
    state: LLNState | None = None,
    *,
    key_mask: Tensor | None = None,
    key_shift: Tensor | None = None,
    chunk_size: int = 64,
) -> tuple[Tensor, LLNState]:
    """Causal LLN attention of new tokens that follow `state`: a prompt, a piece, or one step.

    Args:
        q: `(B, H, N, D)`, the new tokens.
        k: `(B, H_kv, N, D)`.
        v: `(B, H_kv, N, E)`.
        alpha: as in `lln_attention`; the same in every call of a sequence.
        beta: likewise.
        state: what the last call returned; None at the start of a sequence.
        key_mask: `(B, N)` bool, True = keep; a padded token leaves the state as it is.
        key_shift: as in `lln_attention`.
        chunk_size: as in `lln_attention`.

    Returns:
        `(B, H, N, E)` and the new state.
    """
    check_attention(q, k, v, key_mask=key_mask)
    check_power_of_two("chunk_size", chunk_size)
    with no_autocast(q.device):
        log_q, log_k, values = log_features(
            upcast(q), upcast(k), upcast(v), alpha, beta, key_mask, None, key_shift
        )
        if state is None:
            state = _empty(log_k, values)
        if k.shape[2] == 0:
            return q.new_zeros(*q.shape[:3], v.shape[3]), state
        if q.shape[2] == k.shape[2] == 1:
            out, state = _step(log_q, log_k, values, state, key_mask)
        else:
            kernel, past = LogKernel(), _as_sums(state)
            out, sums = attend_causal(kernel, log_q, log_k, values, chunk_size, past)
            state = _as_state(sums)
        return out.to(q.dtype), state


def _step(
    log_q: Tensor, log_k: Tensor, v: Tensor, state: LLNState, key_mask: Tensor | None
) -> tuple[Tensor, LLNState]:
    """One token: the means move towards its values by its share of the weights."""
    x = log_k[:, :, 0]  # (B, H_kv, D)
    if key_mask is not None:  # −inf + −inf has no gradient
        x = x.where(key_mask[:, :, None], 0)
    z = torch.logaddexp(state.log_weight, x)
    share = (x - or_zero(z)).exp().unsqueeze(-1)
    if key_mask is not None:
        z = z.where(key_mask[:, :, None], state.log_weight)
        share = share.where(key_mask[:, :, None, None], 0)
    mean = state.mean + share * (v - state.mean)  # (B, H_kv, D, E)
    scores = log_q.unflatten(1, (z.shape[1], -1))[:, :, :, 0] + z.unsqueeze(2)  # (B, H_kv, G, D)
    out = masked_softmax(scores, (z > -torch.inf).unsqueeze(2)) @ mean
    return out.flatten(1, 2).unsqueeze(2), LLNState(mean, z)


def _empty(k: Tensor, v: Tensor) -> LLNState:
    batch, heads, _, dim = k.shape
    mean = v.new_zeros(batch, heads, dim, v.shape[3])
    return LLNState(mean, k.new_full((batch, heads, dim), -torch.inf))


def _as_sums(state: LLNState) -> Sums:
    z = state.log_weight
    # 1 in value (0 where there is nothing yet), but z keeps its gradient.
    carried = (z - or_zero(z).detach()).exp()
    return Sums(z.detach(), carried.unsqueeze(-1) * with_ones(state.mean))


def _as_state(sums: Sums) -> LLNState:
    count = sums.total[..., -1]
    return LLNState(normalise(sums.total), sums.peak + count.masked_fill(count == 0, 1).log())


def block_diagonal_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: BlockState | None = None,
    *,
    block_size: int = 64,
    key_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, BlockState]:
    """Causal block-diagonal attention of new tokens that follow `state`.

    Arguments and result as in `lln_recurrent` and `block_diagonal_attention`.
    """
    check_attention(q, k, v, key_mask=key_mask)
    check_positive("block_size", block_size)
    if state is None:
        state = _empty_block(k, v, block_size)
    elif state.keys.shape[2] != block_size:
        raise ValueError(f"state was made with block_size {state.keys.shape[2]}, got {block_size}")
    if q.shape[2] == k.shape[2] == 1:
        return _block_step(q, k, v, state, key_mask, scale)
    keep = k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
    held = torch.arange(block_size, device=k.device) < state.filled[:, None]  # (B, block)
    keep = torch.cat([held, keep], 1)
    k, v = torch.cat([state.keys, k], 2), torch.cat([state.values, v], 2)
    out = block_diagonal_attention(
        q, k, v, block_size=block_size, key_mask=keep, causal=True, scale=scale
    )
    # The tokens of the last, unfinished block, moved to its front.
    total = keep.sum(1)
    rank = keep.cumsum(1) - 1
    keep = keep & (rank >= (total - total % block_size)[:, None])
    slots = assign(keep, block_size)[0]
    # Copies: a view would keep the whole prompt alive.
    keys, values = (slots.split(x)[:, :, 0].contiguous().clone() for x in (k, v))
    return out, BlockState(keys, values, total % block_size)


def _block_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: BlockState,
    key_mask: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, BlockState]:
    """One token: it takes the next place of the block and sees what stands there so far."""
    size = state.keys.shape[2]
    place = torch.arange(size, device=k.device)
    here = place == state.filled[:, None]  # (B, block)
    if key_mask is not None:
        here, q = here & key_mask, blank(q, key_mask)
    keys, values = (
        x.where(here[:, None, :, None], held) for x, held in ((k, state.keys), (v, state.values))
    )
    visible = (place <= state.filled[:, None])[:, None, None, :]
    rows = q.unflatten(1, (k.shape[1], -1)).flatten(2, 3)  # (B, H_kv, G, D)
    out = F.scaled_dot_product_attention(rows, keys, values, attn_mask=visible, scale=scale)
    out = out.flatten(1, 2).unsqueeze(2).to(q.dtype)
    if key_mask is not None:
        out = blank(out, key_mask)
    filled = (state.filled + here.sum(1)) % size
    done = (filled == 0)[:, None, None, None]
    return out, BlockState(keys.masked_fill(done, 0), values.masked_fill(done, 0), filled)


def _empty_block(k: Tensor, v: Tensor, block_size: int) -> BlockState:
    keys, values = (x.new_zeros(*x.shape[:2], block_size, x.shape[3]) for x in (k, v))
    return BlockState(keys, values, torch.zeros(k.shape[0], dtype=torch.long, device=k.device))
