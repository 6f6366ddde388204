"""Messages one by one: from a scenario, a CSV file, or a connection matrix (.cm) of htsim."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from emulator.quantities import STRICT, Bytes, ConfigError, Host, Picoseconds, Priority
from emulator.workloads.message import (
    MAX_MESSAGES,
    Message,
    Numbering,
    Setting,
    Workload,
    acknowledged,
    check_size,
    received,
)

Nic = Annotated[int, Field(ge=0, lt=64, strict=True)]


@dataclass(frozen=True, config=STRICT)
class FlowConfig:
    """One message."""

    src: Host
    dst: Host
    size_bytes: Bytes
    start_ps: Picoseconds = 0
    nic: Nic | None = None
    """Which NIC of both hosts, where they have several; None: that with the fewest messages, of both together."""
    priority: Priority | None = None
    """Of its data; None: the scenario's."""
    count: Annotated[int, Field(ge=1, le=MAX_MESSAGES, strict=True)] = 1
    """So many like it, at once."""


@dataclass(frozen=True, config=STRICT)
class FlowListConfig:
    """Messages one by one."""

    flows: tuple[FlowConfig, ...]
    kind: Literal["flows"] = "flows"

    def make(self, setting: Setting) -> Workload:
        """The messages."""
        check_size(sum(flow.count for flow in self.flows))
        numbering = Numbering()
        messages = []
        for k, flow in enumerate(self.flows):
            src, dst = flow.src, flow.dst
            if src == dst:
                raise ConfigError(f"workload.flows.{k}.dst: a host cannot send to itself; name another than {src}")
            messages += [
                Message(src, dst, flow.size_bytes, flow.start_ps, numbering.next(src, dst), flow.nic,
                        priority=flow.priority)
                for _ in range(flow.count)
            ]  # fmt: skip
        if not messages:
            raise ConfigError("workload.flows: there is no flow; name at least one")
        return Workload(messages)


