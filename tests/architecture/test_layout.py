"""What holds the source tree together and no linter sees."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.environment import REPOSITORY_ROOT, child_environment

SOURCE_ROOTS = [REPOSITORY_ROOT / "platform", REPOSITORY_ROOT / "apps"]

# The typed environment reader of each process; select_settings of manage.py and its like lives in the first.
ENVIRONMENT_READERS = {
    "platform/headrace/env.py",
    "platform/headrace_launcher/environment.py",
    "platform/headrace_worker/config.py",
}
# Names that say nothing of what a module does, and other names of the modules that have a fixed one.
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "tools", "lib", "stuff", "shared"}
MISNAMED_IN_APPS = {
    *(
        "model",
        "service",
        "selector",
        "task",
        "view",
        "consumer",
        "enum",
        "error",
        "exceptions",
        "choices",
        "constants",
    ),
    *("signals", "receivers", "queries", "actions", "api_views", "url", "route", "routes"),
}


def python_files() -> Iterator[Path]:
    for root in SOURCE_ROOTS:
        yield from sorted(root.rglob("*.py"))


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        cwd=REPOSITORY_ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    return done.stdout


def test_platform_folder_never_shadows_the_standard_library() -> None:
    assert not (REPOSITORY_ROOT / "platform" / "__init__.py").exists()
    # The repository root is the first entry of sys.path here, as for `python manage.py`.
    code = "import os, platform; print(platform.system() == os.uname().sysname)"
    assert run_python(code).strip() == "True"


@pytest.mark.parametrize("module", ["headrace_worker.__main__", "headrace_wire.token_log", "headrace_launcher.up"])
def test_processes_without_django_never_load_it(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = set(ast.literal_eval(run_python(code)))
    assert loaded & {"django", "celery", "channels", "daphne", "twisted", "apps", "headrace"} == set()
    assert "vllm" not in loaded, "an engine is loaded when it starts, not when its process is imported"


def test_client_of_tenants_loads_websockets_and_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import headrace_client\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names))"
    )
    assert ast.literal_eval(run_python(code)) == ["headrace_client", "websockets"]
    assert (REPOSITORY_ROOT / "platform" / "headrace_client" / "py.typed").exists()


def test_environment_is_read_in_the_typed_readers_only() -> None:
    offenders = set()
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            reads = isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.environb", "os.getenv"}
            imports = (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and {"environ", "getenv"} & {alias.name for alias in node.names}
            )
            if reads or imports:
                offenders.add(path.relative_to(REPOSITORY_ROOT).as_posix())
    assert offenders <= ENVIRONMENT_READERS


def test_modules_are_named_after_what_they_do() -> None:
    vague = [path for path in python_files() if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]
    misnamed = [
        path
        for path in (REPOSITORY_ROOT / "apps").glob("*/*.py")
        if path.stem in MISNAMED_IN_APPS and path.parent.parent.name == "apps"
    ]
    assert vague == []
    assert misnamed == []


def test_every_folder_of_tests_mirrors_a_source() -> None:
    kinds = {"architecture", "e2e", "faults", "load", "support"}
    sources = {path.name for path in (REPOSITORY_ROOT / "apps").iterdir()}
    sources |= {path.name.removeprefix("headrace_") for path in (REPOSITORY_ROOT / "platform").iterdir()}
    sources |= {path.name for path in (REPOSITORY_ROOT / "platform" / "headrace").iterdir()}
    folders = {path.name for path in (REPOSITORY_ROOT / "tests").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= kinds | sources


def test_requirement_files_name_no_machine_and_no_registry() -> None:
    for path in (REPOSITORY_ROOT / "deploy" / "requirements").glob("*.txt"):
        text = path.read_text("utf-8")
        assert "://" not in text, f"{path.name} names an index"
        assert "file:" not in text, f"{path.name} names a file"
        if path.name == "torch-cpu.txt":
            continue
        pinned = [line for line in text.splitlines() if line[:1].isalnum()]
        assert pinned
        assert all("==" in line and line.endswith("\\") for line in pinned), f"{path.name} has an unhashed line"


def test_locked_versions_agree_where_they_share_an_environment() -> None:
    versions: dict[str, set[str]] = {}
    for name in ("gateway", "guard-models", "dev", "examples", "engine-cpu"):
        for line in (REPOSITORY_ROOT / "deploy" / "requirements" / f"{name}.txt").read_text("utf-8").splitlines():
            if line[:1].isalnum():
                package, _, version = line.removesuffix("\\").strip().partition("==")
                versions.setdefault(package, set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_wheel_holds_every_package_of_the_tree() -> None:
    project = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    there = {
        f"platform/{path.name}" for path in (REPOSITORY_ROOT / "platform").iterdir() if (path / "__init__.py").exists()
    }
    assert listed == there | {"apps"}
