"""Lists every gate of an SGLang installation, with what is needed to read it elsewhere. Imports and starts nothing.

usage: python listing.py [FOLDER]; prints one JSON object. FOLDER is the `sglang` package, or holds it, or is a
checkout; without it, the SGLang of this Python is listed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

#: Where the package may lie below a folder that somebody names: a wheel, a checkout.
INSIDE = ("", "sglang", os.path.join("python", "sglang"))
_FLAG = re.compile(r"--[a-z][\w-]*")


def main() -> None:
    """Print what was found. Ends with a message when there is no SGLang."""
    from eaglediag_payload import gates  # type: ignore[import-not-found]
    from eaglediag_payload.preflight import commit_of  # type: ignore[import-not-found]

    package = located(sys.argv[1]) if len(sys.argv) > 1 else installed()
    found = gates.find(package)
    classes = Classes()
    print(
        json.dumps(
            {
                "release": found.release,
                "commit": commit_of(package),
                "package": package,
                "known": found.known,
                "missing": found.missing,
                "options": sorted(options(package)),
                "gates": [described(gate, package, classes) for gate in found.gates],
            }
        )
    )


def located(folder: str) -> str:
    """The package in a folder that was named."""
    for below in INSIDE:
        package = os.path.join(os.path.abspath(folder), below).rstrip(os.sep)
        if os.path.isdir(os.path.join(package, "srt")):
            return package
    sys.exit(f"{folder} holds no sglang")


def installed() -> str:
    """The package that this Python would import."""
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    for package in (spec.submodule_search_locations or ()) if spec is not None else ():
        if os.path.isdir(os.path.join(package, "srt")):
            return package
    sys.exit(f"{sys.executable} has no SGLang")


def options(package: str) -> set[str]:
    """Every launch option that the release spells out or derives from a field of its arguments."""
    found: set[str] = set()
    root = os.path.join(package, "srt")
    files = [os.path.join(root, "server_args.py")]
    for directory, folders, names in os.walk(os.path.join(root, "arg_groups")):
        folders.sort()
        files += [os.path.join(directory, name) for name in sorted(names) if name.endswith(".py")]
    for node in (node for path in files for node in ast.walk(_tree(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.fullmatch(node.value):
            found.add(node.value)
        elif isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    found.add("--" + line.target.id.replace("_", "-"))
    return found


def described(gate: Any, package: str, classes: Classes) -> dict[str, Any]:
    """One gate as JSON; `source` is its function, `attributes` what its class gives `self` elsewhere."""
    with open(gate.file, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    from eaglediag_payload.survey import Survey  # type: ignore[import-not-found]

    owner, _, name = gate.qualname.rpartition(".")
    tree = _tree(gate.file)
    function = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == name and node.lineno == gate.line
    )
    return {
        "module": gate.module,
        "qualname": gate.qualname,
        "kind": gate.kind,
        "phases": gate.phases,
        "file": os.path.relpath(gate.file, os.path.dirname(package)),
        "line": gate.line,
        "source_hash": gate.source_hash,
        "conditions": [vars(condition) for condition in gate.conditions],
        "how": gate.how,
        "known": gate.known,
        "decides": bool(Survey(function, gate.kind).decisions),
        "settles": gate.settles,
        "device": gate.device or ("cpu" if os.path.basename(gate.file).startswith("cpu_") else ""),
        "source": "\n".join(lines[gate.line - 1 : function.end_lineno]),
        "attributes": classes.attributes(gate.file, owner) if owner else {},
    }


class Classes:
    """What the classes of a file, and of the files that its bases are imported from, assign to `self`."""

    def attributes(self, file: str, name: str, depth: int = 0) -> dict[str, str]:
        """Attribute -> the expression it is assigned, where that is one and the same everywhere in the class."""
        tree = _tree(file)
        owner = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)
        if owner is None or depth > 4:
            return {}
        found: dict[str, str] = {}
        for base in owner.bases:
            if isinstance(base, ast.Name):
                found.update(self.attributes(_imported_from(tree, base.id, file), base.id, depth + 1))
        assigned: dict[str, set[str]] = {}
        for attribute, value in _assigned(owner):
            assigned.setdefault(attribute, set()).add(value)
        for attribute, values in assigned.items():
            values.discard("None")
            if len(values) == 1:
                found[attribute] = values.pop()
            else:
                found.pop(attribute, None)
        return found


def _assigned(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr, ast.unparse(value)


def _imported_from(tree: ast.AST, name: str, file: str) -> str:
    """The file that a name of a module comes from, as far as its imports say; the module's own otherwise."""
    root = file.replace(os.sep, "/").rpartition("/sglang/")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return os.path.join(root, *node.module.split(".")) + ".py"
    return file


def _tree(path: str) -> ast.Module:
    tree = _trees.get(path)
    if tree is None:
        try:
            with open(path, encoding="utf-8") as stream:
                tree = ast.parse(stream.read(), path)
        except (OSError, SyntaxError, ValueError):
            tree = ast.Module([], [])
        _trees[path] = tree
    return tree


_trees: dict[str, ast.Module] = {}

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main()
