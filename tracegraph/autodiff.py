"""`tg.autodiff`: the tapes."""

from tracegraph.runtime.tape import GradientTape

__all__ = ["GradientTape"]
