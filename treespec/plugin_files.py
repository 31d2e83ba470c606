"""Load plug-ins: Python files, and installed packages with an entry point in `treespec.plugins`."""

import hashlib
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from treespec import plugins
from treespec.errors import InvalidPlugin, Unreadable, in_words, text_of
from treespec.files import CONFIG_BYTES, brief, read_bytes
from treespec.plugins import Part

GROUP = "treespec.plugins"
"""The group of entry points."""

PREFIX = "treespec_plugin_"
_LOADED: dict[str, list[Part]] = {}
"""The parts of every plug-in file loaded so far, by its name in `sys.modules`."""


@dataclass(frozen=True)
class PluginFile:
    """A plug-in that is a Python file."""

    path: Path
    content: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def module(self) -> str:
        """Its name in `sys.modules`, the same wherever the file is: rules are pickled by this name."""
        stem = re.sub(r"\W", "_", self.path.stem, flags=re.ASCII)
        return f"{PREFIX}{stem}_{self.sha256[:16]}"


@dataclass(frozen=True)
class InstalledPlugin:
    """A plug-in that is a module of an installed package.

    Args:
        module: the module that the entry point names.
        sha256: SHA-256 of its file at import; None if it has no readable file.
        distribution: the distribution that provides it; None if its metadata does not say.
        version: version of the distribution; None if its metadata does not say.
    """

    module: str
    sha256: str | None
    distribution: str | None
    version: str | None


_IN_USE: list[PluginFile] = []
_INSTALLED: dict[str, InstalledPlugin] = {}
"""All installed plug-ins imported so far, by the value of their entry point."""
_INSTALLED_IN_USE: list[InstalledPlugin] = []


def read(paths: Iterable[str | Path]) -> list[PluginFile]:
    """Read plug-in files; a file given twice is returned once."""
    by_name: dict[str, PluginFile] = {}
    for path in map(Path, paths):
        if path.suffix != ".py" or not re.fullmatch(r"[\w.+-]{1,100}", path.name):
            raise InvalidPlugin(
                f"plug-in {brief(str(path))}: must be a Python file, such as mine.py, with only letters, "
                "digits and . _ + - in its name"
            )
        try:
            file = PluginFile(path, read_bytes(path, CONFIG_BYTES))
        except Unreadable as error:
            raise InvalidPlugin(f"plug-in {error}") from None
        namesake = by_name.setdefault(path.name, file)
        if namesake.content != file.content:
            raise InvalidPlugin(
                f"two plug-ins are called {path.name}: {namesake.path} and {path}; rename one"
            )
    return list(by_name.values())


def load(files: Sequence[PluginFile] = ()) -> None:
    """Register the parts of these files and of all installed plug-ins, and drop those of other files.

    A file that was loaded before is not run again.

    Raises:
        InvalidPlugin: if a plug-in cannot be imported, or a name is taken. The registered parts are then
            unchanged.
    """
    before = plugins.kept()
    try:
        _load_installed()
        without_files = {
            key: part for key, part in plugins.kept().items() if not part.module.startswith(PREFIX)
        }
        plugins.restore(without_files)
        for file in files:
            if file.module in _LOADED and file.module in sys.modules:
                plugins.restore(plugins.kept(), _LOADED[file.module])
            else:
                _LOADED[file.module] = _imported(file)
        _IN_USE[:] = files
    except BaseException:
        plugins.restore(before)
        raise


def in_use() -> tuple[PluginFile, ...]:
    """The plug-in files that are loaded now."""
    return tuple(_IN_USE)


def installed() -> tuple[InstalledPlugin, ...]:
    """The installed plug-ins that are loaded now."""
    return tuple(_INSTALLED_IN_USE)


def file_of(part: Part) -> PluginFile | None:
    """The file that registered a part, as it was loaded; None for a module, which may have other files."""
    return next((file for file in _IN_USE if file.module == part.module), None)


def _hash_of(path: str) -> str | None:
    try:
        return hashlib.sha256(read_bytes(path, None)).hexdigest()
    except Unreadable:
        return None


def _imported(file: PluginFile) -> list[Part]:
    module = ModuleType(file.module)
    module.__file__ = str(file.path)
    sys.modules[file.module] = module
    try:
        with plugins.registering(file.module, str(file.path)) as registered:
            exec(compile(file.content, str(file.path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[file.module]
        raise _refusal(f"plug-in {file.path}", str(file.path), error) from error
    if not registered:
        del sys.modules[file.module]
        raise InvalidPlugin(
            f"plug-in {file.path} registers nothing: see treespec.plugins (drafter, rule, growth, metric)"
        )
    return registered


def _load_installed() -> None:
    points = entry_points(group=GROUP)
    for point in points:
        if point.value in _INSTALLED:
            continue
        module = point.module
        try:
            with plugins.registering(module, module):
                point.load()
        except BaseException as error:
            raise _refusal(f"installed plug-in {point.name} ({point.value})", "", error) from error
        file = getattr(sys.modules.get(module), "__file__", None)
        digest = _hash_of(file) if file else None
        name, version = (
            (point.dist.name, point.dist.version) if point.dist is not None else (None, None)
        )
        _INSTALLED[point.value] = InstalledPlugin(module, digest, name, version)
    _INSTALLED_IN_USE[:] = dict.fromkeys(_INSTALLED[point.value] for point in points)


def _refusal(what: str, file: str, error: BaseException) -> BaseException:
    """The error to raise for a plug-in whose import failed."""
    if isinstance(error, KeyboardInterrupt):
        return error
    if isinstance(error, InvalidPlugin):
        return InvalidPlugin(text_of(error))
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    where = f", line {line}" if line is not None else ""
    syntax = isinstance(error, SyntaxError)
    reason = f"invalid syntax: {error.msg}" if syntax else in_words(error, "it")
    return InvalidPlugin(f"{what}{where} cannot be imported: {reason[:300]}")
