"""How often each row of each embedding table is looked up: counts in bounded memory, and skew."""

from trainobs.access.counts import AccessCounts
from trainobs.access.input_sample import InputSample
from trainobs.access.sketch import Sketch

__all__ = ["AccessCounts", "InputSample", "Sketch"]
