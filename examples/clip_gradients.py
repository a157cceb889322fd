"""Saves a function whose gradient is clipped, and differentiates what was loaded.

The custom gradient of TensorFlow's advanced guide: the identity, whose backward clips the norm of
the gradient to 0.5. It is saved as a graph beside the graph that it belongs to, so the process
that loads it needs neither this file nor a registry.

    python examples/clip_gradients.py --out out

writes clip/, a saved model. `tracegraph show out/clip --entry call_custom_grad` prints its graphs.
"""

import sys

import common

import tracegraph as tg


@tg.custom_gradient
def clip_gradients(y):
    def backward(dy):
        return tg.clip_by_norm(dy, 0.5)

    return y, backward


class MyModule(tg.Module):
    @tg.function(input_signature=[tg.TensorSpec(None)])
    def call_custom_grad(self, x):
        return clip_gradients(x)


def gradient_through(function):
    """The gradient of v * v at 2, which is 4 where nothing clips what comes back."""
    v = tg.Variable(2.0)
    with tg.GradientTape() as tape:
        output = function(v * v)
    return tape.gradient(output, v).numpy()


def main(arguments=None):
    options = common.Parser(description=__doc__.splitlines()[0]).options(arguments)
    model, path = MyModule(), options.out / "clip"
    tg.saved_model.save(model, path)
    loaded = tg.saved_model.load(path)
    print(f"gradient without clipping: {gradient_through(tg.identity)}")
    print(f"gradient with clipping: {gradient_through(model.call_custom_grad)}")
    print(f"gradient after loading: {gradient_through(loaded.call_custom_grad)}")

    without = tg.saved_model.SaveOptions(experimental_custom_gradients=False)
    tg.saved_model.save(model, options.out / "plain", options=without)
    try:
        gradient_through(tg.saved_model.load(options.out / "plain").call_custom_grad)
    except LookupError as error:
        print(f"saved without custom gradients: {str(error).splitlines()[0]}")
    print(f"saved models: {path} and {options.out / 'plain'}")


if __name__ == "__main__":
    main(sys.argv[1:])
