"""Who imports whom, read from the sources, and what an import or a training run loads, seen from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import adaptive_rec

PACKAGE = Path(adaptive_rec.__file__).parent

LAYERS: list[set[str]] = [
    {
        "__main__",
        "cli",
        "commands",
        "run",
        "report",
        "profile",
        "compare",
        "simulate",
        "config_reference",
        "doctor",
        "live.sidecar",
        "machine_facts",
        "modules",
        "planning",
        "integrations",
    },
    {"assemble"},
    {
        "runtime",
        "session",
        "phases",
        "live.control",
        "live.checkpoints",
        "live.publish",
        "live.description",
        "live.snapshot",
        "live.journal",
        "window",
        "observe",
        "evaluate",
        "finite",
        "guard",
        "memory_plan",
        "memory_rows",
        "memory_dense",
        "memory_parts",
        "checkpoint",
    },
    {
        "pipeline",
        "reclassify",
        "listed_rows",
        "known_policies",
        "stream",
        "dense",
        "replayed_dense",
        "splitting",
        "tally",
    },
    {"embedding", "tracking", "models", "data", "policy"},
    {"classify", "arrange"},
    {"batch", "micro_batch", "placement", "live.mailbox", "telemetry", "metrics", "tracker", "trackers"},
    {"config"},
    {"config_run", "config_checkpoint", "config_data", "config_model", "config_policy"},
    {"kernels", "knobs", "saved", "live", "beside", "durable", "host_memory", "run_directory", "openmp", "processor", "plugins"},
    {"errors", "sizes"},
]
"""From the top down: a module imports from lower layers and its own, in circles never."""

BESIDE: dict[str, set[str]] = {
    "policies": {
        "policies",
        "policy",
        "placement",
        "tracking",
        "kernels",
        "knobs",
        "errors",
        "batch",
        "arrange",
        "config_policy",
        "saved",
    },
    "service": {"service", "telemetry", "knobs", "live.shared_state", "errors", "kernels.reference_sketch"},
}
"""What stands beside the layers, and all it may import; the layers import it by name only, never in their text."""

SERVICE_LIBRARIES = {"fastapi", "starlette", "uvicorn"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """(dotted name within the package, syntax tree) of every source file, links followed."""
    for folder in [PACKAGE, *(p for p in PACKAGE.iterdir() if p.is_dir() and p.name not in {"__pycache__", "configs"})]:
        for path in sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py")):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(), str(path))


SOURCES = dict(sources())


def imports(tree: ast.AST, in_functions: bool = True) -> Iterator[str]:
    """Every imported name, those inside functions too unless told; what stands under `if TYPE_CHECKING:` is left out."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef) and not in_functions:
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for part in child.orelse:
                yield from imports(part, in_functions)
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports(child, in_functions)


def own_imports(tree: ast.AST, in_functions: bool = True) -> set[str]:
    """Modules of the package that are imported, as dotted names within it."""
    found = set()
    for name in imports(tree, in_functions):
        if name.startswith("adaptive_rec."):
            inner = name.removeprefix("adaptive_rec.")
            found.add(inner if inner in SOURCES else inner.rpartition(".")[0])
    return found - {""}


def layer(module: str) -> int | None:
    """The layer of a module's own entry, else that of its room."""
    for named in (module, module.split(".")[0]):
        for level, rooms in enumerate(LAYERS):
            if named in rooms:
                return level
    return None


SCHEMA_TWINS = {"Event", "Quality", "Placement", "TableStats", "KnobChange"}
"""Classes whose JSON form in service/schemas.py has the same name, as the API's description shows it."""


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in SOURCES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not (module == "service.schemas" and node.name in SCHEMA_TWINS):
                places.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_module_has_its_place() -> None:
    homeless = [name for name in SOURCES if name and layer(name) is None and name.split(".")[0] not in BESIDE]
    assert not homeless
    gone = [room for rooms in LAYERS for room in rooms if room not in {*SOURCES, *(n.split(".")[0] for n in SOURCES)}]
    assert not gone


