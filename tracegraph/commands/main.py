"""The options of every command, and the handling of answers and errors."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tracegraph.commands.answers import INTERRUPTED, NO, TROUBLE, Answer, Misuse
from tracegraph.commands.diff import compare
from tracegraph.commands.export_stablehlo import export
from tracegraph.commands.launch import launch
from tracegraph.commands.run import run
from tracegraph.commands.show import FORMATS, PARTS, show
from tracegraph.commands.verify import UNREAD, verify
from tracegraph.errors import (
    DTypeError,
    GradientError,
    LoadError,
    LoweringError,
    Mismatch,
    ShapeError,
    TraceError,
    fact_of,
    fix_of,
    reason_of,
)
from tracegraph.views.outline import printable

#: Errors of the library for inconsistent graphs and data.
_ERRORS = (DTypeError, GradientError, LoadError, LoweringError, Mismatch, ShapeError, TraceError)

_PATH = "a directory that tg.saved_model.save wrote, or a file with graphs as text"
_ENTRY = "a path such as encoder/__call__, with :0, :1 ... for one of several traces; a signature"

_CODES = """exit codes:
  0  done; diff: no difference; verify: everything is right
  1  diff: a difference; verify: something is wrong or damaged; the others: damaged data, or a
     graph that fails
  2  an option, a path or an entry that is not there; an output that cannot be written;
     diff: damaged data
launch: the exit code of a process that failed, 70 if it ended only because another one was lost
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code; no user error ends in a traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return _answered(_parser().parse_args(given))
    except _Misread as misread:
        return _not_understood(misread, is_json=any(map(_asks_for_json, given)))
    except SystemExit as exit:  # raised by argparse after --help and --version
        return exit.code if isinstance(exit.code, int) else TROUBLE
    except _Unwritten as unwritten:
        _complain(f"tracegraph: the output cannot be written: {unwritten}")
        return TROUBLE
    except KeyboardInterrupt:
        _complain("tracegraph: interrupted")
        return INTERRUPTED


class _Unwritten(Exception):
    """Standard output cannot be written, though somebody still waits for it: the reason."""


class _Misread(Exception):
    """Options that argparse does not understand. Raised instead of argparse's own exit, so that an
    error about options is an answer like any other."""

    def __init__(self, parser: argparse.ArgumentParser, fact: str) -> None:
        super().__init__(fact)
        self.parser = parser
        self.fact = fact


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Misread(self, message)

    def print_help(self, file: Any = None) -> None:
        """Prints help as an answer like any other: argparse ignores a failure to write it."""
        _write(self.format_help().rstrip("\n"))


class _Version(argparse.Action):
    """Prints the version in the same way as help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        _write(f"tracegraph {sys.modules['tracegraph'].__version__}")
        parser.exit()


def _not_understood(misread: _Misread, is_json: bool) -> int:
    parser = misread.parser
    usage = parser.format_usage()
    _complain(f"{usage}{parser.prog}: error: {printable(misread.fact)}")
    if is_json:
        fix = f"`{parser.prog} --help` has the options and examples"
        _write(_json({"error": misread.fact, "fix": fix}))
    return TROUBLE


def _asks_for_json(argument: str) -> bool:
    """Whether it is --json, which argparse also accepts abbreviated."""
    return argument.startswith("--j") and "--json".startswith(argument)


def _answered(options: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], Answer] = options.run
    try:
        answer = command(options)
    except Misuse as misuse:
        return _refused(options, TROUBLE, misuse.fact, misuse.fix)
    except _ERRORS as error:
        return _refused(options, options.unreadable, _told(error), fix_of(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fact = getattr(error, "fact", None) or f"{where}{reason_of(error)}"
        return _refused(options, options.unreadable, fact, fix_of(error))
    if options.json or answer.text:
        _write(_json(answer.data) if options.json else answer.text)
    return answer.code


def _told(error: Exception) -> str:
    """An error's message with the operands, but without the line of the call, which is ours."""
    if not hasattr(error, "fact"):
        return fact_of(error)
    lines = str(error).split("\n")
    return "\n".join(line for line in lines if not line.startswith(("  at ", "  fix: ")))


