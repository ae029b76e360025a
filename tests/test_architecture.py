"""Who imports whom, and what no module may do, read from the sources."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

import adaptive_rec
from adaptive_rec.data.prepare.recipe import recipes

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "tools"))
from structure import (
    Tree,
    circles,
    imports,
    levels,
    module_graph,
    room,
    room_graph,
    set_from_outside,
)

PACKAGE = Path(adaptive_rec.__file__).parent

LAYERS: list[set[str]] = [
    {"__main__", ""},
    {"cli"},
    {"integrations", "offline"},
    {"modules"},
    {"run"},
    {"runtime"},
    {"checkpoint", "memory"},
    {"state"},
    {"dense", "reclassify"},
    {"data", "embedding", "policy", "tracker"},
    {"classify", "tracking"},
    {"live", "placement"},
    {"batch", "config", "saved"},
    {"system"},
    {"errors", "kernels", "units"},
]
"""Rooms from the top down: a room imports from lower layers, types included, and from no other room of its own layer."""

BESIDE: dict[str, set[str]] = {
    "policies": {
        "policies",
        "policy",
        "placement",
        "tracking",
        "kernels",
        "errors",
        "batch",
        "saved",
        "config.knobs",
        "config.policy",
    },
    "recipes": {"recipes", "data", "errors", "kernels"},
    "service": {
        "service",
        "live.life",
        "live.telemetry",
        "live.shared_state",
        "live.sign_in_code",
        "checkpoint.saved_placement",
        "checkpoint.listing",
        "config.faults",
        "config.figures",
        "config.knobs",
        "config.metrics",
        "config.reference",
        "config.tree",
        "errors",
        "units",
        "kernels.sketch_numpy",
        "system.process_use",
        "system.regular_files",
        "system.strict_json",
    },
}
"""What stands beside the layers, and all it may import; the layers import it by name only, never in their text."""

SERVICE_LIBRARIES = {"fastapi", "starlette", "uvicorn"}

SOURCES = Tree(PACKAGE).sources()
MODULES = module_graph(SOURCES)


def layer(module: str) -> int | None:
    return next((level for level, rooms in enumerate(LAYERS) if room(module) in rooms), None)


def own_imports(module: str) -> set[str]:
    return MODULES[module]


def test_every_room_has_its_layer() -> None:
    rooms = {room(name) for name in SOURCES} - BESIDE.keys()
    assert rooms == set().union(*LAYERS)


SCHEMA_TWINS = {"Event", "Quality", "Placement", "TableStats", "KnobChange", "Straggler"}
"""Classes whose JSON form in a module of schemas in service/ has the same name, as the API's description shows it."""


def is_schemas(module: str) -> bool:
    return module.startswith("service.") and module.endswith("schemas")


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in SOURCES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not (is_schemas(module) and node.name in SCHEMA_TWINS):
                places.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def carries_out_a_command(node: ast.FunctionDef) -> bool:
    """Whether a function is named by the word of its command."""
    return bool(node.args.args) and ast.unparse(node.args.args[0].annotation or ast.Constant(0)).endswith("Namespace")


def test_a_public_function_name_means_one_thing() -> None:
    """But for commands, the exported model, which stands alone, kernels, which are twins for several devices, and
    the rooms beside the layers."""
    places: dict[str, list[str]] = {}
    for module, tree in SOURCES.items():
        if room(module) in {"kernels", "service", "policies", "recipes"} or module.startswith("offline.export.model"):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not carries_out_a_command(node):
                places.setdefault(node.name, []).append(module)
    del places["add_commands"]  # of each module of commands
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def upwards(module: str, own: int) -> list[str]:
    """Return what a module of a layer imports from its own layer's other rooms, or from layers above."""
    others = (other for other in own_imports(module) if room(other) != room(module))
    return [other for other in others if (level := layer(other)) is None or level <= own]


def test_imports_go_down_the_layers() -> None:
    wrong = {name: found for name in SOURCES if (own := layer(name)) is not None and (found := upwards(name, own))}
    assert not wrong, "these modules may not import these"


