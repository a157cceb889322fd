"""A user's file: a checker must find a fault in each line that is marked, and in no other."""

import tracegraph as tg


@tg.function
def step(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return x * y


@tg.function(reduce_retracing=True)
def scaled(x: tg.Tensor, scale: float = 1.0) -> tg.Tensor:
    return x * scale


class Net(tg.Module):
    @tg.function
    def run(self, x: tg.Tensor) -> tg.Tensor:
        return x


x = tg.ones([2, 3])
v = tg.Variable(x)
net = Net()

tg.reduce_sum(x, dim=0)  # wrong: torch's name
tg.reduce_summ(x)  # wrong: no such name
tg.nn.reluu(x)  # wrong: no such name
x.nunpy()  # wrong: no such method
x.reshape([6])  # wrong: tg.reshape
v.asign(x)  # wrong: no such method
step(x, x, x)  # wrong: too many arguments
step(x)  # wrong: too few
step("x", x)  # wrong: text is not a tensor
scaled(x, factor=2.0)  # wrong: no such parameter
net.run(x, x)  # wrong: too many arguments
net.run()  # wrong: too few
x + None  # wrong: None is not a tensor
x @ "w"  # wrong: text is not a tensor
x["name"]  # wrong: text is not an index
tg.reduce_sum("x")  # wrong: text is not a tensor
tg.reduce_sum(x, axis="rows")  # wrong: an axis is a number
tg.zeros([2], dtype=3.0)  # wrong: a number is not a dtype
tg.reshape(x, None)  # wrong: None is not a shape
tg.layers.Dense(3)("x")  # wrong: text is not a tensor
tg.layers.Dense(units="three")  # wrong: a number is needed
tg.grad(scaled)("x")  # wrong: text is not a tensor
tg.function(step, jit_complie=True)  # wrong: no such option
with tg.GradientTape(persistant=True) as tape:  # wrong: no such option
    y = x * x
tape.gradient(y, "x")  # wrong: text is not a source
tape.gradient(y, x, unconnected="zero")  # wrong: no such parameter
tg.TensorSpec([2.5])  # wrong: a size is a whole number