def _refused(options: argparse.Namespace, code: int, fact: str, fix: str) -> int:
    """Reports an error to people and, with --json, to programs."""
    lines = [f"tracegraph {options.command}: {fact}", *([f"  fix: {fix}"] if fix else [])]
    _complain("\n".join(map(_printable_line, "\n".join(lines).split("\n"))))
    if options.json:
        known = (
            {"path": str(options.path), **options.unread} if code == NO and options.unread else {}
        )
        _write(_json({**known, "error": fact, "fix": fix}))
    return code


def _printable_line(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return f"{indent}{printable(line.strip())}"


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1)


def _write(text: str) -> None:
    """Prints what the output's encoding can hold. Raises _Unwritten if nothing can be written; a
    reader who went away, as behind `| head`, has read enough."""
    if sys.stdout is None:
        raise _Unwritten("it is closed")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        _let_go(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise _Unwritten(reason_of(error)) from None


def _complain(text: str) -> None:
    """Prints to standard error, if it can be written."""
    if sys.stderr is None:  # `print` would use standard output instead
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _let_go(sys.stderr)


def _let_go(stream: TextIO) -> None:
    """Discards what a stream still buffers: Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# Options.


def _parser() -> argparse.ArgumentParser:
    parser = _ArgumentParser(
        prog="tracegraph",
        description="Looks at saved graphs, runs and compares them, and checks them.",
        epilog="""examples:
  tracegraph show model                       what is there
  tracegraph show model --entry train_step    one graph, as text
  tracegraph run model --entry predict --inputs x=x.npy --outdir results
  tracegraph verify model

`tracegraph COMMAND --help` has the options of a command, and more examples.

"""
        + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show program's version number and exit"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(unread={}, unreadable=NO)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (_add_show, _add_run, _add_diff, _add_verify, _add_export, _add_launch):
        add(commands)
    return parser


def _command(
    commands: Any, run: Callable[[argparse.Namespace], Answer], *texts: str
) -> argparse.ArgumentParser:
    """A command: its name, what it does in a word and in a sentence, and examples."""
    name, help, description, examples = texts
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=f"examples:\n{examples}\n{_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option after the command; if absent, the option before the command counts."""
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON, for programs"
    )


