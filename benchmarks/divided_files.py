"""The cost of a checkpoint of a sharded Variable: saving it, and what each process reads.

    python -m benchmarks.divided_files --mebibytes 1024

One process saves from 8 virtual CPU devices. Then fresh processes load it: with 1, 2 and 8 devices,
by rows and by columns, and as 2 processes of 4 devices each. Each prints its seconds and the bytes
of tensors read per byte that its devices hold, and compares every element. The file is in the page
cache by then, so the seconds measure copies, not a disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEVICES = 8
COLUMNS = 4096
#: How each load shards the axes, with the number of devices per process and of processes.
LOADS = (
    (1, 1, [None, None]),
    (2, 1, ["data", None]),
    (2, 1, [None, "data"]),
    (8, 1, ["data", None]),
    (8, 1, [None, "data"]),
    (4, 2, ["data", None]),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=1024, help="the size of the Variable")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rows = options.mebibytes * 2**20 // (4 * COLUMNS)
    if options.part is not None:
        work(options.part, Path(options.folder), rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(DEVICES, 1, "save", folder, options.mebibytes)
        for number, (devices, processes, _) in enumerate(LOADS):
            run(devices, processes, str(number), folder, options.mebibytes)


def run(devices: int, processes: int, part: str, folder: str, mebibytes: int) -> None:
    """Runs a part in separate processes, which print what they find."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    launch = ["-m", "tracegraph", "launch", "-n", str(processes)] if processes > 1 else []
    options = ["--part", part, "--folder", folder, "--mebibytes", str(mebibytes)]
    subprocess.run(
        [sys.executable, *launch, __file__, *options],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": paths},
        check=True,
    )


def work(part: str, folder: Path, rows: int) -> None:
    import tracegraph as tg

    if part == "save":
        save(tg, folder, rows)
    else:
        load(tg, folder, rows, *LOADS[int(part)])


def values(begin: int, end: int):
    """Rows of the Variable: each has distinct bits, and no two columns are alike."""
    import numpy as np

    rows = np.arange(begin, end, dtype=np.uint32)[:, None]
    bits = rows * np.uint32(2654435761) + np.arange(COLUMNS, dtype=np.uint32) * np.uint32(40503)
    return (bits >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32)  # from 1 up to 2


def save(tg, folder: Path, rows: int) -> None:
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": DEVICES}), ["data", None])
    checkpoint = tg.train.Checkpoint(weights=tg.Variable(values(0, rows), layout=layout))
    start = time.perf_counter()
    checkpoint.write(str(folder / "checkpoint"))
    print(f"saved from {DEVICES} devices: {time.perf_counter() - start:.2f} s", flush=True)


def load(tg, folder: Path, rows: int, devices: int, processes: int, axes: list) -> None:
    import numpy as np

    from tests.counting_reads import bytes_of_reads

    if processes > 1:
        tg.distribute.initialize()
    read = bytes_of_reads()
    layout = tg.distribute.Layout(tg.distribute.Mesh({"data": devices * processes}), axes)
    weights = tg.Variable(lambda: tg.zeros([rows, COLUMNS]), layout=layout)
    start = time.perf_counter()
    tg.train.Checkpoint(weights=weights).restore(str(folder / "checkpoint")).assert_consumed()
    shards = weights.read_value().buffer.addressable_shards
    seconds = time.perf_counter() - start
    needed = sum(shard.data.nbytes for shard in shards)
    for shard in shards:
        begin, end, _ = shard.index[0].indices(rows)
        expected = values(begin, end)[:, shard.index[1]]
        assert np.asarray(shard.data).tobytes() == np.ascontiguousarray(expected).tobytes()
    where = f"{devices} devices" + (f" of each of {processes} processes" if processes > 1 else "")
    print(
        f"loaded on {where} as {axes}: {seconds:.2f} s, {sum(read) / needed:.3f} bytes read for "
        "each that is held, every element equal",
        flush=True,
    )


if __name__ == "__main__":
    main()
