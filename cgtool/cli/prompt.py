"""The prompt of ``cgtool debug -i``: pdb's commands for the nodes of a graph.

What is known of a node comes from its capture; a worker process runs nodes and evaluates.
"""

from __future__ import annotations

import cmd
import errno
import re
import select
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path

import typer
from rich.console import Group, RenderableType

from cgtool.analysis.graph.places import Places, file_line, short_op
from cgtool.analysis.graph.select import parse, selected
from cgtool.analysis.reports import quoted
from cgtool.analysis.units import count_text
from cgtool.cli.output import console
from cgtool.model.capture import Capture, Graph, Node
from cgtool.model.failure import EXIT_INTERRUPTED, EXIT_USER_CODE, CgtoolError, usage
from cgtool.model.jobs import Answer, Begin, Evaluate, Question, RunTo
from cgtool.render.node_text import NodeTexts
from cgtool.render.report_table import Findings
from cgtool.render.table import BAD, plain

_PATTERN = "node number, op, kernel, module, phase, FILE:LINE, or as in --select"
_COMMANDS = {
    "next": ("n", "[N]", "run the next node, or N nodes"),
    "until": ("unt", "PATTERN", "run to the next node that matches, which runs too"),
    "continue": ("c", "", "run to a breakpoint, or to the end"),
    "restart": ("", "", "begin again, from the state before the first replay"),
    "replay": ("", "", "begin the next replay, from what this one has left"),
    "break": ("b", "[PATTERN]", "stop after nodes that match; list all breakpoints"),
    "clear": ("cl", "[N]", "remove breakpoint N, or all"),
    "nan": ("", "on|off", "stop after the first op that gives a NaN"),
    "print": ("p", "[EXPR]", "an expression of tensors: out, in0, next.in0; their names"),
    "save": ("", "NAME [FILE]", "save a tensor for torch.load"),
    "where": ("w", "[PATTERN]", "the Python stack of the node, and of the forward op"),
    "list": ("l", "[PATTERN]", "the source around its line"),
    "info": ("i", "[PATTERN]", "kernel, launch, arguments, memory, edges, values"),
    "help": ("h", "[COMMAND]", "this list"),
    "quit": ("q", "", "end"),
}
"""By name: the short form, the arguments, what it does."""
_SHORT = {short: name for name, (short, _, _) in _COMMANDS.items() if short} | {"exit": "quit"}
_LINE = re.compile(r".+:\d+(-\d+)?")
_NAMES = ("op", "module", "kernel", "type", "phase")
"""Fields that a PATTERN without a field may match."""


