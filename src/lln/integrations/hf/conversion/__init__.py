"""From softmax attention to another one, with what a pre-trained model knows kept.

`convert` replaces the attention, calibrates it, teaches it layer by layer to do what softmax did,
and, if asked, trains the whole model to give the same result. After each stage it measures how far
the model is from the original, on text that it did not see.
"""

from lln.integrations.hf.conversion.convert import convert
from lln.integrations.hf.conversion.plan import Conversion, Plan, Stage

__all__ = ["Conversion", "Plan", "Stage", "convert"]
