"""Rules of the machine that can be taken out, one at a time, to see that the search would notice.

A rule is named by an expression in the source of a kernel and by what stands there without it. All of them are put into
one copy of the kernels, each behind a test of ``link["removed_rule"]``, so that one compilation serves them all. An
expression that is not found is an error: the list cannot outlive the code that it is about.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ttpoe.check.search import Bounds

_ROOT = "ttpoe.check.expand"
_OWN = "ttpoe.check."


@dataclass(frozen=True)
class Removal:
    """One rule of the machine, and bounds within which its absence shows.

    Attributes
    ----------
    name, says : str
    function : str
        The kernel that has it; ``*`` for any.
    source, instead : str
        An expression, a ``return`` or an assignment of the kernel, and what stands there without the rule; names that
        end in ``_`` stand for any expression.
    bounds : Bounds
    times : int
        How often ``source`` is found; 0: any number.
    """

    name: str
    says: str
    function: str
    source: str
    instead: str
    bounds: Bounds = field(default_factory=Bounds)
    times: int = 1


_BOTH = Bounds(submits=(1, 1), closes=(1, 1))
_FULL = Bounds(submits=(2, 0), reader_bytes=(0, 1), losses=0)

REMOVALS = (
    Removal("open-replay", "the timer sends OPEN again", "on_timeout",
            "return send_open(link, now_ps, out, n_out)", "return n_out"),
    Removal("open-duplicate", "an OPEN with an id used before is a duplicate", "receive_open",
            'not is_repeated_open(link, seq)', "True"),
    Removal("open-restart", "an OPEN with any other id is a peer that began anew", "receive_open",
            'not is_repeated_open(link, seq)', "False", Bounds(crashes=1, losses=0)),
    Removal("passing-ships", "an OPEN does not open an end that waits for its OPEN_ACK", "receive_open",
            "int(RECEIVED[_OPEN, state, 1])", "int(RECEIVED[_OPEN_ACK, _S_OPEN_SENT, 1])",
            Bounds(opens=(1, 1), submits=(1, 1), closes=(1, 1))),
    Removal("open-ack-id", "an OPEN_ACK must name our OPEN", "receive_open_ack",
            'frame["rx_seq"] != seq_add(link["tx_una"], -1)', "False",
            Bounds(submits=(0, 1), closes=(0, 0), crashes=1, losses=0)),
    Removal("ended-stays", "an ended link answers OPEN with OPEN_NACK", "receive_open",
            'link["has_ended"] != 0', "False", Bounds(submits=(0, 0), closes=(1, 0), losses=0, duplicates=1)),
    Removal("nolink-proof", "NACK_NOLINK is believed only once the peer was known to be open", "receive_nack_nolink",
            'A_ and B_ and C_["end_byte"] > link["proven_at_byte"]', "A_ and B_", Bounds(submits=(0, 1))),
    Removal("serial-compare", "ids are compared as serial numbers that wrap", "*",
            "seq_diff(X_, Y_)", "X_ - Y_", Bounds(losses=0), times=0),
    Removal("in-order", "only the next id is delivered", "receive_payload",
            'distance > 1 or closing_unanswered or frame["payload_bytes"] == 0',
            'closing_unanswered or frame["payload_bytes"] == 0'),
    Removal("duplicate-ack", "a PAYLOAD that was delivered already is acknowledged again", "receive_payload",
            "return send(link, _ACK, 0, seq, out, n_out)", "return n_out"),
    Removal("stale-ack", "an ACK of what was acknowledged before changes nothing", "receive_ack",
            'seq_diff(seq, link["tx_una"]) < 0', "False", Bounds(duplicates=1, losses=0)),
    Removal("window", "no more is cut than the window has room for", "next_payload_bytes",
            "length > window_room_bytes(link, pool, params) or length > flight_room_bytes(link)",
            "length > flight_room_bytes(link)", Bounds(submits=(3, 0), losses=0)),
    Removal("timer-starts", "the first PAYLOAD in flight starts the timer", "poll_payload",
            'link["timer_at_ps"] == NEVER', "False"),
    Removal("resend", "the timer has everything unacknowledged sent again", "on_timeout", "go_back(link)", "0"),
    Removal("retry-limit", "past the retry limit the link ends and the owner is told", "on_timeout",
            "back_off(link, params) != 0", "back_off(link, params) < 0", Bounds(submits=(1, 0), crashes=1)),
    Removal("full-asks", "a timer asks a full peer again", "hold",
            'now_ps + link["full_wait_ps"]', "NEVER", _FULL),
    Removal("full-is-alive", "asking a full peer again is no retry, and lets the oldest id go out", "on_timeout",
            'link["peer_room_bytes"] == 0', "False", _FULL),
    Removal("empty-takes-any", "an empty buffer takes any payload", "receive_payload",
            'link["rx_bytes"] != link["rx_read_bytes"]', "True",
            Bounds(submits=(1, 0), submit_bytes=2, mtu_bytes=2, reader_bytes=(0, 1), losses=0)),
    Removal("close-after-data", "CLOSE waits until all that was submitted is acknowledged", "close_if_idle",
            'A_ and B_ and (link["acked_bytes"] == link["submitted_bytes"] or C_)', "A_ and B_"),
    Removal("close-nack", "CLOSE is refused while ids are unacknowledged", "receive_close",
            'link["tx_una"] != link["tx_max"]', "False", _BOTH),
    Removal("close-again", "CLOSE goes out again when the last id that the peer promised has come", "receive_payload",
            'link["rx_closing_seq"] == seq', "False", Bounds(submits=(0, 1), closes=(1, 0), losses=0)),
    Removal("close-nack-late", "a CLOSE_NACK that comes after its data has CLOSE sent again", "receive_close_nack",
            'seq_diff(link["rx_seq"], frame["tx_seq"]) >= 0', "False",
            Bounds(submits=(0, 1), closes=(1, 0), losses=1, duplicates=1)),
    Removal("close-recd-timer", "an end that was asked to close waits with a timer", "_react",
            'link["state"] != _S_OPEN and link["timer_at_ps"] == NEVER', "False", _BOTH),
    Removal("close-crossing", "two CLOSE that cross are both acknowledged", "receive_close",
            "ahead == 0 or ahead == 1", "False", Bounds(submits=(0, 0), closes=(1, 1), losses=0)),
    Removal("close-answered", "an end that has closed still answers CLOSE", "_react",
            'n_out = send(link, _CLOSE_ACK, 0, frame["tx_seq"], out, n_out)', "n_out"),
    Removal("close-replay", "the timer sends CLOSE again", "on_timeout",
            "return send_close(link, now_ps, out, n_out)", "return n_out"),
    Removal("unsent-is-told", "an owner whose bytes were not acknowledged is told so", "end",
            'failure == 0 and link["acked_bytes"] != link["submitted_bytes"]', "False", _BOTH),
)  # fmt: skip
"""In the order of an exchange. ``link["removed_rule"]`` is a rule's place here, from 1."""