class Prompt(cmd.Cmd):
    """One session."""

    def __init__(self, capture: Capture, ask: Callable[[Question], Answer]) -> None:
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        super().__init__(completekey="tab" if self._is_terminal else None)  # type: ignore[arg-type]
        self.prompt = "(cgtool) " if self._is_terminal else ""
        self._capture, self._ask = capture, ask
        self._graphs = [graph for graph in capture.graphs if graph.parent is None]
        self._starts = list(accumulate((len(each.nodes) for each in self._graphs), initial=0))
        self._texts = NodeTexts(capture)
        self._breaks: dict[int, tuple[str, list[int]]] = {}
        """By number: the pattern, and the positions."""
        self._added = 0
        self._nan = False
        self._here = Answer()
        self._code = 0

    def run(self) -> int:
        """Read commands until the end; the exit code. Raises CgtoolError."""
        counts = [f"{count_text(len(each.nodes), 'node')} of {each.name}" for each in self._graphs]
        where = " (simulated)" if self._capture.environment.simulated else ""
        self._say(f"{', '.join(counts)}{where}; help lists the commands")
        self._ask_worker(Begin())
        while True:
            try:
                self.cmdloop()
            except KeyboardInterrupt:
                if not self._is_terminal:
                    raise
                self._say("")
            except OSError as error:
                if error.errno != errno.EIO:  # the terminal was closed
                    raise
                return self._code
            else:
                return self._code

    # --- what cmd calls

    def preloop(self) -> None:
        if self._is_terminal:
            import readline

            readline.set_completer_delims(" \t\n()[],")

    def onecmd(self, line: str) -> bool:
        try:
            return super().onecmd(line)
        except CgtoolError as error:
            if error.failure.exit_code == EXIT_USER_CODE:
                raise
            failure = error.failure
            fix = f" ({failure.fix})" if failure.fix else ""
            self._fail(f"{failure.message}{fix}")
            return False

    def parseline(self, line: str) -> tuple[str | None, str | None, str]:
        word, _, rest = line.strip().partition(" ")
        return super().parseline(f"{_SHORT.get(word, word)} {rest}")

    def default(self, line: str) -> None:
        word = line.split()[0]
        close = get_close_matches(word, _COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else "help lists the commands"
        self._fail(f"there is no command {word}: {hint}")

    def postcmd(self, stop: bool, line: str) -> bool:
        sys.stdout.flush()
        reader = select.poll()
        reader.register(sys.stdout.fileno(), 0)
        return stop or bool(self._code) or bool(reader.poll(0))

    def do_help(self, arg: str) -> None:
        name = _SHORT.get(arg, arg)
        if name and name not in _COMMANDS:
            return self.default(name)
        for command, (short, arguments, text) in _COMMANDS.items():
            if name in ("", command):
                words = f"{command}{f', {short}' if short else ''} {arguments}"
                self._say(f"{words:<22} {text}")
        if not name:
            self._say(f"PATTERN: {_PATTERN}")
        return None

    def completedefault(self, text: str, line: str, begin: int, end: int) -> list[str]:
        word = line.split()[0]
        known: Iterable[str]
        match _SHORT.get(word, word):
            case "until" | "break" | "info" | "where" | "list":
                known = self._known_names()
            case "print" | "save":
                known = (*self._here.names, "torch.")
            case "nan":
                known = ("on", "off")
            case _:
                known = ()
        return sorted(name for name in known if name.startswith(text))

    def completenames(self, text: str, *_: object) -> list[str]:
        return [name for name in _COMMANDS if name.startswith(text)]

    complete_help = completenames

    # --- commands that run nodes

    def do_next(self, arg: str) -> None:
        if arg and not (arg.isdecimal() and int(arg)):
            return self._fail(f"next {arg}: not a number of nodes")
        return self._run(self._here.position + int(arg or 1))

    def do_until(self, arg: str) -> None:
        if not arg:
            return self._fail(f"until PATTERN: {_PATTERN}")
        positions = self._matching(arg)
        ahead = next((each for each in positions if each > self._here.position), None)
        if ahead is None:
            what = "the node has" if len(positions) == 1 else f"all {len(positions)} nodes have"
            return self._fail(f"{what} run in this replay: restart begins again")
        return self._run(ahead)

    def do_continue(self, _: str) -> None:
        self._run(self._starts[-1])

    def do_restart(self, _: str) -> None:
        self._ask_worker(Begin())

    def do_replay(self, _: str) -> None:
        self._ask_worker(Begin(restore=False))

    def do_break(self, arg: str) -> None:
        if arg:
            positions = self._matching(arg)
            self._added += 1
            self._breaks[self._added] = arg, positions
        elif not self._breaks:
            self._say("no breakpoints")
        for number, (pattern, positions) in self._breaks.items():
            if not arg or number == self._added:
                nodes = count_text(len(positions), "node")
                self._say(f"breakpoint {number} at {pattern}: {nodes}")

    def do_clear(self, arg: str) -> None:
        if not arg:
            self._breaks.clear()
        elif not arg.isdecimal() or self._breaks.pop(int(arg), None) is None:
            self._fail(f"there is no breakpoint {arg}")

    def do_nan(self, arg: str) -> None:
        if arg not in ("", "on", "off"):
            return self._fail("nan on, or nan off")
        self._nan = arg == "on" if arg else self._nan
        return self._say(f"nan is {'on' if self._nan else 'off'}")

    def do_quit(self, _: str) -> bool:
        return True

    def do_EOF(self, _: str) -> bool:  # noqa: N802
        if self._is_terminal:
            self._say("")
        return True

    # --- commands that show something

    def do_print(self, arg: str) -> None:
        if not arg:
            return self._say(", ".join(self._here.names) or "no tensor is known here")
        answer = self._evaluate(arg)
        if answer is not None:
            self._print(map(plain, answer.text.splitlines()))
        return None

    def do_save(self, arg: str) -> None:
        name, _, file = arg.partition(" ")
        if not name:
            return self._fail("save NAME [FILE]")
        graph, node = self._node()
        place = re.sub(r"\W+", "-", f"{graph.name} {node.id} {name}").strip("-")
        path = Path(file.strip() or f"{place}.pt")
        before = " (replaced the file that was there)" if path.exists() else ""
        if self._evaluate(name, str(path.absolute())) is not None:
            self._say(f"saved {path}{before}")
        return None

    def do_where(self, arg: str) -> None:
        self._print(self._texts.where(self._node(arg)[1]))

    def do_list(self, arg: str) -> None:
        self._print(self._texts.listing(self._node(arg)[1]))

    def do_info(self, arg: str) -> None:
        graph, node = self._node(arg)
        values = () if arg or not self._here.position else self._here.values
        self._print(self._texts.info(graph, node, values))

    # --- the parts of these

    def _ask_worker(self, question: Question) -> None:
        """Ask, and show where the replay is then."""
        try:
            answer = self._here = self._ask(question)
        except KeyboardInterrupt:
            # The second one: the node that runs does not end.
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if answer.fault is not None:
            console(stderr=False).print(Findings(quoted([answer.fault], self._capture.sources)))
            self._code = EXIT_USER_CODE
        elif not isinstance(question, Evaluate):
            self._show_stop()

    def _show_stop(self) -> None:
        answer, (graph, node) = self._here, self._node()
        if answer.because is not None:
            self._say(f"{answer.because}:")
        before, screen = "" if answer.position else "before ", console(stderr=False)
        width = None if screen.soft_wrap else screen.width
        self._print(self._texts.stop(graph, node, answer.values, before, width))
        if answer.position == self._starts[-1]:
            self._say("the replay has ended: restart begins again, replay begins the next one")

    def _run(self, position: int) -> None:
        if self._here.position == self._starts[-1]:
            return self._fail("the replay has ended: restart begins again, or replay the next one")
        stops = sorted({each for _, positions in self._breaks.values() for each in positions})
        return self._ask_worker(RunTo(min(position, self._starts[-1]), tuple(stops), self._nan))

    def _evaluate(self, expression: str, file: str | None = None) -> Answer | None:
        """None after an error, which is shown."""
        self._ask_worker(Evaluate(expression, file))
        if self._here.error is None:
            return self._here
        hint = "; print lists the names" if self._here.error.startswith("NameError") else ""
        self._fail(f"{self._here.error}{hint}")
        return None

    def _node(self, pattern: str = "") -> tuple[Graph, Node]:
        """The first node that matches; without a pattern the last one that ran, or the first."""
        position = self._matching(pattern)[0] if pattern else max(1, self._here.position)
        at = self._graph_at(position)
        return self._graphs[at], self._graphs[at].nodes[position - 1 - self._starts[at]]

    def _graph_at(self, position: int) -> int:
        return bisect_right(self._starts, max(0, position - 1)) - 1

    def _matching(self, pattern: str) -> list[int]:
        """The positions after the nodes that match, of ops after their last node; at least one.
        Raises CgtoolError (exit 2)."""
        if pattern.isdecimal():
            at = self._graph_at(self._here.position)
            if int(pattern) >= len(self._graphs[at].nodes):
                known = f"{self._graphs[at].name}, which has 0 to {len(self._graphs[at].nodes) - 1}"
                raise usage(f"there is no node {pattern} in {known}")
            return [self._starts[at] + int(pattern) + 1]
        if "=" in pattern:
            selections = [parse([pattern], where="")]
        else:
            names = ("line",) if _LINE.fullmatch(pattern) and "::" not in pattern else _NAMES
            selections = [parse([f"{name}={pattern}"], where="") for name in names]
        positions: set[int] = set()
        for graph, start in zip(self._graphs, self._starts, strict=False):
            last_of_call = {node.call: node.id for node in graph.nodes}
            for selection in selections:
                kept = selected(self._capture, graph, selection)
                by_number = any(term.field == "node" for term in selection)
                for node in (node for node in graph.nodes if kept[node.id]):
                    is_alone = by_number or node.call is None
                    last = node.id if is_alone else last_of_call[node.call]
                    positions.add(start + last + 1)
        if not positions:
            close = get_close_matches(pattern, self._known_names(), n=3)
            fix = f"did you mean {', '.join(close)}?" if close else f"PATTERN: {_PATTERN}"
            raise usage(f"no node matches {pattern}", fix=fix)
        return sorted(positions)

    def _known_names(self) -> set[str]:
        """Ops, modules and lines of all nodes."""
        places = Places(self._capture)
        known = {places.of(node) for graph in self._graphs for node in graph.nodes}
        return {
            name
            for place in known
            for name in (place.op and short_op(place.op), place.op, place.module,
                         file_line(place.line))
            if name
        }  # fmt: skip

    def _print(self, lines: Iterable[RenderableType]) -> None:
        console(stderr=False).print(Group(*lines))

    def _say(self, text: str) -> None:
        self._print([plain(text)])

    def _fail(self, text: str) -> None:
        self._print([plain(f"*** {text}", BAD)])