def test_the_rooms_of_modules_stand_on_each_other() -> None:
    """The loop knows no tensors in tiers, and neither knows what users call."""
    above = {"loop": {"tensors", "api"}, "tensors": {"api"}}
    names = {name: name.split(".")[1] for name in SOURCES if room(name) == "modules" and "." in name}
    assert {"loop", "tensors", "api"} == set(names.values())
    pairs = [(name, other) for name in names for other in MODULES[name] & names.keys()]
    assert not [pair for pair in pairs if names[pair[1]] in above.get(names[pair[0]], ())]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and for types count, but for two readers of data that are opened by name."""
    assert not circles(MODULES)
    assert not circles(room_graph(MODULES))


def test_the_figures_of_the_structure_stay_in_their_bounds() -> None:
    assert len(Tree(PACKAGE).entries) <= 33
    assert max(levels(room_graph(MODULES)).values()) <= 13
    assert len((PACKAGE.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_no_module_sets_attributes_of_another_module_s_objects() -> None:
    assert not list(set_from_outside(SOURCES))


def test_policies_recipes_and_service_import_no_more_than_they_may() -> None:
    wrong = {}
    for module in SOURCES:
        allowed = BESIDE.get(module.split(".")[0])
        if allowed is not None:
            wrong[module] = [o for o in own_imports(module) if not any(o == a or o.startswith(a + ".") for a in allowed)]
    assert len(wrong) > 30, "some modules are looked at"
    assert not {module: others for module, others in wrong.items() if others}


def test_the_package_finds_recipes_by_name_and_imports_none() -> None:
    users = {module for module, others in MODULES.items() if any(room(other) == "recipes" for other in others)}
    assert {room(user) for user in users} == {"recipes"}
    assert set(recipes()) == {"criteo", "avazu", "globo", "globo_sequence", "taobao", "movietweetings"}


def test_the_old_address_of_recipes_works_until_0_4() -> None:
    with pytest.warns(DeprecationWarning, match="is adaptive_rec.recipes now; the old name ends with 0.4"):
        old = importlib.reload(importlib.import_module("adaptive_rec.data.logs"))
    assert importlib.import_module(f"{old.__name__}.globo") is importlib.import_module("adaptive_rec.recipes.globo")


def test_only_the_service_imports_web_libraries() -> None:
    users = {name for name, tree in SOURCES.items() if {i.split(".")[0] for i in imports(tree)} & SERVICE_LIBRARIES}
    assert not {name for name in users if name.split(".")[0] != "service"}


def test_policies_touch_no_device_clock_file_or_process() -> None:
    forbidden = {"torch", "os", "io", "time", "datetime", "pathlib", "subprocess", "socket", "threading", "random"}
    for name, tree in SOURCES.items():
        if name.startswith("policies"):
            assert not {i.split(".")[0] for i in imports(tree)} & forbidden, name


OF_A_DEVICE = {f"kernels.{name}" for name in ("batch_lists", "cuda", "cuda_lists", "host", "launcher", "record")}


def test_kernels_know_neither_torch_nor_logging() -> None:
    """But those of a device, which is known to torch alone."""
    for name, tree in SOURCES.items():
        if "kernels" in name.split("."):
            known = {"logging", "pydantic"} | (set() if name in OF_A_DEVICE else {"torch"})
            assert not {i.split(".")[0] for i in imports(tree)} & known, name


UNPICKLING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "pty"}
RUNNING = {"eval", "exec", "compile", "os.system", "os.popen", "torch.save"}
LOADING = {"recv_pyobj", "load_module", "run_path", "run_module"}


def dotted_name(node: ast.expr) -> str:
    """Return a name as `os.path.join`; what is not a name before an attribute is left out."""
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_given(call: ast.Call, name: str, value: bool) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return any(isinstance(each, ast.Constant) and each.value is value for each in given)


def runs_text(tree: ast.Module) -> list[str]:
    """Return the imports and calls of a module that could run text or data as code."""
    found = sorted({i.split(".")[0] for i in imports(tree)} & UNPICKLING)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, names = dotted_name(node.func), {keyword.arg for keyword in node.keywords}
        refused = called in RUNNING or called.rpartition(".")[2] in LOADING
        if called == "torch.load":
            refused = not is_given(node, "weights_only", True)
        elif called in {"np.load", "numpy.load"}:
            refused = not is_given(node, "allow_pickle", False)
        elif names & {"shell", "allow_pickle", "executable"}:
            refused = True
        if refused:
            found.append(f"{called}, line {node.lineno}")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from yaml import load", "eval('1')", "os.system('ls')", "torch.save(1, 'x')", "torch.load('x')",
        "np.load('x')", "subprocess.run('ls', shell=True)", "socket.recv_pyobj()",
    ],
)  # fmt: skip
def test_what_runs_text_is_found(line: str) -> None:
    assert runs_text(ast.parse(line))


def test_nothing_runs_text_as_code_or_through_a_shell() -> None:
    assert not {module: found for module, tree in SOURCES.items() if (found := runs_text(tree))}
