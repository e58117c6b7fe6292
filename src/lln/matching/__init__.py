"""Moment matching: α and β that make LLN attention as concentrated as softmax attention.

`measure` takes the moments of q and k, `factors_of` turns them into α and β along a calibrated
curve, and `Matcher` does both for a layer.
"""

from lln.matching.calibration import Calibration, calibrate, calibration_for
from lln.matching.columns import column_entropy
from lln.matching.factors import Factors, factors_of
from lln.matching.matcher import Matcher, UncalibratedWarning, calibrating
from lln.matching.moments import match
from lln.matching.statistics import Statistics, measure, measure_batch
from lln.matching.width import (
    AUTHORS_FIT,
    PRESETS,
    Curve,
    Matching,
    curve,
    linear_fit,
    resolve,
    width,
)

__all__ = [
    "AUTHORS_FIT",
    "PRESETS",
    "Calibration",
    "Curve",
    "Factors",
    "Matcher",
    "Matching",
    "Statistics",
    "UncalibratedWarning",
    "calibrate",
    "calibrating",
    "calibration_for",
    "column_entropy",
    "curve",
    "factors_of",
    "linear_fit",
    "match",
    "measure",
    "measure_batch",
    "resolve",
    "width",
]
