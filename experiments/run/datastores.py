"""Build datastores for the source `retrieval`, and find those that methods need but do not exist yet."""

import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treespec.draft import Datastore
from treespec.draft.state import tokenizer_digest
from treespec.errors import Unreadable
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.files import is_there
from treespec.experiments.config.model_draft import all_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.sources import RetrievalDraft
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.held_out import HeldOut, installed_code
from treespec.experiments.run.progress import Reporter
from treespec.files import TEXT_BYTES, read_text

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

RUNS = "runs"
"""The folder of runs, in which a run builds datastores."""

BATCH = 256
"""Files to encode at once."""


def missing_datastores(methods: Iterable[BuiltMethod]) -> dict[Path, int]:
    """The datastores that do not exist yet, and the most tokens that each is to be built with.

    Raises:
        ConfigError: if one is missing that is not to be built (`most_tokens` is null), would be built
            outside `runs/`, or twice with different numbers of tokens.
    """
    missing: dict[Path, int] = {}
    for method in methods:
        if not isinstance(method.config, TreeMethod):
            continue
        for source in all_of(method.config.draft):
            if not isinstance(source, RetrievalDraft) or is_there(source.datastore):
                continue
            path, most = Path(source.datastore), source.most_tokens
            place = f"method {method.name!r}: draft.datastore = {source.datastore!r}"
            if most is None:
                raise ConfigError(
                    f"{place}: there is no such file. Make it with `treespec datastore build "
                    f"{shlex.quote(source.datastore)}`, or let the run build it from the installed "
                    "packages: datastore: runs/python.datastore, most_tokens: 1000000"
                )
            if os.path.realpath(path.parent) != os.path.realpath(RUNS):
                raise ConfigError(
                    f"{place}: there is no such file, and a run builds one in {RUNS}/ only: name it "
                    f"{RUNS}/{path.name}, or make it with `treespec datastore build`"
                )
            if missing.setdefault(path, most) != most:
                raise ConfigError(
                    f"{place}: most_tokens = {most}, but another method builds this file with "
                    f"{missing[path]}"
                )
    return missing


def build_missing(
    missing: Mapping[Path, int], pair: "Pair | PairOutline", reporter: Reporter
) -> None:
    """Build datastores of the installed packages, and say of each what it holds."""
    for path, most in missing.items():
        path.parent.mkdir(exist_ok=True)
        store, left_out = build_datastore(path, installed_code(), pair, reporter, most=most)
        holds = f"{store.about['tokens']:,} tokens of {store.about['texts']:,} files"
        parts = [f"built {path}: {holds} of the installed packages", about_left_out(**left_out)]
        reporter.note("; ".join(filter(None, parts)))


def build_datastore(
    path: Path,
    files: Sequence[Path],
    pair: "Pair | PairOutline",
    reporter: Reporter,
    *,
    named: Collection[Path] = (),
    most: int | None = None,
) -> tuple[Datastore, dict[str, int]]:
    """Encode files, and write a datastore of them.

    Args:
        path: path of the datastore.
        files: to read. Copies of the embedded pair's held-out files are left out.
        pair: has the tokenizer.
        reporter: shows progress.
        named: those of the files that the user named, which must be readable; others are left out.
        most: number of tokens to end after; None for no limit.

    Returns:
        The datastore, and how many copies and unreadable files were left out.

    Raises:
        ConfigError: if nothing is left.
        Unreadable: if a named file is not text.
    """
    left_out = {"copies_of_held_out": 0, "unreadable": 0}
    with reporter.task("building a datastore") as say:
        texts = _encoded(files, named, left_out, pair.tokenizer, most, say)
        vocab_size, tokenizer = pair.target.vocab_size, tokenizer_digest(pair.tokenizer)
        return Datastore.build(path, texts, vocab_size=vocab_size, tokenizer=tokenizer), left_out


def _encoded(
    files: Sequence[Path],
    named: Collection[Path],
    left_out: dict[str, int],
    tokenizer: Any,
    most: int | None,
    say: Callable[[str], None],
) -> Iterator[list[int]]:
    """The token ids of each file that is not left out; counts the others in `left_out`."""
    held_out, tokens = HeldOut(), 0
    for start in range(0, len(files), BATCH):
        say(f"building a datastore: {start:,} of {len(files):,} files, {tokens:,} tokens")
        texts = _read(files[start : start + BATCH], named, left_out, held_out)
        if not texts:
            continue
        for ids in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
            yield ids if most is None else ids[: most - tokens]
            tokens += len(ids)
            if most is not None and tokens >= most:
                return
    if not tokens:
        raise ConfigError(
            f"nothing to store: {about_left_out(**left_out) or 'the files are empty'}"
        )


def _read(
    files: Sequence[Path], named: Collection[Path], left_out: dict[str, int], held_out: HeldOut
) -> list[str]:
    """The texts of files; see `_encoded`."""
    texts = []
    for file in files:
        try:
            text = read_text(file)
        except Unreadable:
            if file in named:
                raise
            left_out["unreadable"] += 1
            continue
        if held_out.has_copy(file.name, text):
            left_out["copies_of_held_out"] += 1
        else:
            texts.append(text)
    return texts


def about_left_out(copies_of_held_out: int = 0, unreadable: int = 0) -> str:
    """How many files were left out and why, in words; empty if none were."""
    reasons = []
    if copies_of_held_out:
        what = "copy of a held-out file" if copies_of_held_out == 1 else "copies of held-out files"
        reasons.append(f"{copies_of_held_out:,} {what}")
    if unreadable:
        reasons.append(
            f"{unreadable:,} {'file' if unreadable == 1 else 'files'} not in UTF-8 or larger than "
            f"{TEXT_BYTES // 2**20} MiB"
        )
    return f"left out {' and '.join(reasons)}" if reasons else ""