@dataclass(frozen=True, config=STRICT)
class FileConfig:
    """Messages from a file: a connection matrix of htsim if its name ends in .cm, else CSV."""

    path: str
    """A path in a scenario file is relative to that file."""
    kind: Literal["file"] = "file"

    def make(self, setting: Setting) -> Workload:
        """Read the file; raises ConfigError naming it and the line."""
        read = _read_matrix if self.path.lower().endswith(".cm") else _read_csv
        try:
            with open(Path(self.path), encoding="utf-8", newline="") as file:
                return read(file)
        except OSError as error:
            raise ConfigError(f"workload.path: {self.path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"workload.path: {self.path}: this is not UTF-8 text") from None
        except _LineError as error:
            raise ConfigError(f"workload.path: {self.path}, {error}") from None


class _LineError(Exception):
    """What is wrong with which line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")


_TYPES: dict[str, TypeAdapter[int]] = {
    "src": TypeAdapter(Host), "dst": TypeAdapter(Host), "nic": TypeAdapter(Nic),
    "size": TypeAdapter(Bytes), "start": TypeAdapter(Picoseconds),
}  # fmt: skip


def _quantity(line: int, column: str, text: str) -> int:
    """A cell: a whole number, or text with a unit."""
    try:
        return _TYPES[column].validate_python(int(text) if text.strip().isdigit() else text.strip())
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        raise _LineError(line, f"{column}: {what} (given {text!r})") from None


def _check_pair(line: int, src: int, dst: int) -> None:
    if src == dst:
        raise _LineError(line, f"host {src} cannot send to itself; name another")


_COLUMNS = {"src": "src", "dst": "dst", "size": "size", "size_bytes": "size", "start": "start", "start_ps": "start",
            "nic": "nic", "group": "group"}  # fmt: skip


def _read_csv(file: Iterator[str]) -> Workload:
    """Columns src, dst, size and optionally start, nic, group, under a heading, in any order."""
    reader = csv.reader(file)
    heading = [name.strip().lower() for name in next(reader, [])]
    unknown = [name for name in heading if name not in _COLUMNS]
    columns = [_COLUMNS.get(name, "") for name in heading]
    missing = [name for name in ("src", "dst", "size") if name not in columns]
    if unknown or missing or len(set(columns)) != len(columns):
        wrong = f"there is no column {unknown[0]!r} to read" if unknown else f"a column {missing[0]!r} is missing" \
            if missing else "a column is named twice"  # fmt: skip
        raise _LineError(1, f"{wrong}; the heading is src,dst,size[,start][,nic][,group]")
    numbering = Numbering()
    messages = []
    for row in reader:
        line = reader.line_num
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(columns):
            raise _LineError(line, f"{len(row)} cells under {len(columns)} columns")
        cells = {name: text for name, text in zip(columns, row, strict=True) if text.strip()}
        for name in ("src", "dst", "size"):
            if name not in cells:
                raise _LineError(line, f"{name} is empty")
        numbers = {name: _quantity(line, name, text) for name, text in cells.items() if name != "group"}
        src, dst = numbers["src"], numbers["dst"]
        _check_pair(line, src, dst)
        messages.append(
            Message(src, dst, numbers["size"], numbers.get("start", 0), numbering.next(src, dst), numbers.get("nic"),
                    cells.get("group", "").strip())
        )  # fmt: skip
        check_size(len(messages))
    if not messages:
        raise _LineError(1, "no flow follows")
    return Workload(messages)


# --- htsim ------------------------------------------------------------------------------------------------------------


@plain_dataclass
class _Connection:
    line: int
    src: int
    dst: int
    size_bytes: int = 0
    start_ps: int | None = None
    trigger: int | None = None
    fires: list[tuple[int, Callable[[int], int]]] = field(default_factory=list)
    """Triggers that it activates, and at which of its ends."""


@plain_dataclass
class _Trigger:
    kind: str
    count: int = 1


_TRIGGER_KINDS = ("oneshot", "multishot", "barrier")
_UNSUPPORTED = {
    "prio": "priorities of single flows are not modelled; remove it",
    "addon": "it is not modelled; remove it",
    "failure": "failures of links are not read from here; remove it",
}


def _number(line: int, word: str, text: str | None) -> int:
    if text is None or not text.isdigit():
        raise _LineError(line, f"a whole number must follow {word!r}")
    return int(text)


def _read_connection(line: int, words: list[str]) -> _Connection:
    src, _, dst = words[0].partition("->")
    connection = _Connection(line, _quantity(line, "src", src), _quantity(line, "dst", dst))
    _check_pair(line, connection.src, connection.dst)
    rest = iter(words[1:])
    for word in rest:
        if word in _UNSUPPORTED:
            raise _LineError(line, f"{word}: {_UNSUPPORTED[word]}")
        if word not in ("id", "start", "size", "trigger", "send_done_trigger", "recv_done_trigger"):
            raise _LineError(line, f"the word {word!r} is unknown")
        text = next(rest, None)
        if word == "size":
            connection.size_bytes = _quantity(line, "size", str(_number(line, word, text)))
        elif word == "start":  # htsim reads a float of ps
            whole = (text or "").removesuffix(".0") or None
            connection.start_ps = _quantity(line, "start", str(_number(line, word, whole)))
        elif word == "trigger":
            connection.trigger = _number(line, word, text)
        elif word == "send_done_trigger":
            connection.fires.append((_number(line, word, text), acknowledged))
        elif word == "recv_done_trigger":
            connection.fires.append((_number(line, word, text), received))
        else:
            _number(line, word, text)
    if not connection.size_bytes:
        raise _LineError(line, "the connection has no size")
    if (connection.start_ps is None) == (connection.trigger is None):
        raise _LineError(line, "give the connection either a start or a trigger")
    return connection


def _read_trigger(line: int, words: list[str]) -> tuple[int, _Trigger]:
    number: int | None = None
    kind: str | None = None
    count = 1
    rest = iter(words[1:])
    for word in rest:
        if word in _TRIGGER_KINDS:
            kind = word
        elif word == "id":
            number = _number(line, word, next(rest, None))
        elif word == "count":
            count = _number(line, word, next(rest, None))
        else:
            raise _LineError(line, f"the word {word!r} is unknown")
    if number is None or kind is None:
        raise _LineError(line, "a trigger has an id, and is oneshot, multishot or barrier")
    return number, _Trigger(kind, count)


def _read_matrix(file: Iterator[str]) -> Workload:
    """htsim's connection matrix: Nodes, Connections, Triggers, then one line each.

    Source: the reader and the generators of csg-htsim, sim/datacenter/connection_matrix.cpp and trigger.cpp. Starts are
    in picoseconds. A trigger starts flows when others are done: oneshot all of its flows at the first activation,
    multishot one at each, barrier all at the activation of number ``count``.
    """
    told: dict[str, int] = {}
    connections: list[_Connection] = []
    triggers: dict[int, _Trigger] = {}
    line = 0
    for line, text in enumerate(file, 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] in ("Nodes", "Connections", "Triggers", "Failures"):
            told[words[0]] = _number(line, words[0], words[1] if len(words) > 1 else None)
        elif "->" in words[0]:
            connections.append(_read_connection(line, words))
            check_size(len(connections))
        elif words[0] == "trigger":
            number, trigger = _read_trigger(line, words)
            triggers[number] = trigger
        else:
            raise _LineError(line, f"{words[0]!r}: " + _UNSUPPORTED.get(words[0], "the line is of no known kind"))
    for name, found in (("Connections", len(connections)), ("Triggers", len(triggers)), ("Failures", 0)):
        if told.get(name, found) != found:
            raise _LineError(line, f"the head says {told[name]} {name}, and there are {found}")
    if not connections:
        raise _LineError(line, "there is no connection")
    nodes = told.get("Nodes", 0)
    for connection in connections:
        if nodes and max(connection.src, connection.dst) >= nodes:
            raise _LineError(connection.line, f"a host is beyond Nodes {nodes}")
    return Workload(_triggered(connections, triggers), nodes)


def _triggered(connections: list[_Connection], triggers: dict[int, _Trigger]) -> list[Message]:
    """Messages, with triggers turned into what each waits for."""
    fired_by: dict[int, list[int]] = {}
    for index, connection in enumerate(connections):
        for fired, end in connection.fires:
            fired_by.setdefault(fired, []).append(end(index))
    started: dict[int, int] = {}
    numbering = Numbering()
    messages = []
    for connection in connections:
        after: tuple[int, ...] = ()
        needs: int | None = None
        number = connection.trigger
        if number is not None:
            if number not in triggers:
                raise _LineError(connection.line, f"trigger {number} is not described")
            trigger = triggers[number]
            turn = started[number] = started.get(number, 0) + 1
            after = tuple(fired_by.get(number, ()))
            needs = {"oneshot": 1, "multishot": turn, "barrier": trigger.count}[trigger.kind]
            if not 1 <= needs <= len(after):
                fires = f"{len(after)} connections activate trigger {number}"
                raise _LineError(connection.line, f"{fires}, and this one waits for {needs}; it would never start")
        messages.append(
            Message(
                connection.src, connection.dst, connection.size_bytes, connection.start_ps or 0,
                numbering.next(connection.src, connection.dst), after=after, needs=needs,
            )
        )  # fmt: skip
    return messages
