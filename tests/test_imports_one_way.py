"""Imports inside the package go one way, core <- transforms <- distributed <- nn, in no circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "nuvec"

# A room may import from itself and from the rooms listed. A file at the top of the package
# (nuvec/random.py and the like) counts as all the rooms it imports from; `nuvec/__init__.py`
# alone sees everything, and so is imported by none.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "transforms": {"core"},
    "distributed": {"core", "transforms"},
    "nn": {"core", "transforms", "distributed"},
    "testing": {"core", "transforms", "distributed"},
}


@cache
def modules() -> dict[str, Path]:
    """The package's modules by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, everywhere: bool) -> Iterator[tuple[str, int]]:
    """What a module imports of the package, with line numbers: at its top only, or `everywhere`
    (inside functions and for type checkers too)."""
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _statements(ast.parse(path.read_text(encoding="utf-8")), everywhere):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _known(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield from _known(whole if whole in modules() else base, node.lineno)


def _statements(tree: ast.AST, everywhere: bool) -> Iterator[ast.AST]:
    if everywhere:
        yield from ast.walk(tree)
        return
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _statements(node, everywhere)


def _known(name: str, line: int) -> Iterator[tuple[str, int]]:
    if name == "nuvec" or name.startswith("nuvec."):
        yield name, line


def room(name: str) -> str | None:
    """The sub-package of a module; None for the files at the top of the package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else None


def rooms(name: str) -> set[str]:
    """The rooms that importing a module brings in: its own, or those of a file at the top."""
    own = room(name)
    if own is not None:
        return {own}
    return {r for imported, _ in imports(name, everywhere=True) if (r := room(imported))}


def test_every_room_is_known() -> None:
    folders = {p.parent.name for p in PACKAGE.glob("*/*.py")}
    assert folders <= set(MAY_IMPORT)


def test_imports_go_one_way() -> None:
    wrong = []
    for name in modules():
        own = room(name)
        if own is None:
            continue
        for imported, line in imports(name, everywhere=True):
            if imported == "nuvec" or not rooms(imported) <= MAY_IMPORT[own] | {own}:
                wrong.append(f"{modules()[name].relative_to(PACKAGE.parent)}:{line}: {imported}")
    assert not wrong, "imports against the direction:\n" + "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        name: {imported for imported, _ in imports(name, everywhere=False)} & set(modules())
        for name in modules()
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for imported in sorted(graph[name] - {name}):
            visit(imported, (*path, name))
        done.add(name)

    for name in modules():
        visit(name, ())


def test_the_check_reads_relative_and_local_imports() -> None:
    tree = ast.parse("def f():\n    from nuvec import nn\nif TYPE_CHECKING:\n    import nuvec.x\n")
    kinds = ast.Import | ast.ImportFrom
    assert len([n for n in _statements(tree, True) if isinstance(n, kinds)]) == 2
    assert [n for n in _statements(tree, False) if isinstance(n, kinds)] == []
