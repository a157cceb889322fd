"""The command line: ``python -m benchmarks``."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from benchmarks import fresh, report
from benchmarks.harness import Harness, Options, Outcome
from benchmarks.rows import PEERS, ROWS, Row


def main() -> int:
    """Returns 0; 1 if the peers' results differ or tracegraph failed anywhere; 2 without the
    device."""
    arguments = parser().parse_args()
    if arguments.list:
        print("\n".join(f"{row.name:24s}{row.title}" for row in ROWS))
        return 0
    options = options_of(arguments)
    try:
        print(f"on {fresh.compute_on(options.device)}")
    except fresh.ProcessError as error:
        print(f"JAX finds no {options.device}: {error}", file=sys.stderr)
        return 2
    harness = Harness(options)
    try:
        outcomes = run(harness, arguments.rows)
    finally:
        harness.close()
    print("\n".join(["", "targets", *(verdict.text for verdict in report.verdicts(outcomes))]))
    if arguments.json:
        write(arguments.json, harness, outcomes)
    return int(any(is_bad(outcome) for outcome in outcomes.values()))


def run(harness: Harness, rows: list[Row]) -> dict[str, Outcome]:
    """Measures and prints the rows one after another."""
    for peer, worker in harness.workers.items():
        print(f"{peer} {worker.version}")
    for peer, reason in harness.missing.items():
        print(f"{peer}: skipped, {reason}")
    print(report.heading(), flush=True)
    outcomes = {}
    for row in rows:
        outcomes[row.name] = harness.measure(row)
        print("\n".join(report.table(outcomes[row.name])), flush=True)
    return outcomes


def write(path: Path, harness: Harness, outcomes: dict[str, Outcome]) -> None:
    versions = {peer: worker.version for peer, worker in harness.workers.items()}
    options = dataclasses.asdict(harness.options)
    content = report.as_json(outcomes, versions, harness.missing, options)
    path.write_text(json.dumps(content, indent=1) + "\n")


def is_bad(outcome: Outcome) -> bool:
    return bool(outcome.differences) or "tracegraph" in outcome.skipped


def options_of(arguments: argparse.Namespace) -> Options:
    quick = {"rounds": 3, "seconds": 0.05, "many_steps": 1_000} if arguments.quick else {}
    flags = {
        "device": arguments.device,
        "torch_compile": arguments.torch_compile,
        "verbose": arguments.verbose,
    }
    options = Options(arguments.peers, **quick, **flags)
    if arguments.rounds is None:
        return options
    return dataclasses.replace(options, rounds=arguments.rounds)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=rows_named, default=list(ROWS), help="names, comma between")
    parser.add_argument("--peers", type=peers_named, default=PEERS, help=",".join(PEERS))
    parser.add_argument("--device", choices=list(fresh.DEVICES), default="cpu", help="default: cpu")
    parser.add_argument("--json", type=Path, help="a file for all samples and ratios")
    parser.add_argument("--rounds", type=positive, help="samples per row (15)")
    parser.add_argument("--quick", action="store_true", help="few rounds, short samples")
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile too: minutes")
    parser.add_argument("--verbose", action="store_true", help="show what the workers complain of")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    return parser


def rows_named(text: str) -> list[Row]:
    known = {row.name: row for row in ROWS}
    return [known[name] for name in names(text, known)]


def peers_named(text: str) -> tuple[str, ...]:
    return tuple(names(text, PEERS))


def names(text: str, known) -> list[str]:
    chosen = text.split(",")
    for name in chosen:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
    return chosen


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
