"""Flipping, rotating, cropping and padding images, and dividing them into patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegraph.array.arguments import as_count, as_number, as_size, as_sizes, known_int, refuse
from tracegraph.array.indexing.selection import gather
from tracegraph.array.joining import concat
from tracegraph.array.runtime_sizes import is_open, runtime_size
from tracegraph.array.shaping import cut, pad, reshape, reverse, transpose as transpose_axes
from tracegraph.core.shapes import Size, maximum, minimum as smaller
from tracegraph.core.types import float64, int64
from tracegraph.errors import shown
from tracegraph.image.pictures import as_images, as_pixels
from tracegraph.ir.tensor import Tensor
from tracegraph.math.elementwise.arithmetic import add, multiply, subtract
from tracegraph.math.elementwise.logic import greater
from tracegraph.nn.windows import Windows, padded, slices, windows_over
from tracegraph.operands.conversion import as_tensor, cast_to
from tracegraph.ops.constant import Iota
from tracegraph.tracing.trace import current_trace
from tracegraph.typing import SizeLike, TensorLike

#: Patches of more elements per channel are gathered, rather than joined from slices.
_LARGEST_IN_SLICES = 64


def flip_left_right(image: TensorLike) -> Tensor:
    """Images [..., height, width, channels] with their columns in reverse order.

    >>> tg.image.flip_left_right([[[1], [2]]]).numpy().tolist()
    [[[2], [1]]]
    """
    x = as_images("flip_left_right", image)
    return reverse(x, [x.ndim - 2])


def flip_up_down(image: TensorLike) -> Tensor:
    """Images [..., height, width, channels] with their rows in reverse order.

    >>> tg.image.flip_up_down([[[1]], [[2]]]).numpy().tolist()
    [[[2]], [[1]]]
    """
    x = as_images("flip_up_down", image)
    return reverse(x, [x.ndim - 3])


def transpose(image: TensorLike, name: str | None = None) -> Tensor:
    """Images [..., height, width, channels] with height and width swapped.

    >>> tg.image.transpose([[[1], [2]]]).numpy().tolist()
    [[[1]], [[2]]]
    """
    x = as_images("transpose", image)
    lead = x.ndim - 3
    return transpose_axes(x, [*range(lead), lead + 1, lead, lead + 2])


def rot90(image: TensorLike, k: int = 1, name: str | None = None) -> Tensor:
    """Rotates images [..., height, width, channels] by k times 90 degrees counterclockwise.

    k must be known while tracing.

    >>> tg.image.rot90([[[1], [2]]]).numpy().tolist()
    [[[2]], [[1]]]
    """
    x = as_images("rot90", image)
    count = as_size("rot90", "k", k) % 4
    if count == 1:
        return flip_up_down(transpose(x))
    if count == 3:
        return transpose(flip_up_down(x))
    return flip_up_down(flip_left_right(x)) if count == 2 else x


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: SizeLike,
    offset_width: SizeLike,
    target_height: SizeLike,
    target_width: SizeLike,
) -> Tensor:
    """Crops images [..., height, width, channels] to a box with the given offsets and sizes.

    Raises ShapeError unless the box is inside the image, and for images without pixels.

    >>> tg.image.crop_to_bounding_box(tg.ones([1, 4, 5, 3]), 1, 2, 3, 2).shape
    TensorShape([1, 3, 2, 3])
    """
    op = "crop_to_bounding_box"
    x = as_pixels(op, image)
    starts, sizes = _box(op, offset_height, offset_width, target_height, target_width)
    if any(known_int(size) and size == 0 for size in sizes):
        refuse(op, f"the part has the sizes {sizes}", x, fix="use sizes of one or more")
    for axis, start, size in zip((x.ndim - 3, x.ndim - 2), starts, sizes):
        own = x.type.shape[axis]
        if known_int(own) and known_int(start) and known_int(size) and start + size > own:
            fact = f"{size} rows or columns from {start} on, and axis {axis} of {x.type} has {own}"
            refuse(op, fact, x, fix="use a box inside of the image")
        x = cut(x, axis, start, start + size)
    return x


def pad_to_bounding_box(
    image: TensorLike,
    offset_height: SizeLike,
    offset_width: SizeLike,
    target_height: SizeLike,
    target_width: SizeLike,
) -> Tensor:
    """Pads images [..., height, width, channels] with zeros to the given sizes; they start at the
    given offsets.

    Raises ShapeError if they do not fit, and for images without pixels.

    >>> tg.image.pad_to_bounding_box(tg.ones([1, 1, 1]), 1, 0, 2, 2).numpy()[..., 0]
    array([[0., 0.],
           [1., 0.]], dtype=float32)
    """
    op = "pad_to_bounding_box"
    x = as_pixels(op, image)
    starts, sizes = _box(op, offset_height, offset_width, target_height, target_width)
    widths: list[Any] = [[0, 0]] * x.ndim
    for axis, start, size in zip((x.ndim - 3, x.ndim - 2), starts, sizes):
        after = size - start - x.type.shape[axis]
        if known_int(after) and after < 0:
            fact = f"axis {axis} of {x.type} does not fit into {size} from {start} on"
            refuse(op, fact, x, fix="give a larger target or a smaller offset")
        widths[axis] = [start, after]
    return pad(x, widths)


def _box(op: str, *numbers: Any) -> tuple[list[Size], list[Size]]:
    """Two offsets and two sizes, none of them negative, and the sizes not 0; of those that only the
    run knows, the run checks that."""
    names = ("offset_height", "offset_width", "target_height", "target_width")
    trace = current_trace()
    for name, number in zip(names[2:], numbers[2:]):
        if trace is not None and is_open(number):
            n = as_tensor(number)
            trace.check(greater(n, 0), f"{op}: {name} is below 1", (n,), "use a size of 1 or more")
    found = [as_count(op, name, number) for name, number in zip(names, numbers)]
    return found[:2], found[2:]


def resize_with_crop_or_pad(
    image: TensorLike, target_height: SizeLike, target_width: SizeLike
) -> Tensor:
    """Crops images [..., height, width, channels] around their centre, or pads them with zeros on
    all sides, to the given sizes.

    Raises ShapeError for a size below 1, and for images without pixels.

    >>> tg.image.resize_with_crop_or_pad(tg.ones([4, 1, 1]), 2, 3).numpy()[..., 0]
    array([[0., 1., 0.],
           [0., 1., 0.]], dtype=float32)
    """
    op = "resize_with_crop_or_pad"
    x = as_pixels(op, image)
    _, sizes = _box(op, 0, 0, target_height, target_width)
    for axis, size in zip((x.ndim - 3, x.ndim - 2), sizes):
        if size == 0:
            refuse(op, f"a target size is {size}", x, fix="use an int of 1 or more")
        own = x.type.shape[axis]
        kept = own if own == size else smaller(own, size)
        start, before = (own - kept) // 2, (size - kept) // 2
        x = cut(x, axis, start, start + kept)
        widths: list[Any] = [[0, 0]] * x.ndim
        widths[axis] = [before, size - kept - before]
        x = pad(x, widths) if kept is not size else x
    return x


def central_crop(image: TensorLike, central_fraction: float | Tensor) -> Tensor:
    """Crops images [..., height, width, channels] to the centre, with `central_fraction` of their
    height and width.

    Raises ValueError if the fraction, where known, is not above 0 and at most 1.

    >>> tg.image.central_crop(tg.ones([4, 8, 3]), 0.5).shape
    TensorShape([2, 4, 3])
    """
    op = "central_crop"
    x = as_images(op, image)
    if is_open(central_fraction):
        return _central_of_run(op, x, cast_to(as_tensor(central_fraction), float64))
    if isinstance(central_fraction, Tensor):
        central_fraction = central_fraction.numpy().item()
    fraction = float(as_number(op, "central_fraction", central_fraction, low=0, high=1))
    if fraction == 0:
        as_number(op, "central_fraction", central_fraction, low=1e-300, high=1)
    if fraction == 1:
        return x
    for axis in (x.ndim - 3, x.ndim - 2):
        size: Any = x.type.shape[axis]
        if known_int(size):
            start: Any = int((size - size * fraction) / 2)
        else:
            whole = cast_to(as_tensor(size), float64)
            margin = subtract(whole, multiply(whole, fraction)) * 0.5  # type: ignore[operator]
            start = runtime_size(op, cast_to(margin, int64))
        x = cut(x, axis, start, size - start)
    return x


def _central_of_run(op: str, x: Tensor, fraction: Tensor) -> Tensor:
    """The centre of images, by a fraction known only at run time."""
    for axis in (x.ndim - 3, x.ndim - 2):
        size: Any = x.type.shape[axis]
        half = cast_to(as_tensor(size), float64) * 0.5  # type: ignore[operator]
        margin = multiply(subtract(1.0, fraction), half)
        start = runtime_size(op, cast_to(margin, int64))
        x = cut(x, axis, start, size - start)
    return x


def extract_patches(
    images: TensorLike,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Tensor:
    """All patches of [examples, height, width, channels], each flattened along the last axis.

    - `sizes`, `strides`, `rates`: four ints each, the first and the last being 1: the sizes of a
      patch, the steps between patches, and those between its elements.
    - `padding`: "VALID", or "SAME" for patches that extend past the edge, with zeros there.

    >>> x = tg.reshape(tg.range(9), [1, 3, 3, 1])
    >>> tg.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID")[0, 0].numpy()
    array([[0, 1, 3, 4],
           [1, 2, 4, 5]], dtype=int32)
    """
    op = "extract_patches"
    x = as_images(op, images, ranks=(4,))
    for what, value in (("sizes", sizes), ("strides", strides), ("rates", rates)):
        numbers = as_sizes(op, what, value)
        if len(numbers) != 4 or (numbers[0], numbers[-1]) != (1, 1):
            refuse(op, f"{what} is {shown(value)}", x, fix="give [1, rows, columns, 1]")
    x, windows = windows_over(op, x, sizes, strides, padding, "NHWC", rates)
    x = padded(x, windows, 0)
    if windows.sizes[0] * windows.sizes[1] > _LARGEST_IN_SLICES:
        return _patches_at_places(x, windows)
    return concat(list(slices(x, windows)), 3)


def _patches_at_places(x: Tensor, windows: Windows) -> Tensor:
    """The same of padded images, by a number of nodes that does not depend on the size."""
    for axis in (2, 1):
        size, step, gap = (
            numbers[axis - 1] for numbers in (windows.sizes, windows.steps, windows.gaps)
        )
        count = maximum((x.type.shape[axis] - (size - 1) * gap - 1) // step + 1, 0)
        starts = multiply(reshape(Iota(count, int64)(), [count, 1]), step)
        x = gather(x, add(starts, multiply(Iota(size, int64)(), gap)), axis=axis)
    x = transpose_axes(x, [0, 1, 3, 2, 4, 5])  # places in a patch after the patches
    lead, (rows, columns, channels) = x.type.shape[:3], x.type.shape[3:]
    return reshape(x, [*lead, rows * columns * channels])


__all__ = [
    "central_crop",
    "crop_to_bounding_box",
    "extract_patches",
    "flip_left_right",
    "flip_up_down",
    "pad_to_bounding_box",
    "resize_with_crop_or_pad",
    "rot90",
    "transpose",
]