def _matches(pattern: Any, node: Any, bound: dict[str, ast.expr]) -> bool:
    """Whether two syntax trees are equal; a name that ends in ``_`` stands for any expression, and is bound to it."""
    if isinstance(pattern, ast.Name) and pattern.id.endswith("_") and isinstance(node, ast.expr):
        return ast.dump(bound.setdefault(pattern.id, node)) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.AST):
        return all(
            _matches(getattr(pattern, name, None), getattr(node, name, None), bound)
            for name in pattern._fields
            if name not in ("ctx", "kind", "type_comment")
        )
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(_matches(p, n, bound) for p, n in zip(pattern, node, strict=True))
    return bool(pattern == node)


class _Fill(ast.NodeTransformer):
    """Puts what the placeholders were bound to in their place."""

    def __init__(self, bound: dict[str, ast.expr]) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.bound.get(node.id, node)


class _Guard(ast.NodeTransformer):
    """Makes each rule of one kernel removable."""

    def __init__(self, function: str, found: Counter[str]) -> None:
        self.found = found
        self.rules = [
            (number, rule, ast.parse(rule.source).body[0], rule.instead)
            for number, rule in enumerate(REMOVALS, start=1)
            if rule.function in (function, "*")
        ]

    def visit(self, node: ast.AST) -> ast.AST:
        original = copy.deepcopy(node)
        node = self.generic_visit(node)
        for number, rule, pattern, instead in self.rules:
            bound: dict[str, ast.expr] = {}
            whole = isinstance(node, ast.Return | ast.Assign)
            wanted = pattern.value if isinstance(pattern, ast.Expr) else pattern
            if not _matches(wanted, original, bound):
                continue
            self.found[rule.name] += 1
            body = ast.parse(instead.removeprefix("return ")).body[0]
            assert isinstance(body, ast.Expr)
            kept: Any = node.value if whole else node  # type: ignore[attr-defined]
            test = ast.parse(f'link["removed_rule"] == {number}', mode="eval").body
            guarded = ast.IfExp(test, _Fill(bound).visit(body.value), kept)
            if whole:
                node.value = guarded  # type: ignore[attr-defined]
            else:
                node = guarded
        return node


def _has_kernels(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.module == "ttpoe._jit" for node in tree.body)


def _load(name: str, loaded: dict[str, ModuleType | None], found: Counter[str]) -> ModuleType | None:
    """Run a copy of a module, and of those with kernels that it imports, with removable rules; None if it has none."""
    if name in loaded:
        return loaded[name]
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    loaded[name] = None
    if not _has_kernels(tree):
        return None
    module = ModuleType(f"{name}_with_removable_rules")
    body = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ttpoe."):
            copy = _load(node.module, loaded, found) if node.module != "ttpoe._jit" else None
            if copy is not None:
                vars(module).update({alias.asname or alias.name: vars(copy)[alias.name] for alias in node.names})
                continue
        if isinstance(node, ast.FunctionDef) and not name.startswith(_OWN):
            _Guard(node.name, found).visit(node)
        body.append(node)
    tree.body = body
    sys.modules[module.__name__] = module  # the compile cache looks kernels up by their module
    exec(compile(ast.fix_missing_locations(tree), f"<{module.__name__}>", "exec"), vars(module))
    loaded[name] = module
    return module


@cache
def removable() -> ModuleType:
    """:mod:`ttpoe.check.expand` over kernels whose rules can be removed, by ``link["removed_rule"]``.

    Raises
    ------
    LookupError
        An expression of `REMOVALS` is not in the kernels as often as it says.
    """
    found: Counter[str] = Counter()
    module = _load(_ROOT, {}, found)
    assert module is not None
    for rule in REMOVALS:
        if found[rule.name] == 0 or rule.times not in (0, found[rule.name]):
            raise LookupError(
                f"rule {rule.name!r}: {rule.source!r} is {found[rule.name]} times in {rule.function}, not {rule.times}"
            )
    return module
