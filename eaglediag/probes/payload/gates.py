"""Finds every gate of an SGLang release in its source, by table and by pattern, without importing anything.

A gate is a function whose falsy answer denies the graph; a caller is a function in which that answer, together with
conditions of the caller's own (is there a graph runner at all?), ends up in a local or a test.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .gate_hashes import HASHES
from .gate_table import CHECKED, Row, rows
from .survey import GATE_NAME, Decision, Survey, falsy_constant, gate_calls

#: Where gates are looked for by pattern, below sglang/srt.
FOLDERS = ("model_executor", "speculative", "hardware_backend", "layers/attention")
_WORTH_PARSING = re.compile(r"can_run|can_replay|can_cuda_graph")


@dataclass(frozen=True)
class Condition:
    """One reason a gate may say no: the expression as written, its line, and whether it denies when it is true."""

    text: str
    line: int
    denies_when: bool


@dataclass(frozen=True)
class Gate:
    """A gate or a caller found in the source.

    kind: `gate` or `caller`. how: `table` or `pattern`. `known` says that a checked release has the very same source;
    `asks` names the gates' methods that it calls. `device` is `npu` or `xpu` for a gate of those alone.
    `settles` and `condition_phases` are as in the table; `source_hash` is the sha256 of the function's source without
    comments, blank lines and indentation of the whole.
    """

    module: str
    qualname: str
    kind: str
    phases: tuple[str, ...]
    file: str
    line: int
    source_hash: str
    conditions: tuple[Condition, ...]
    how: str
    settles: bool = True
    condition_phases: tuple[str, ...] = ()
    device: str = ""
    known: bool = False
    asks: tuple[str, ...] = ()

    @property
    def phase(self) -> str:
        """The phase it is listed under: the first that it settles."""
        return self.phases[0]

    @property
    def target(self) -> str:
        """How messages name it: `model_executor.cuda_graph_runner:CudaGraphRunner.can_run`."""
        return self.module.removeprefix("sglang.srt.") + ":" + self.qualname


@dataclass(frozen=True)
class Found:
    """What a release's source holds. `missing` names the rows of the table that found nothing, and why."""

    release: str
    known: bool
    gates: tuple[Gate, ...]
    missing: tuple[tuple[str, str], ...]


def find(package: str, release: str = "") -> Found:
    """The gates of the release whose `sglang` package folder is given; `release` is read there unless given."""
    release = release or release_of(package)
    root = os.path.join(package, "srt")
    expected = {(row.file, row.qualname): row for row in rows(release)}
    gates: list[Gate] = []
    missing: list[tuple[str, str]] = []
    for file in _files(root, {file for file, _ in expected}):
        path = os.path.join(root, file)
        try:
            with open(path, encoding="utf-8") as stream:
                source = stream.read()
            tree = ast.parse(source, path) if _WORTH_PARSING.search(source) else None
        except (OSError, SyntaxError, ValueError) as error:
            missing += [(f"{file}: {name}", f"{type(error).__name__}: {error}") for at, name in expected if at == file]
            continue
        for qualname, function in _functions(tree.body if tree else [], ""):
            row = expected.pop((file, qualname), None)
            kind = row.kind if row is not None else _kind(function, file)
            if kind is not None:
                gates.append(_gate(file, qualname, function, kind, row, path, source))
    reported = {name for name, _ in missing}
    missing += [
        (f"{file}: {name}", f"not in the source of {release or 'this release'}")
        for file, name in expected
        if f"{file}: {name}" not in reported
    ]
    return Found(release, release in CHECKED, tuple(gates), tuple(missing))


def callers(gate: Gate, found: Found) -> tuple[Gate, ...]:
    """Who asks this gate: the callers, and gates, that call a method of its name in one of its phases."""
    name = gate.qualname.rpartition(".")[2]
    return tuple(
        one
        for one in found.gates
        if one is not gate and name in one.asks and (set(one.phases) | set(one.condition_phases)) & set(gate.phases)
    )


def release_of(package: str) -> str:
    """The release whose package folder is given, from its version files or the dist-info beside it; "" if unknown."""
    for name in ("_version.py", "version.py"):
        try:
            with open(os.path.join(package, name), encoding="utf-8") as stream:
                said = re.search(r"^(?:__version__|version)\b.*?[\"'](\d[^\"']*)[\"']", stream.read(), re.MULTILINE)
        except OSError:
            continue
        if said:
            return said[1]
    beside = os.path.dirname(os.path.abspath(package))
    for name in sorted(os.listdir(beside)):
        said = re.fullmatch(r"sglang-(\d.*)\.dist-info", name)
        if said:
            return said[1]
    return ""


def _files(root: str, listed: set[str]) -> list[str]:
    found = set(listed)
    for folder in FOLDERS:
        for directory, folders, names in os.walk(os.path.join(root, folder)):
            folders.sort()
            found.update(
                os.path.relpath(os.path.join(directory, name), root).replace(os.sep, "/")
                for name in names
                if name.endswith(".py")
            )
    return sorted(found)


