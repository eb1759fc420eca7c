"""No circle among the modules of the package, its linked folders included, and no name that hides a module."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from tests.contract.repository import PACKAGES, ROOT, in_the_package, sources


def texts() -> dict[str, str]:
    """The source of each module, by its name in the package; a package stands for its ``__init__``."""
    paths = [path for path in sources(*PACKAGES) if "migrations" not in path.parts]
    return {
        ".".join(in_the_package(path).with_suffix("").parts).removesuffix(".__init__"): (ROOT / path).read_text("utf-8")
        for path in paths
    }


def named_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every import of the file and the name it binds, in functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, alias.asname or "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names)


def module_of(name: str, modules: Mapping[str, str]) -> str:
    """The module that an imported name is, or stands in; empty if it is not one of these."""
    while name not in modules and name:
        name = name.rpartition(".")[0]
    return name


def find_circle(modules: Mapping[str, str]) -> list[str]:
    """The modules of one circle of imports in their order, the first one again at the end; empty if there is none."""
    imported = {
        name: {module_of(given, modules) for given, _ in named_in(ast.parse(text))} - {name, ""}
        for name, text in modules.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def hidden_modules(text: str, modules: Mapping[str, str]) -> set[str]:
    """The modules that a file imports and that a class in it hides behind an attribute of the same name."""
    tree = ast.parse(text)
    bound = {name for given, name in named_in(tree) if given in modules and name}
    return bound & {
        name.id
        for held in ast.walk(tree)
        if isinstance(held, ast.ClassDef)
        for statement in held.body
        if isinstance(statement, ast.Assign)
        for name in statement.targets
        if isinstance(name, ast.Name)
    }


def test_no_module_imports_itself_through_others() -> None:
    """Each circle is a name in the wrong file, also where the import waits in a function or is for type checkers."""
    modules = texts()
    assert {"perdure.activities.models.attempt", "perdure.worker.app", "perdure.store.store"} <= set(modules)
    assert find_circle(modules) == []


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    modules = {
        "perdure.a": "def f() -> None:\n    from perdure import b\n",
        "perdure.b": "if TYPE_CHECKING:\n    from perdure.activities.c import name\n",
        "perdure.activities.c": "import perdure.a",
    }
    assert find_circle(modules) in (
        ["perdure.a", "perdure.b", "perdure.activities.c", "perdure.a"],
        ["perdure.b", "perdure.activities.c", "perdure.a", "perdure.b"],
        ["perdure.activities.c", "perdure.a", "perdure.b", "perdure.activities.c"],
    )
    assert find_circle({**modules, "perdure.activities.c": "import perdure.d"}) == []


def test_no_class_hides_a_module_of_its_file() -> None:
    modules = texts()
    planted = "from perdure.store import steps\nclass Store:\n    steps = reads(steps.steps)\n"
    assert hidden_modules(planted, modules) == {"steps"}
    assert not {name: hidden for name, text in modules.items() if (hidden := hidden_modules(text, modules))}
