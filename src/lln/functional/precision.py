"""The precision in which attention is computed, whatever precision it is called with."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

LOG2E = math.log2(math.e)  # 2 ** (LOG2E · x) is exp(x), and takes half the time on a CPU


def upcast(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Keeps autocast from lowering the products between float32 exponentials to half precision."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    # What is compiled or exported may be run where autocast is on.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def or_zero(peak: Tensor) -> Tensor:
    """`peak`, a maximum that is subtracted before exp, with 0 for the maximum of nothing.

    −inf − (−inf) is NaN; −inf − 0 is −inf, and exp makes it the 0 that an empty sum should be.
    """
    return peak.masked_fill(peak == -torch.inf, 0)


def is_tame(sums: Tensor) -> bool:
    """Whether sums of exponentials are so far from 0 and infinity that no peak has to be taken off.

    This looks at values: see `pieces.pays_to_look`.
    """
    least, largest = torch.aminmax(sums)
    return least.item() > 2**-60 and largest.item() < 2**60  # not so with NaN
