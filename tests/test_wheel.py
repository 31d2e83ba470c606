"""What is installed claims two names, and stands in the way of no folder of its user's."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USERS = {
    "experiments/train.py": """
import search
import treespec
from treespec.experiments.config.files import shipped
from treespec.search import optimal_tree

print(search.OWN, treespec.__file__, len(shipped()), optimal_tree([0.6, 0.2], 4).parents)
""",
    "search.py": "OWN = 'mine'\n",
    "tests/test_own.py": """
import search
from experiments import train

def test_own():
    assert search.OWN == "mine"
""",
}
"""A project with names that ours has, too; `experiments` has no `__init__.py`."""


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def built(kind: str, source: Path, out: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", out, cwd=source)
    return next(out.iterdir())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, as an index has it."""
    folder = tmp_path_factory.mktemp("built")
    with tarfile.open(built("sdist", ROOT, folder / "sdist")) as archive:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since 3.11.4
        archive.extractall(folder / "source", **safe)
    return built("wheel", next((folder / "source").iterdir()), folder / "wheel")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in USERS.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def test_the_wheel_of_the_sdist_holds_what_git_holds(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"treespec", "attention_masks"}
    tracked = run(
        "git", "ls-files", "treespec", "attention_masks", "search", "experiments", cwd=ROOT
    )
    links = ("treespec/search", "treespec/experiments")
    research = "experiments/research/"  # for a checkout
    assert not any(name.startswith(f"treespec/{research}") for name in names)
    for name in set(tracked.splitlines()) - set(links):
        if name.startswith(research):
            continue
        top = name.split("/")[0]
        assert (f"treespec/{name}" if top in ("search", "experiments") else name) in names


def test_a_project_with_names_of_ours_and_the_installed_wheel_both_run(
    wheel: Path, project: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install = ("install", "--quiet", "--no-deps", "--target", site, wheel)
    run(sys.executable, "-m", "pip", *install, cwd=tmp_path)
    said = run(sys.executable, "-m", "experiments.train", cwd=project, path=site)
    assert said.startswith(f"mine {site}")
    assert "1 passed" in run(sys.executable, "-m", "pytest", "-q", cwd=project, path=site)
    command = (sys.executable, "-m", "treespec.experiments.cli")
    assert "smoke" in run(*command, "configs", cwd=project, path=site)
    assert "tokens" in run(*command, "search", "0.6,0.2", "--size", "4", cwd=project, path=site)


def test_the_editable_install_brings_back_no_old_name(project: Path) -> None:
    assert run(sys.executable, "-m", "experiments.train", cwd=project).startswith("mine ")
    code = "import importlib.util as u; print([u.find_spec(n) for n in ('search', 'experiments')])"
    assert run(sys.executable, "-c", code, cwd=project.parent).strip() == "[None, None]"
