"""Instruments: what an attention does, measured without forming an N×N matrix."""

from lln.instruments.measures import (
    entropy,
    lln_spectral_gap,
    row_entropy,
    spectral_gap,
    spectral_gap_of,
)

__all__ = ["entropy", "lln_spectral_gap", "row_entropy", "spectral_gap", "spectral_gap_of"]
