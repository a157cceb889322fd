"""Saves and loads Modules, functions, and containers of them, with all their derivatives.

A saved model is data: graphs as text, tensors, and the structure that holds them. A loaded model
needs none of the source. It can be called at any shape that its graphs allow, differentiated to
any order in both modes, trained further, and saved again.

>>> class Scale(tg.Module):
...     def __init__(self):
...         super().__init__()
...         self.factor = tg.Variable(3.0)
...     @tg.function(input_signature=[tg.TensorSpec([None])])
...     def __call__(self, x):
...         return self.factor * x
>>> tg.saved_model.save(Scale(), "scale")
>>> loaded = tg.saved_model.load("scale")
>>> loaded(tg.constant([1.0, 2.0])).numpy()
array([3., 6.], dtype=float32)
"""

from tracegraph.api.absent import publish
from tracegraph.saved_model.loaded_modules import LoadedModule
from tracegraph.saved_model.options import Asset, LoadOptions, SaveOptions
from tracegraph.saved_model.reading import contains_saved_model, load
from tracegraph.saved_model.writing import save

__all__ = [
    "Asset",
    "LoadOptions",
    "LoadedModule",
    "SaveOptions",
    "contains_saved_model",
    "load",
    "save",
]

publish(__name__)
