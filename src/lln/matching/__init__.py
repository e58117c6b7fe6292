"""Moment matching: α and β that make LLN attention as concentrated as softmax attention.

`measure` takes the moments of q and k, `factors` turns them into α and β along a calibrated
curve, and `Matcher` does both for a layer.
"""

from lln.matching.calibration import Calibration, calibrate, calibration
from lln.matching.matcher import Matcher, UncalibratedWarning, calibrating, match
from lln.matching.statistics import Statistics, measure, measure_batch
from lln.matching.width import (
    AUTHORS_FIT,
    PRESETS,
    Curve,
    Factors,
    Matching,
    curve,
    factors,
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
    "calibration",
    "curve",
    "factors",
    "match",
    "measure",
    "measure_batch",
    "resolve",
    "width",
]