def _functions(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{owner}{node.name}", node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _functions([*node.body, *node.orelse], owner)


def _kind(function: ast.FunctionDef, file: str) -> str | None:
    if _abstract(function):
        return None
    if file.startswith("layers/"):
        return "gate" if re.fullmatch(r"can_run_\w*cuda_graph", function.name) else None
    if GATE_NAME.fullmatch(function.name):
        return "gate"
    return "caller" if any(map(_asks_gate, Survey(function, "caller").decisions)) else None


def _asks_gate(decision: Decision) -> bool:
    return decision.kind == "unpack" or (decision.expression is not None and bool(gate_calls(decision.expression)))


def _abstract(function: ast.FunctionDef) -> bool:
    """Whether the body says nothing: a docstring, `...`, `pass` or `raise NotImplementedError`."""
    for statement in function.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if not isinstance(statement, (ast.Pass, ast.Raise)):
            return False
    return True


def _gate(
    file: str, qualname: str, function: ast.FunctionDef, kind: str, row: Row | None, path: str, source: str
) -> Gate:
    device = re.match(r"hardware_backend/(\w+)/", file)
    calls = [call.func.attr for call in gate_calls(function) if isinstance(call.func, ast.Attribute)]
    phases = row.phases if row is not None else _phases(file, qualname)
    digest = source_hash(ast.get_source_segment(source, function) or "")
    return Gate(
        module="sglang.srt." + file.removesuffix(".py").replace("/", "."),
        qualname=qualname,
        kind=kind,
        phases=phases,
        file=path,
        line=function.lineno,
        source_hash=digest,
        conditions=tuple(conditions(function, kind)),
        how="table" if row is not None else "pattern",
        settles=row.settles if row is not None else True,
        condition_phases=row.condition_phases if row is not None else phases,
        device=device[1] if device else "",
        known=digest[:12] in HASHES.get(file, {}).get(qualname, ()),
        asks=tuple(dict.fromkeys(calls)),
    )


def _phases(file: str, qualname: str) -> tuple[str, ...]:
    """The phases of a gate that no row names, from the words in its file's and its own name."""
    words = f"{file.rpartition('/')[2]} {qualname}".lower()
    for word, phase in (
        ("draft_extend", "draft_extend"), ("draftextend", "draft_extend"), ("draft", "draft"), ("verify", "verify"),
        ("prefill", "extend"), ("piecewise", "extend"), ("breakable", "extend"), ("extend", "extend"),
    ):  # fmt: skip
        if word in words:
            return (phase,)
    return ("decode", "verify", "idle")


def source_hash(source: str) -> str:
    """The sha256 of a function's source, the same in every Python: comment lines, blank lines and margin left out."""
    lines = [line.rstrip() for line in source.splitlines()]
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    margin = min((len(line) - len(line.lstrip()) for line in kept[1:]), default=0)
    return hashlib.sha256("\n".join([kept[0].strip(), *(line[margin:] for line in kept[1:])]).encode()).hexdigest()


def conditions(function: ast.FunctionDef, kind: str) -> list[Condition]:
    """What may make the function say no, taken apart as the tracer would, in the order of the source."""
    survey = Survey(function, kind)
    found: dict[tuple[str, int], Condition] = {}
    entered: set[str] = set()

    def leaf(tree: ast.expr, denies_when: bool) -> None:
        condition = Condition(ast.unparse(tree), tree.lineno, denies_when)
        found.setdefault((condition.text, condition.line), condition)

    def guards(guarded: list[tuple[ast.AST, bool]]) -> None:
        for tree, want in guarded:
            if isinstance(tree, ast.expr):
                visit(tree, want)

    def visit(tree: ast.expr, want: bool) -> None:
        """Take apart what makes `tree` come out `want`."""
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) is not want:
            for value in tree.values:
                visit(value, want)
        elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            visit(tree.operand, not want)
        elif isinstance(tree, ast.IfExp):
            for branch, taken in ((tree.body, True), (tree.orelse, False)):
                if not isinstance(branch, ast.Constant):
                    visit(branch, want)
                elif bool(branch.value) is want:
                    visit(tree.test, taken)
        elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "bool":
            visit(tree.args[0], want)
        elif isinstance(tree, ast.NamedExpr):
            visit(tree.value, want)
        elif isinstance(tree, ast.Name) and tree.id in survey.followed:
            if tree.id not in entered:
                entered.add(tree.id)
                for one in survey.assignments[tree.id]:
                    if not isinstance(one.value, ast.Constant):
                        visit(one.value, want)
                    elif bool(one.value.value) is want:
                        guards(one.guards)
        elif not isinstance(tree, ast.Constant):
            leaf(tree, want)

    for decision in survey.decisions:
        if falsy_constant(decision.expression):
            guards(decision.guards)
        elif decision.kind != "unpack" and decision.expression is not None:
            visit(decision.expression, decision.want)
    return sorted(found.values(), key=lambda condition: condition.line)
