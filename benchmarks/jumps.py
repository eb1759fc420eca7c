"""``python -m benchmarks.jumps``: private functions that are read at one place only, by package.

A *private function* is a function or method whose name begins with one underscore. A *reference* is a use of that name,
alone or behind a dot, in the module of the function, or in another module of the tree that imports it or names the
attribute; a function's use of itself is none. A function with one reference is a jump: a reader leaves the story for it
and comes back. Some name a thought, and are worth the way; ``--list`` prints them all, the shortest first.

The script reads text and imports nothing of perdure, so that it counts any tree: ``--root PATH`` of another library.
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("perdure", "activities", "workflows", "worker")
Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the tree, with its place and the number of its references."""

    package: str
    place: str
    name: str
    lines: int
    references: int

    @property
    def is_private(self) -> bool:
        """Whether the name begins with one underscore."""
        return self.name.startswith("_") and not self.name.startswith("__")


def names_in(node: ast.AST) -> Iterator[str]:
    """The names and attributes that a piece of code uses."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            yield each.attr


def definitions_in(tree: ast.Module) -> Iterator[Definition]:
    """The functions and methods of a module, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def files_of(root: Path) -> dict[Path, str]:
    """The Python files below a root, each with its package: two levels for perdure's own parts, one for others."""
    tops = [root / name for name in PRODUCT] if (root / "perdure").is_dir() else [root]
    found: dict[Path, str] = {}
    for top in tops:
        for path in sorted(top.rglob("*.py")):
            parts = path.relative_to(root).parent.parts
            if path.resolve() == path:
                found[path] = "/".join(parts[: 2 if parts[:1] == ("perdure",) else 1]) or top.name
    return found


def functions_of(root: Path) -> list[Function]:
    """The functions of a tree with their references."""
    files = files_of(root)
    trees = {path: ast.parse(path.read_text("utf-8")) for path in files}
    uses = {path: Counter(names_in(tree)) for path, tree in trees.items()}
    imported = defaultdict[str, set[Path]](set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    imported[alias.name].add(path)
    functions: list[Function] = []
    for path, tree in trees.items():
        for node in definitions_in(tree):
            own = sum(name == node.name for statement in node.body for name in names_in(statement))
            others = sum(uses[other][node.name] for other in imported[node.name] if other != path)
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions.append(
                Function(
                    files[path],
                    f"{path.relative_to(root)}:{node.lineno}",
                    node.name,
                    (node.end_lineno or node.lineno) - first + 1,
                    uses[path][node.name] - own + others,
                )
            )
    return functions


def at(lengths: list[int], share: float) -> int:
    """The length that a share of the functions does not exceed."""
    return sorted(lengths)[min(len(lengths) - 1, int(len(lengths) * share))] if lengths else 0


def row(title: str, functions: list[Function]) -> str:
    """The figures of one package."""
    private = [function for function in functions if function.is_private]
    jumps = [function for function in private if function.references == 1]
    share = f"{100 * len(jumps) / len(private):.0f} %" if private else ""
    lengths = [function.lines for function in functions]
    return (
        f"{title:24}{len(functions):10}{len(private):9}{len(jumps):7}{share:>7}"
        f"{at(lengths, 0.5):7}{at(lengths, 0.95):6}{max(lengths, default=0):9}"
    )


def table(functions: list[Function]) -> str:
    """The figures by package, and of the tree."""
    packages = defaultdict[str, list[Function]](list)
    for function in functions:
        packages[function.package].append(function)
    lines = ["package                  functions  private  jumps  share    p50   p95  longest"]
    lines += [row(package, packages[package]) for package in sorted(packages)]
    return "\n".join([*lines, row("all", functions)])


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to count; without it, perdure's own")
    parser.add_argument("--list", metavar="PACKAGE", help="print the jumps of this package, the shortest first")
    given = parser.parse_args()
    functions = functions_of(given.root.resolve())
    if not functions:
        parser.error(f"--root: no Python functions are below {given.root}")
    packages = sorted({one.package for one in functions})
    if given.list and given.list not in packages:
        parser.error(f"--list: no package {given.list!r}; there are {', '.join(packages)}")
    sys.stdout.write(table(functions) + "\n")
    if given.list:
        jumps = [one for one in functions if one.package == given.list and one.is_private and one.references == 1]
        for one in sorted(jumps, key=lambda one: one.lines):
            sys.stdout.write(f"{one.lines:4}  {one.place}  {one.name}\n")


if __name__ == "__main__":
    main()
