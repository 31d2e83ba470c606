"""What was accepted in the steps of a run, for `treespec.search.estimate_acceptance`."""

from pathlib import Path

from treespec.experiments.errors import ConfigError
from treespec.experiments.records.loading import Method, RunRecords, accepted_nodes
from treespec.search.rates.counts import UNKNOWN, Records
from treespec.tree import TreeShape

__all__ = ["counts_from_run"]

ABOUT = ("name", "models", "prompts_hash", "hardware", "versions", "seed")
"""What an estimate tells of the run that it is from."""


def counts_from_run(folder: Path, method: str, sampling: str) -> Records:
    """The steps of a tree method under one sampling setting: tree and accepted nodes, by prompt.

    Args:
        folder: of a run, finished or not.
        method: its name in the manifest.
        sampling: name of the setting, such as `T=0`.

    Raises:
        RunFolderError: if the folder is no run, or `path_ranks` do not fit the method's tree.
        ConfigError: if there is no such method or setting, the method has no fixed tree, or it has no step.
    """
    run = RunRecords.load(folder)
    described = _method(run, method)
    names = [setting["name"] for setting in run.manifest["samplings"]]
    if sampling not in names:
        raise ConfigError(f"sampling = {sampling!r}, but {folder} has {', '.join(names)}")
    assert described.parents is not None
    shape = TreeShape(described.parents)
    setting = dict(run.manifest["samplings"][names.index(sampling)])
    texts: dict[int, list[tuple[TreeShape, tuple[int, ...]]]] = {}
    for prompt, node in accepted_nodes(run, described, sampling):
        texts.setdefault(prompt, []).append((shape, shape.path(node)))
    if not texts:
        raise ConfigError(f"{folder} has no step of {method!r} under {sampling}")
    about = {key: run.manifest[key] for key in ABOUT if key in run.manifest}
    return Records(
        tuple(map(tuple, texts.values())),
        described.law.get(sampling, UNKNOWN),
        described.rule.get(sampling, UNKNOWN),
        {key: value for key, value in setting.items() if key != "name"},
        about | {"method": method, "sampling": sampling},
    )


def _method(run: RunRecords, name: str) -> Method:
    trees = [m for m in run.methods if m.kind == "tree" and m.parents is not None]
    for method in trees:
        if method.name == name:
            return method
    names = ", ".join(repr(m.name) for m in trees) or "none"
    raise ConfigError(
        f"method = {name!r}, but methods of {run.folder} with a fixed tree are: {names}"
    )