def _add_show(commands: Any) -> None:
    parser = _command(
        commands,
        show,
        "show",
        "what a path holds, or graphs of it",
        "Lists functions, Variables, signatures, custom gradients and files; or shows one graph,\n"
        "or, with --format alone, all of them.",
        """  tracegraph show model
  tracegraph show model --entry encoder/__call__
  tracegraph show model --entry train_step --format summary
  tracegraph show model --entry train_step --format html --output step.html
  tracegraph show model --format html --output model.html
  tracegraph show model --entry train_step --part backward
  tracegraph show model --entry train_step --format dot | dot -Tsvg > step.svg
  tracegraph show graph.txt --format mermaid
""",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help=_PATH)
    parser.add_argument("--entry", metavar="NAME", help=f"the graph to show, or graphs: {_ENTRY}")
    parser.add_argument("--format", choices=tuple(FORMATS), help="of the graphs; default: text")
    parser.add_argument(
        "--part", choices=tuple(PARTS), help="what is before a gradient, or from there on"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the graphs to a file")
    _add_json(parser)


def _add_run(commands: Any) -> None:
    parser = _command(
        commands,
        run,
        "run",
        "run a function on arrays and numbers",
        "Runs one function and writes each result as a .npy file. The saved model stays as it is.\n"
        "What .npy files lack, such as bfloat16, is float32 there (small integers: int8), which\n"
        "holds each value exactly; inputs are read from such files again.",
        """  tracegraph run model --entry predict --inputs images=digits.npy --outdir results
  tracegraph run model --entry scale --inputs x=[1.5,2] factor=3
  tracegraph run model --entry __call__ --inputs x=x.npy training=False --json
""",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help=_PATH)
    parser.add_argument("--entry", metavar="NAME", help=f"the function: {_ENTRY}")
    parser.add_argument(
        "--inputs",
        metavar="NAME=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="a file.npy, a number, or nested lists of numbers, for each argument",
    )
    parser.add_argument("--outdir", metavar="DIR", type=Path, help="the folder for the results")
    _add_json(parser)


def _add_diff(commands: Any) -> None:
    parser = _command(
        commands,
        compare,
        "diff",
        "what differs between two graphs or saved models",
        "Compares graphs by what they compute: numbers of nodes, lines and names do not count.\n"
        "Two saved models are compared in all their entries and Variables.",
        """  tracegraph diff before after
  tracegraph diff before after --entry train_step
  tracegraph diff model model --entry encoder/__call__ --entry decoder/__call__
  tracegraph diff expected.txt graph.txt
""",
    )
    parser.add_argument("before", metavar="A", type=Path, help=_PATH)
    parser.add_argument("after", metavar="B", type=Path, help="what to compare it with")
    parser.add_argument(
        "--entry",
        metavar="NAME",
        action="append",
        help="compare this graph alone; given twice, the one of A with the other of B",
    )
    parser.add_argument(
        "--no-values", action="store_true", help="let the values of Variables differ"
    )
    parser.set_defaults(unreadable=TROUBLE)  # 1 means that both were read, and differ
    _add_json(parser)


def _add_verify(commands: Any) -> None:
    parser = _command(
        commands,
        verify,
        "verify",
        "check files, graphs and derivatives",
        "Compares every file and tensor with its checksum, infers all types anew, and tests the\n"
        "derivatives of each graph: <Jv, w> by forward mode must be <v, J'w> by reverse mode, at\n"
        "random arguments, with small numbers for open sizes. A custom gradient that is not\n"
        "linear, such as one that clips, is run, and the rest of the graph is tested without it.",
        """  tracegraph verify model
  tracegraph verify model --entry train_step
  tracegraph verify model --json > report.json
""",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help=_PATH)
    parser.add_argument("--entry", metavar="NAME", help=f"check only this graph: {_ENTRY}")
    parser.set_defaults(unread=UNREAD)
    _add_json(parser)


def _add_export(commands: Any) -> None:
    parser = _command(
        commands,
        export,
        "export",
        "write a function as a program for others",
        "Writes one function as StableHLO, which JAX and other compilers read.",
        """  tracegraph export model
  tracegraph export model --entry predict --output predict.stablehlo
  tracegraph export model --entry loss --gradient --platforms cpu --output loss.stablehlo
""",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help=_PATH)
    parser.add_argument(
        "--entry",
        metavar="NAME",
        help=f"the function; default: the only signature or the only function; {_ENTRY}",
    )
    parser.add_argument(
        "--format", choices=("stablehlo",), default="stablehlo", help="default: stablehlo"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the file to write; default: that of the entry's name, here",
    )
    parser.add_argument("--gradient", action="store_true", help="with the gradients of arguments")
    parser.add_argument("--platforms", metavar="LIST", default="cpu,cuda", help="default: cpu,cuda")
    _add_json(parser)


def _add_launch(commands: Any) -> None:
    parser = _command(
        commands,
        launch,
        "launch",
        "start several processes of one script or module, here",
        "Starts processes that tg.distribute.initialize() joins, on this machine. Each line that\n"
        "they print begins with the number of its process. Signals go on to all of them. When one\n"
        "fails the others are ended, and its exit code is that of the command.",
        """  tracegraph launch -n 2 train.py --steps 100
  tracegraph launch -n 2 --devices 4 train.py
  tracegraph launch -n 2 -m package.train --steps 100
""",
    )
    parser.add_argument("-n", "--processes", metavar="N", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--devices", metavar="N", type=int, help="CPU devices of each process, without hardware"
    )
    parser.add_argument(
        "-m",
        "--module",
        action="store_true",
        dest="is_module",
        help="SCRIPT is the name of a module, as for python -m",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python script")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
