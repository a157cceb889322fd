"""Benchmarks: tracegraph beside JAX, TensorFlow and PyTorch, each in its own process.

Run ``python -m benchmarks``; ``python -m benchmarks --list`` names the rows.

- ``rows``: what is measured, and the targets.
- ``inputs``: the numbers every peer starts from, and the hyper-parameters.
- ``peer_*``: the same workloads, written once for each peer.
- ``worker``: the process of one peer; ``harness``: the interleaving of the processes.
- ``fresh``: measurements of processes that start and end.
- ``report``: statistics, the table, the targets, the JSON file.
"""
