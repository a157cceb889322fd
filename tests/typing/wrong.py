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


class Scaled(tg.layers.Layer):
    def call(self, inputs: tg.Tensor, training: bool | None = None) -> tg.Tensor:
        return inputs


x = tg.ones([2, 3])
v = tg.Variable(x)
net = Net()
dense = tg.layers.Dense(3)
lstm = tg.layers.LSTM(3)
attention = tg.layers.MultiHeadAttention(2, 3)
optimizer = tg.optimizers.Adam(0.01)
mean = tg.metrics.Mean()

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
tape.watch(3)  # wrong: a number is not watched
tape.watch(None)  # wrong: there is nothing to watch
tape.gradient(y, 3)  # wrong: a number is not a source
tape.jacobian(y, "x")  # wrong: text is not a source
dense(x, trainnig=True)  # wrong: no such parameter
dense()  # wrong: the inputs are missing
Scaled()(x, train=True)  # wrong: no such parameter
Scaled()("x")  # wrong: text is not a tensor
lstm(x, initial_states=[x])  # wrong: no such parameter
lstm("x")  # wrong: text is not a tensor
tg.layers.LSTM(3, return_seq=True)  # wrong: no such option
attention(x)  # wrong: the value is missing
attention(x, x, mask=x)  # wrong: no such parameter
tg.layers.LSTMCell(3)(x)  # wrong: the state is missing
tg.layers.Sequential(["relu"])  # wrong: text is not a layer
tg.layers.Bidirectional(dense)  # wrong: not a recurrent layer
tg.layers.add([x, x], axis=1)  # wrong: no such option
dense.fit(x, x)  # wrong: no such method
mean.update_state("x")  # wrong: text is not a tensor
mean(x, weights=x)  # wrong: no such parameter
mean()  # wrong: the values are missing
tg.losses.MeanSquaredError()(x)  # wrong: the prediction is missing
optimizer.apply_gradients([x, v])  # wrong: gradients come with their variables
optimizer.learning_rate = "fast"  # wrong: text is not a rate
tg.optimizers.Adam(lr=0.1)  # wrong: no such option
tg.saved_model.save(3, "model")  # wrong: a number is not a model
tg.saved_model.save(net, "model", signatures=3)  # wrong: a number is not a function
tg.train.Checkpoint(3)  # wrong: a number has no variables
tg.train.Checkpoint(model="model")  # wrong: text has no variables
tg.cond(x, lambda row: row, lambda: x)  # wrong: a branch has no parameters
tg.cond(x)  # wrong: the branches are missing
tg.switch_case(x, [x])  # wrong: a tensor is not a branch
tg.while_loop(lambda i, j: i < 3, lambda i: i + 1, (x,))  # wrong: there is one variable
tg.while_loop(lambda i: i < 3, lambda i: i + 1)  # wrong: the variables are missing
tg.scan(lambda total: total, x)  # wrong: the element is missing
tg.map_fn(lambda a, b: a, x)  # wrong: there is one element
tg.vmap(tg.sin, in_axis=0)  # wrong: no such option
tg.grad(x)  # wrong: a tensor is not a function
tg.distribute.Layout(tg.distribute.Mesh({"data": 1}), [3])  # wrong: an axis has a name
tg.linalg.LinearOperatorDiag([1.0]).solve("x")  # wrong: text is not a tensor
tg.export.stablehlo(3, x)  # wrong: a number is not a function
v[0] = 1.0  # wrong: v[0].assign(1.0)
x[0] = 1.0  # wrong: tensors do not change
tg.numpy.sum(x, dim=0)  # wrong: torch's name
