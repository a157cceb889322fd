"""`tg.autodiff`: reverse mode by tapes, forward mode by accumulators."""

from tracegraph.differentiation.accumulator import ForwardAccumulator
from tracegraph.differentiation.tape import GradientTape

__all__ = ["ForwardAccumulator", "GradientTape"]
