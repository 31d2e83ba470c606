"""What was accepted in the steps of a run, for `search.estimate_acceptance`."""

from pathlib import Path

from experiments.errors import ConfigError, RunFolderError
from experiments.loading import Method, Run, load_run
from search.counts import Records
from treespec.tree import TreeShape

__all__ = ["counts_from_run"]


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
    import polars as pl

    run = load_run(folder)
    found = _method(run, method)
    names = [setting["name"] for setting in run.manifest["samplings"]]
    if sampling not in names:
        raise ConfigError(f"sampling = {sampling!r}, but {folder} has {', '.join(names)}")
    assert found.parents is not None
    shape = TreeShape(found.parents)
    rows = run.steps.filter((pl.col("method") == method) & (pl.col("sampling") == sampling))
    texts: dict[int, list[tuple[TreeShape, tuple[int, ...]]]] = {}
    for prompt, ranks in rows.sort("prompt", "step").select("prompt", "path_ranks").iter_rows():
        path = [0]
        for rank in ranks:
            children = shape.children[path[-1]]
            if not 0 <= rank < len(children):
                raise RunFolderError(
                    f"{folder}: a step of {method!r} accepted ranks {ranks}, which its tree does not have"
                )
            path.append(children[rank])
        texts.setdefault(prompt, []).append((shape, tuple(path)))
    if not texts:
        raise ConfigError(f"{folder} has no step of {method!r} under {sampling}")
    return Records(
        tuple(map(tuple, texts.values())),
        found.law.get(sampling, "unknown"),
        found.rule.get(sampling, "unknown"),
    )


def _method(run: Run, name: str) -> Method:
    trees = [m for m in run.methods if m.kind == "tree" and m.parents is not None]
    for method in trees:
        if method.name == name:
            return method
    names = ", ".join(repr(m.name) for m in trees) or "none"
    raise ConfigError(
        f"method = {name!r}, but methods of {run.folder} with a fixed tree are: {names}"
    )
