"""Softmax, LLN, and the kernels that the LLN paper sets beside them.

α and β are the core's own; tests/matching checks those.
"""

from oracles.formulas import (
    for_each_query_head,
    kernel,
    lln,
    normalise,
    same_block,
    softmax,
    visible,
)


def core_softmax(core, q, k, **see):
    return softmax(q, k, visible(q.shape[2], k.shape[2], **see), core.scale)


def core_block_diag(core, q, k, **see):
    return softmax(q, k, same_block(q.shape[2], k.shape[2], core.block_size, **see), core.scale)


def core_lln(core, q, k, **see):
    found = core.matcher(q, k, **see)
    return lln(q, k, visible(q.shape[2], k.shape[2], **see), *found)


def core_lln_diag(core, q, k, **see):
    return (core_lln(core, q, k, **see) + core_block_diag(core, q, k, **see)) / 2


def core_elu(core, q, k, **see):
    phi_q, phi_k = ((x > 0) * (x + 1) + (x <= 0) * x.clamp(max=0).exp() for x in (q, k))
    return kernel(phi_q, phi_k, visible(q.shape[2], k.shape[2], **see))


def core_relu(core, q, k, **see):
    return kernel(q.clamp(min=0), k.clamp(min=0), visible(q.shape[2], k.shape[2], **see))


def core_quadratic(core, q, k, **see):
    return kernel(q.double() ** 2, k.double() ** 2, visible(q.shape[2], k.shape[2], **see))


def core_relu_kernel(core, q, k, **see):
    scores = core.scale * q.double() @ for_each_query_head(k, q).mT
    return normalise(scores.clamp(min=0) * visible(q.shape[2], k.shape[2], **see))


def core_quadratic_kernel(core, q, k, **see):
    scores = core.scale * q.double() @ for_each_query_head(k, q).mT
    return normalise(scores**2 * visible(q.shape[2], k.shape[2], **see))
