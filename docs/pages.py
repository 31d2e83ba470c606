"""Write the public API, the Markdown pages and the notebooks as HTML. `make docs` runs it.

pdoc renders the modules in `PUBLIC`; a page shows exactly the names that may be imported from its module.
nbconvert renders the notebooks with their committed outputs.
"""

import ast
import inspect
import logging
import os
import re
import shutil
import sys
import warnings
from functools import cached_property
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
import pdoc.doc
from markupsafe import Markup
from nbconvert import HTMLExporter
from pdoc import render
from pdoc.render_helpers import to_html
from pygments.formatters.html import HtmlFormatter

ROOT = Path(__file__).parents[1]

PUBLIC = {
    "treespec": "Trees, sampling, the loop, and generation",
    "treespec.step": "A step, and the glossary",
    "treespec.protocols": "Interfaces of drafters, targets, rules, growths and coins",
    "treespec.verify": "Acceptance rules",
    "treespec.draft": "Draft sources",
    "treespec.target": "Targets",
    "treespec.sampling.distributions": "Sampling settings and residuals",
    "treespec.testing": "Tables, exact laws, and the proof that a rule is lossless",
    "treespec.plugins": "Registering your own parts",
    "treespec.errors": "Exceptions and warnings",
    "treespec.search": "The value of a tree, and the best tree",
    "treespec.search.growth": "Trees grown by the draft's confidence",
    "treespec.search.formats": "Trees in the formats of other tools",
    "treespec.search.traces.calibration": "The draft's probabilities against acceptance",
    "treespec.search.traces.replay": "Replaying any tree on a recorded trace",
    "treespec.experiments.measure.searched_run": "Running an experiment from Python",
    "treespec.experiments.report.run": "Loading a finished run",
    "treespec.experiments.report.stepper.widget": "Real steps in a notebook",
    "attention_masks": "Masks and attention for token trees; needs only torch",
    "attention_masks.testing": "Checking an attention implementation of your own",
}
"""The modules that have a page, in the order of the index, with a description of each."""

PAGES = {
    "README.md": "Front page",
    "docs/guide.md": "Guide",
    "docs/from-other-tools.md": "From Sequoia, EAGLE and Medusa",
    "docs/configs.md": "Every key of a config",
    "docs/plugins.md": "Plug-ins: your own parts, by name",
    "experiments/research/RESULTS.md": "Measured results",
    "experiments/SCHEMA.md": "Files in the folder of a run",
    "experiments/SWEEPS.md": "Files in the folder of a sweep",
    "treespec/embedded/MODEL_CARD.md": "The embedded pair",
    "CONTRIBUTING.md": "Contributing",
    "CHANGELOG.md": "Changes",
}
"""The Markdown pages to render, with their titles."""

DARK_CODE = "github-dark"
"""Pygments style of code for readers who prefer dark pages."""

_ARXIV = re.compile(r"\barXiv:(\d{4}\.\d{4,5})\b(?![^<]*</a>)")
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


class PublicModule(pdoc.doc.Module):
    """A module as its users see it: the names in `__all__`.

    Names that load at first use are included. A rule of `treespec.verify`, an object that wraps a function,
    is shown as that function. A type or constant from another file keeps its docstring from there.
    """

    @cached_property
    def _member_objects(self) -> dict[str, Any]:
        # modules without a page say no names of their own
        names = getattr(self.obj, "__all__", None) or [n for n in vars(self.obj) if n[0] != "_"]
        return {name: _function(getattr(self.obj, name)) for name in names}

    @cached_property
    def _var_docstrings(self) -> dict[str, str]:
        docstrings = dict(super()._var_docstrings)
        for node in ast.walk(ast.parse(inspect.getsource(self.obj))):
            if not isinstance(node, ast.ImportFrom) or node.module in (None, self.modulename):
                continue
            if not node.module.startswith(("treespec", "attention_masks")):
                continue
            names = [a.name for a in node.names if self._is_value(a.name)]
            if names:
                origin = PublicModule(import_module(str(node.module)))._var_docstrings
                docstrings = {name: origin[name] for name in names if name in origin} | docstrings
        return docstrings

    @cached_property
    def submodules(self) -> list[pdoc.doc.Module]:
        """The submodules that have a page."""
        return [
            PublicModule(import_module(n))
            for n in PUBLIC
            if n.rpartition(".")[0] == self.modulename
        ]

    def _is_value(self, name: str) -> bool:
        """Whether a public name is a constant or a type alias, not a class, function or module."""
        value = self._member_objects.get(name)
        documented = isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value)
        return name in self._member_objects and not documented