@pytest.mark.parametrize("module", [name for name in SOURCES if layer(name) is not None])
def test_imports_go_down_the_layers(module: str) -> None:
    upwards = []
    for other in own_imports(SOURCES[module]):
        level, own = layer(other), layer(module)
        if level is None or own is None or level < own:
            upwards.append(other)
    assert not upwards, f"{module} may not import {upwards}"


def test_no_module_needs_itself_to_be_imported() -> None:
    """Only imports that run on loading: `data.source` opens its sources in a function, and they import it."""
    graph = {name: own_imports(tree, in_functions=False) & set(SOURCES) for name, tree in SOURCES.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("module", [name for name in SOURCES if name.split(".")[0] in BESIDE])
def test_policies_and_service_import_no_more_than_they_may(module: str) -> None:
    allowed = BESIDE[module.split(".")[0]]
    wrong = [o for o in own_imports(SOURCES[module]) if not any(o == a or o.startswith(a + ".") for a in allowed)]
    assert not wrong


def test_only_the_service_imports_web_libraries() -> None:
    users = {name for name, tree in SOURCES.items() if {i.split(".")[0] for i in imports(tree)} & SERVICE_LIBRARIES}
    assert not {name for name in users if name.split(".")[0] != "service"}


def test_policies_touch_no_device_clock_file_or_process() -> None:
    forbidden = {"torch", "os", "io", "time", "datetime", "pathlib", "subprocess", "socket", "threading", "random"}
    for name, tree in SOURCES.items():
        if name.startswith("policies"):
            assert not {i.split(".")[0] for i in imports(tree)} & forbidden, name


def test_kernels_know_neither_torch_nor_logging() -> None:
    """But those of a device, which is known to torch alone."""
    for name, tree in SOURCES.items():
        if name.startswith("kernels"):
            known = (
                {"logging", "pydantic"}
                if name in {"kernels.cuda", "kernels.host", "kernels.record"}
                else {"torch", "logging", "pydantic"}
            )
            assert not {i.split(".")[0] for i in imports(tree)} & known, name


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_runs_text_as_code_or_through_a_shell(module: str) -> None:
    tree = SOURCES[module]
    unpickling = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code", "pty"}
    assert not {i.split(".")[0] for i in imports(tree)} & unpickling
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "compile", "os.system", "os.popen", "torch.save"}, called
            told = {(k.arg, ast.unparse(k.value)) for k in node.keywords}
            if called == "torch.load":
                assert ("weights_only", "True") in told, called
            if called in {"np.load", "numpy.load"}:
                assert ("allow_pickle", "False") in told, called
            else:
                assert not {k.arg for k in node.keywords} & {"shell", "allow_pickle", "executable"}, called
            assert called.rpartition(".")[2] not in {"recv_pyobj", "load_module", "run_path", "run_module"}, called


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = python(
        "import sys, adaptive_rec\n"
        "print([m for m in ('torch', 'numba', 'fastapi', 'uvicorn', 'numpy', 'pydantic') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


TRAIN = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('fastapi', 'uvicorn', 'starlette') or name.startswith('adaptive_rec.service'):
            raise ImportError('not installed: ' + name)

sys.meta_path.insert(0, Refuse())
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.config.tree import load_config

settings = ['knobs.policy=slipstream', 'run.steps=4', 'run.device=cpu', 'run.threads=1', 'run.batch_size=8',
            'data.table_rows=[9, 5]', 'model.bottom_mlp=[2]', 'model.top_mlp=[2]', 'model.embedding_dim=2',
            'data.synthetic.samples=100']
runtime = assemble(load_config(None, {}, settings))
events = list(runtime.run())
print(runtime.step_number, [m for m in sys.modules if m.split('.')[0] in ('fastapi', 'uvicorn', 'starlette')])
try:
    import fastapi
except ImportError:
    print('refused')
"""


def test_training_needs_no_web_library() -> None:
    done = python(TRAIN)
    assert done.stdout.split("\n")[:2] == ["4 []", "refused"], done.stdout + done.stderr
