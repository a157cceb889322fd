"""`tg.autodiff`: reverse mode by tapes, forward mode by accumulators."""

from tracegraph.runtime.accumulator import ForwardAccumulator
from tracegraph.runtime.tape import GradientTape

__all__ = ["ForwardAccumulator", "GradientTape"]