def public_modules() -> dict[str, PublicModule]:
    """Every module that has a page, by name."""
    return {name: PublicModule(import_module(name)) for name in PUBLIC}


def build(folder: Path) -> None:
    """Write all pages.

    Args:
        folder: created if missing; existing files in it are replaced one by one.
    """
    render.configure(docformat="google", template_directory=Path(__file__).parent / "templates")
    code = HtmlFormatter(style=DARK_CODE).get_style_defs(".pdoc-code")
    render.env.globals["dark_code"] = Markup(code)
    modules = public_modules()
    for name, module in modules.items():
        _write(folder / _page(name), _with_papers(render.html_module(module, modules)))
    (folder / "search.js").write_text(render.search_index(modules), encoding="utf-8")
    page = render.env.get_template("page.html.jinja2")
    for source, title in PAGES.items():
        text = _relinked((ROOT / source).read_text(encoding="utf-8"), source, folder)
        up = "../" * source.count("/")
        body = to_html(text)
        html = page.render(title=title, up=up, body=Markup(body), contents=body.toc_html)
        _write(folder / _page(source), _with_papers(html))
    notebooks = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        place = PurePosixPath("notebooks", f"{path.stem}.html")
        notebooks[place] = notebook.cells[0].source.splitlines()[0].lstrip("# ")
        exporter = HTMLExporter(embed_images=True)
        html, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": notebooks[place]}})
        _write(folder / place, html)
    index = render.env.get_template("index.html.jinja2").render(
        all_modules=modules,
        root_module_name=None,
        pages={_page(source): title for source, title in PAGES.items()},
        notebooks=notebooks,
        about={_page(name): (name, Markup(to_html(text))) for name, text in PUBLIC.items()},
    )
    _write(folder / "index.html", index)


def _function(value: Any) -> Any:
    """The function that an object wraps; the value itself if it wraps none."""
    if isinstance(value, type) or inspect.isroutine(value) or not hasattr(value, "__wrapped__"):
        return value
    return inspect.unwrap(value)


def _page(name: str) -> PurePosixPath:
    """Path of the page of a module or a Markdown file, relative to the index."""
    path = PurePosixPath(name) if name.endswith(".md") else PurePosixPath(name.replace(".", "/"))
    return path.with_suffix(".html")


def _relinked(text: str, source: str, folder: Path) -> str:
    """A Markdown page with links to rendered pages; other linked files are copied into the folder."""

    def to_page(match: re.Match[str]) -> str:
        path = os.path.normpath(PurePosixPath(source).parent / match[1])
        module = path.removesuffix(".py").replace("/", ".")
        if path in PAGES or path.endswith(".ipynb") or module in PUBLIC:
            return f"]({PurePosixPath(match[1]).with_suffix('.html')}{match[2] or ''})"
        if (ROOT / path).is_file():
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, place)
        return match[0]

    return _LINK.sub(to_page, text)


def _with_papers(html: str) -> str:
    """A page with its arXiv ids turned into links."""
    return _ARXIV.sub(r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>', html)


def _write(path: Path, html: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def main() -> None:
    """Write the pages to the folder given on the command line."""
    # Without this, nbconvert warns that pictures in notebooks have no alternative text.
    logging.getLogger("traitlets").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Cannot determine where|Error parsing type", UserWarning)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "docs")
    build(folder)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main()
