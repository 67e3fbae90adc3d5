"""Private names of other libraries: each is there in what is installed, and nothing but the table spells one."""

import ast
import inspect
import re
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import memwall
from tests.unit.places import ROOT

PACKAGE = Path(memwall.__file__).parent
#: of Python's own, which has documented them
DOCUMENTED = {"_asdict", "_exit", "_fields", "_getframe", "_replace"}
LIBRARIES = r"(?:torch|triton|transformers|distributed|dask|click|pandas|matplotlib|rich|numpy|scipy|pyarrow|pynvml)"


@cache
def sources() -> dict[str, list[ast.AST]]:
    """All that the modules of the package and of the lab say, but the table itself."""
    paths = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    paths |= {str(path.relative_to(ROOT)): path for path in (ROOT / "lab/memwall_lab").rglob("*.py")}
    paths.pop("core/compat.py", None)
    return {name: [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] for name, path in paths.items()}


def last_of(node: ast.AST) -> str:
    """The last name of a dotted one: ``aten`` of ``torch.ops.aten``."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def rows() -> list[tuple[str, str]]:
    from memwall.core import compat

    return [*compat.PLACES.items(), *compat.ATTRIBUTES.items()]


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")


def names_held_by(owner: object) -> set[str]:
    """Attributes of a class and of its objects, or those that a function sets: what its text says, where it has one."""
    kinds = owner.__mro__ if isinstance(owner, type) else (owner,)
    names = set(dir(owner))
    for kind in kinds:
        names.update(getattr(kind, "__annotations__", {}), getattr(kind, "__slots__", ()))
        try:
            text = inspect.getsource(kind)
        except (OSError, TypeError):
            continue  # written in C
        names.update(re.findall(r"""(?<=\.)_\w+|(?<=["'])_\w+(?=["'])""", text))
    return names


def is_there(name: str) -> bool:
    """Whether the installed library has what a row says; one that is not installed, or of a version that is said not to
    have it, is not asked."""
    from packaging.requirements import Requirement

    from memwall.core import compat

    place = compat.PLACES.get(name) or compat.ATTRIBUTES[name]
    if find_spec(place.partition(":")[0].partition(".")[0]) is None:
        return True
    if name in compat.SOME_VERSIONS:
        needed = Requirement(compat.SOME_VERSIONS[name])
        if not needed.specifier.contains(version(needed.name).partition("+")[0]):
            return True
    if name in compat.PLACES:
        try:
            return compat.resolve(place) is not None
        except (compat.MissingError, ImportError):
            return False
    owner, _, attribute = place.removesuffix("()").rpartition(".")
    return attribute in names_held_by(compat.resolve(owner))


@pytest.mark.versions
def test_what_is_installed_has_each():
    assert [f"{name}: {place}" for name, place in rows() if not is_there(name)] == []


def test_a_name_that_is_gone_is_an_error_of_one_line():
    from memwall.core import compat
    from memwall.core.errors import MissingError

    with pytest.raises(MissingError, match=r"^torch \S+ has no torch\._C\._renamed, which memwall uses: install a ver"):
        compat.resolve("torch:_C._renamed")
    with pytest.raises(AttributeError, match="no attribute 'renamed'"):
        compat.renamed  # noqa: B018


def test_an_attribute_is_read_called_and_named():
    import torch

    from memwall.core import compat

    module = torch.nn.BatchNorm1d(2)
    assert compat.buffers(module) is vars(module)["_buffers"]
    assert compat.is_view(torch.empty(4)[:2]) is True and compat.is_view(torch.empty(4)) is False
    assert compat.name_of("buffers") == "_buffers" and compat.name_of("dynamo") == "torch._dynamo"
    assert compat.name_of("is_view") == "_is_view"


def test_each_row_is_used_and_each_use_is_a_row():
    known, used = {name for name, _ in rows()}, set()
    for nodes in sources().values():
        named = any(last_of(node) == "name_of" for node in nodes)
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "memwall.core.compat":
                used.update(alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute) and last_of(node.value) == "compat":
                used.add(node.attr)
            elif isinstance(node, ast.Call) and last_of(node.func) == "name_of":
                used.update(each.value for each in node.args if isinstance(each, ast.Constant))
            elif named and isinstance(node, ast.Constant) and node.value in known:
                used.add(node.value)  # of several that are mapped to what the library calls them
    assert used - {"name_of"} == known


@pytest.mark.defect("1")
def test_nothing_but_the_table_spells_a_private_name():
    """Private names of other libraries stood in sixty modules, so that a renamed one was found by its failure, and in
    one place of several."""
    import torch

    from memwall.core import compat

    spelled = {part for name, _ in rows() if is_private(part := compat.name_of(name).rpartition(".")[2])}
    not_operators = {name for name in spelled if not hasattr(torch.ops.aten, name)}
    own = {name for nodes in sources().values() for node in nodes for name in defined_by(node)}
    ours, found = own - spelled, []
    for path, nodes in sources().items():
        for node in nodes:
            said = None
            if isinstance(node, ast.Import):
                said = next((a.name for a in node.names if any(map(is_private, a.name.split(".")))), None)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "memwall":
                parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                said = node.module if any(map(is_private, parts)) else None
            elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in DOCUMENTED:
                of_class = isinstance(node.value, ast.Call) and last_of(node.value.func) == "super"
                base = last_of(node.value)
                if not of_class and base not in ("aten", "_ATEN", "self", "cls"):
                    said = None if node.attr in ours and base != "torch" else f"{base}.{node.attr}"
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                foreign = re.match(rf"{LIBRARIES}(\.\w+)*\._[a-z]\S*$", node.value)
                said = node.value if foreign or node.value in not_operators else None
            if said:
                found.append(f"{path}:{node.lineno}: {said}")
    assert found == []


def defined_by(node: ast.AST) -> set[str]:
    """The names that a statement gives: of functions, classes, variables, and attributes of ``self``."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    return {p.id for p in parts if isinstance(p, ast.Name)} | {p.attr for p in parts if isinstance(p, ast.Attribute)}
