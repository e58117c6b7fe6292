"""Which attention serves a decoder's cross-attention."""

import dataclasses
from typing import Any

from lln.attention import BlockDiagAttention
from lln.attention.sequence import SequenceAttention
from lln.matching import resolve
from lln.registry import entry


def across(attention: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options to build, of those that were asked for.

    Queries and keys are of two sequences, so there are no blocks of neighbours: of `lln_diag`, LLN
    remains. Statistics of the queries would tell early ones of later ones: LLN uses stored ones, as
    in causal attention, unless others were chosen.
    """
    if issubclass(entry(attention).cls, (SequenceAttention, BlockDiagAttention)):
        raise NotImplementedError(
            f"{attention} attends within one sequence and cannot serve the cross-attention of "
            "nn.TransformerDecoderLayer: give its modules to from_torch one by one"
        )
    if attention == "lln_diag":
        known = (*entry("lln").options, "max_len")
        attention, options = "lln", {name: options[name] for name in options if name in known}
    if attention == "lln":
        matching = resolve(options.get("matching", "entropy"))
        if matching.statistics == "auto":
            frozen = dataclasses.replace(matching, statistics="frozen")
            options = {**options, "matching": frozen}
    return attention, options
