"""What the examples share: the options that each has, and what a bad value gets."""

import argparse
import os
import sys
from pathlib import Path

import tracegraph as tg


def _without_packages(kind, error, traceback):
    """Says in one line that a package is missing, and what brings it."""
    if not issubclass(kind, ModuleNotFoundError):
        sys.__excepthook__(kind, error, traceback)
        return
    name = Path(sys.argv[0]).name
    print(f"{name}: {error}: pip install -e '.[examples]' brings it", file=sys.stderr)


sys.excepthook = _without_packages  # the examples import this module before those packages


class Parser(argparse.ArgumentParser):
    """Adds --seed, --out and --device to an example's own options.

    Reports a bad value in one line and leaves with exit code 2.
    """

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")

    def options(self, arguments):
        """The options, checked, with the folder for the results and the device in place."""
        self.add_argument("--seed", type=int, default=0, help="of all that is random; default: 0")
        self.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
        self.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
        options = self.parse_args(arguments)
        if not 0 <= options.seed < 2**32:
            self.error(f"argument --seed: {options.seed} is not between 0 and {2**32 - 1}")
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.error(f"argument --out: {options.out} cannot be a folder: {error.strerror}")
        if not _is_device_there(options.device):
            self.error(f"argument --device: there is no {options.device} here")
        return options


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _is_device_there(device):
    """Chooses the device, before the first value is computed; False if there is none."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    where = (tg.constant(0.0) + 1.0).device  # JAX takes a GPU where it finds one
    return device != "gpu" or "CPU" not in where
