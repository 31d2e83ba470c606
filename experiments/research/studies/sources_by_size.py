"""Measure what each draft source is worth by tree size and kind of text, cold and warm.

    python -m treespec.experiments.research.studies.sources_by_size [FOLDER] [--dtype float32]

The initial state of the sources is written into FOLDER (`runs/sources_by_size`). All of it is made from
*other* texts than those that are evaluated: a datastore of the installed packages, the held-out files as
documents and as past texts, the tables and n-grams that decoding them leaves behind (`warm`), and each
source's acceptance rates, which determine the shapes of trees and merges. Then the study runs the config
`sources_by_size.yaml` that it wrote there: every source as a chain and as a tree of at most 8, 16 and 64
nodes, on the embedded texts by category. This takes about half an hour on two cores with instructions for
bfloat16; without them, float32 is faster. A stopped run continues.

Each merge is compared with the best of the sources that it merges, and with the best of all sources, of its
size and on the texts of each category. The best source is chosen on the same texts, which flatters it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
import yaml
from rich.console import Console
from rich.progress import track

from treespec import Law, Sampling, Step, TorchCoins, TreeShape, decode, verify
from treespec.draft import (
    Datastore,
    EarlyExit,
    LayerSkip,
    Lookahead,
    PromptLookup,
    Retrieval,
    SuffixCounts,
    SuffixTree,
    TokenRecycling,
    acceptance_rates,
    make_drafter,
)
from treespec.draft.state import tokenizer_digest
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import EmbeddedPrompts, ModelsConfig
from treespec.experiments.measure.searched_run import run
from treespec.experiments.report.categories import by_category
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.terminal import say
from treespec.experiments.research.benchmarks.results_file import write
from treespec.experiments.research.studies.studies import study_of_run
from treespec.experiments.run.models import load_models
from treespec.experiments.run.prompts import embedded_prompts, read_prompts
from treespec.models.load import Pair
from treespec.models.variants.sublayers import Sublayer
from treespec.protocols import Drafter
from treespec.target import make_target

NAME, SAMPLING, GREEDY = "sources_by_size", "T=0", Sampling(temperature=0.0)

MODELS = {
    "target": "embedded",
    # Only the width: added layers that change nothing would make drafts from parts of the target free.
    "enlarge": {"hidden_size": 1536, "intermediate_size": 1920},
}

MERGE = "merge of "
"""Prefix of the names of merges."""

MEASURES = {"tokens": "steps", "speed": "decode_s"}
"""What merges are compared by: new tokens per step, and per second of decoding."""

SIZES = (8, 16, 64)
"""Maximum nodes of a tree, including the root."""

DRAWN_OUT = 16
"""Maximum nodes of chains that models draft: each node costs a pass, and few texts need more."""

OTHERS, TOKENS, NEW = 12, 128, 64
"""Held-out files that sources learn from: number, tokens of each, and new tokens decoded after them."""

WINDOWS = {
    8: {"window": 2, "ngram": 3, "guesses": 1},
    16: {"window": 4, "ngram": 3, "guesses": 3},
    64: {"window": 7, "ngram": 5, "guesses": 7},
}
"""Window, n-gram length and guesses of `lookahead`, by the maximum nodes of its trees."""

DATASTORE_TOKENS = 2_000_000
"""Maximum tokens of the datastore."""

SKIP = ("mlp.1", "mlp.2", "mlp.3", "attention.4")
"""The best 4 of 10 sublayers to skip, by `treespec skip-set search`."""

LAYERS = 2
"""Layers of the target that `early_exit` drafts with."""

WIDE = TreeShape.expansion((4, 2, 1, 1))
"""The tree for measuring the rates of models."""

DEEPEST_OF_MODELS, DEEPEST_OF_FREE_SOURCES = 6, 16
"""Maximum depth of trees of models alone, and of trees of sources that draft for free. In merges models
draft as deep as the tree, so that merges also draft deeper than models do alone."""

RANKS, DEPTHS = 8, 4
"""Maximum ranks and depths of a table of rates; the last depth stands for deeper ones."""

FEWEST_TRIES = 20
"""Rates of children with fewer tries are left out: they would be chance."""

HELD_OUT = EmbeddedPrompts(kind="embedded")
"""The files that sources learn from."""

Learner = Callable[[Any], Drafter]
"""Makes the drafter of the next text from the last one; from None for the first text."""


def learned(
    pair: Pair, texts: Sequence[list[int]], learner: Learner
) -> tuple[list[list[float]], Any]:
    """Decode texts greedily; return acceptance rates by depth and rank, and the last drafter."""
    drafter: Drafter | None = None

    def steps() -> Iterator[Step]:
        nonlocal drafter
        for text in track(texts, description="learning"):
            drafter = learner(drafter)
            yield from decode(
                make_target(pair.target), drafter, verify.greedy, torch.tensor(text), sampling=GREEDY,
                coins=TorchCoins(0), max_new_tokens=NEW,
            )  # fmt: skip

    rates = acceptance_rates(steps(), least=FEWEST_TRIES)[:DEPTHS]
    return [[round(rate, 3) for rate in row[:RANKS]] for row in rates], drafter


def begin(pair: Pair, folder: Path) -> tuple[dict[str, str], dict[str, list[list[float]]]]:
    """Let every source learn from other texts, and write the files that it starts from.

    Returns:
        Paths of files by name, and acceptance rates by source, see `learned`.
    """
    tokenizer = {
        "vocab_size": pair.target.vocab_size,
        "tokenizer": tokenizer_digest(pair.tokenizer),
    }
    texts = [list(prompt.ids) for prompt in embedded_prompts(pair.tokenizer, OTHERS, TOKENS)]
    files = {
        name: f"{folder / name}"
        for name in ("python.datastore", "past.npz", "successors.npz", "ngrams.npz", "held_out.txt")
    }
    if not Path(files["python.datastore"]).exists():
        subprocess.run(
            [
                *(sys.executable, "-m", "treespec.experiments.cli", "datastore", "build"),
                *(files["python.datastore"], "--most-tokens", f"{DATASTORE_TOKENS}"),
            ],
            check=True,
        )
    held_out = [prompt.text for prompt in read_prompts(HELD_OUT)[:OTHERS]]
    Path(files["held_out.txt"]).write_text("\n".join(held_out), encoding="utf-8")
    past = SuffixCounts()
    for text in held_out:
        past.read(pair.tokenizer.encode(text, add_special_tokens=False, verbose=False))
        past.end()
    past.save(files["past.npz"], **tokenizer)
    store = Datastore(files["python.datastore"], **tokenizer)
    room = {"depth": DEEPEST_OF_MODELS, "size": 64, "branching": 4}
    law = Law.DETERMINISTIC
    skipped = [Sublayer.of(name) for name in SKIP]
    learners: dict[str, Learner] = {
        "model": lambda last: make_drafter(pair.draft, WIDE, law, GREEDY),
        "early_exit": lambda last: EarlyExit(pair.target, LAYERS, WIDE, law, GREEDY),
        "layer_skip": lambda last: LayerSkip(pair.target, skipped, WIDE, law, GREEDY),
        "lookup": lambda last: PromptLookup(**room),
        "suffix_tree": lambda last: SuffixTree(**room, past=None),
        "retrieval": lambda last: Retrieval(store, **room),
        "token_recycling": lambda last: TokenRecycling(table=last.table if last else None),
        "lookahead": lambda last: Lookahead(**WINDOWS[64], pool=last.pool if last else None),
    }
    rates, drafters = {}, {}
    for name, learner in learners.items():
        rates[name], drafters[name] = learned(pair, texts, learner)
    origin = tokenizer | {"target": pair.target.fingerprint}
    drafters["token_recycling"].save(files["successors.npz"], **origin)
    drafters["lookahead"].save(files["ngrams.npz"], **origin)
    return files, rates


def methods(
    files: Mapping[str, str], rates: Mapping[str, list[list[float]]]
) -> Iterator[dict[str, Any]]:
    """Yield the methods of the config: every source as a chain and as a tree of each size.

    Args:
        files: paths of files by name.
        rates: acceptance rates by source, see `learned`.
    """
    layered = {
        "model": {"source": "model"},
        "early_exit": {"source": "early_exit", "layers": LAYERS},
        "layer_skip": {"source": "layer_skip", "skip": list(SKIP)},
    }
    texts = {
        "lookup": {"source": "lookup"},
        "documents": {"source": "documents", "files": [files["held_out.txt"]]},
        "suffix_tree": {"source": "suffix_tree"},
        "suffix_tree warm": {"source": "suffix_tree", "warm": files["past.npz"]},
        "retrieval": {"source": "retrieval", "datastore": files["python.datastore"]},
    }
    ahead = {
        "token_recycling": {"source": "token_recycling"},
        "token_recycling warm": {"source": "token_recycling", "warm": files["successors.npz"]},
    }
    chains = {"suffix_automaton": {"source": "suffix_automaton"}, "jacobi": {"source": "jacobi"}}
    merges = {
        f"{MERGE}{', '.join(names)}": names
        for names in (
            # token recycling as its rates were measured, with what it learned from the texts before
            ("model", "suffix_tree", "token_recycling warm"),
            ("suffix_tree", "retrieval", "token_recycling warm"),
            # the source that keeps the most tokens per step, so that this merge can equal any single one
            ("layer_skip", "suffix_tree", "token_recycling warm"),
        )
    }
    every = layered | texts | ahead
    yield {"kind": "plain"}
    for size in SIZES:
        tree = {
            "kind": "budget",
            "depth": min(size - 1, DEEPEST_OF_FREE_SOURCES),
            "size": size,
            "branching": 4,
        }
        chain = {"kind": "budget", "depth": size - 1}

        def method(
            name: str, draft: Any, shape: Any, form: str, size: int = size
        ) -> dict[str, Any]:
            return {
                "kind": "tree",
                "name": f"{name}, {form} of {size}",
                "draft": draft,
                "shape": shape,
            }

        for name, draft in layered.items():
            widest = max(map(len, rates[name]))
            padded = [[*row, *[0.0] * (widest - len(row))] for row in rates[name]]
            rows = [*padded, *[padded[-1]] * DEEPEST_OF_MODELS][:DEEPEST_OF_MODELS]
            shape = {"kind": "optimal", "rates": rows, "size": size}
            yield method(name, draft, shape, "tree")
        for name, draft in (texts | ahead).items():
            yield method(name, draft, tree, "tree")
        for name, warm in (("lookahead", {}), ("lookahead warm", {"warm": files["ngrams.npz"]})):
            depth = 2 * WINDOWS[size]["ngram"]
            room = {"kind": "budget", "depth": depth, "size": size, "branching": 11}
            yield method(name, {"source": "lookahead"} | WINDOWS[size] | warm, room, "tree")
        for name, merged_names in merges.items():
            draft = {
                "source": "merge",
                "sources": [every[source] for source in merged_names],
                "rates": [rates[source.removesuffix(" warm")] for source in merged_names],
            }
            yield method(name, draft, tree, "tree")
        if size <= DRAWN_OUT:
            for name, draft in layered.items():
                yield method(name, draft, {"kind": "chain", "depth": size - 1}, "chain")
            cascade = {"source": "cascade", "draft": {"source": "lookup"}}
            yield method("cascade over lookup", cascade, chain, "chain")
        for name, draft in (texts | chains).items():
            # Datastores are sorted by the first few tokens only.
            if name != "retrieval" or size <= DEEPEST_OF_FREE_SOURCES:
                yield method(name, draft, chain, "chain")


def merged(loaded: Run) -> list[dict[str, Any]]:
    """Compare each merge with the best single source of its size, by category, per step and per second."""
    rows = []
    for category, part in by_category(loaded, loaded.measurements[SAMPLING]).items():
        for merge in (m.name for m in part.methods if m.name.startswith(MERGE)):
            sources, _, size = merge.removeprefix(MERGE).rpartition(", tree of ")
            singles = [
                m.name
                for m in part.methods
                if m.name.endswith(f" of {size}") and not m.name.startswith(MERGE)
            ]
            merged_names = [
                name for name in singles if name.rpartition(", ")[0] in sources.split(", ")
            ]
            rows.append(
                {"category": category, "prompts": len(part.prompts)}
                | {"size": int(size), "merge": sources}
                | {
                    f"{measure}{of}": over_best(part, merge, names, per)
                    for of, names in (("", merged_names), (" of all", singles))
                    for measure, per in MEASURES.items()
                }
            )
    return rows


def fastest(loaded: Run) -> list[dict[str, Any]]:
    """Compare the fastest draft on each kind of text with plain decoding and the best draft model."""
    rows = []
    for category, part in by_category(loaded, loaded.measurements[SAMPLING]).items():
        drafts = [m.name for m in part.methods if m.group != "plain"]
        best = max(drafts, key=lambda name: speed_ratio(part.totals, name, "plain").estimate)
        models = [name for name in drafts if name.startswith("model, ")]
        rows.append(
            {"category": category, "fastest": best}
            | {"speedup": speed_ratio(part.totals, best, "plain")._asdict()}
            | {"over the model": over_best(part, best, models, MEASURES["speed"])}
        )
    return rows


def over_best(part: Measurements, name: str, others: Sequence[str], per: str) -> dict[str, Any]:
    """Find the best of the `others`, and the ratio of `name` to it, in new tokens per unit of `per`."""
    ratios = {other: speed_ratio(part.totals, name, other, per) for other in others}
    best = min(others, key=lambda other: ratios[other].estimate)
    return {"best": best.rpartition(" of ")[0], "ratio": ratios[best]._asdict()}


def main(
    folder: Annotated[Path, typer.Argument(help="Folder for everything that is written.")] = Path(
        "runs"
    )
    / NAME,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Number type of the models.")
    ] = "bfloat16",
) -> None:
    """Let the sources learn, write the config, run it, and save the findings."""
    console = Console(width=140, soft_wrap=True)
    file = folder / f"{NAME}.yaml"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        models = MODELS | {"dtype": dtype}
        files, rates = begin(load_models(ModelsConfig.model_validate(models)), folder)
        written: dict[str, Any] = {
            "name": NAME,
            "models": models,
            "prompts": {"kind": "tasks"},
            "max_new_tokens": 32,
            "samplings": [{"temperature": 0}],
            "methods": list(methods(files, rates)),
            "meters": [],
            "alone": 0,
        }
        plain = json.loads(json.dumps(written))  # YAML writes what appears twice as an anchor
        file.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    config = load_config(file)
    if config.models.dtype != dtype:
        raise typer.BadParameter(
            f"{file} is of {config.models.dtype}; name another folder", param_hint="--dtype"
        )
    loaded = load_run(run(config, folder=folder / "run", source=file, console=console).folder)
    study = study_of_run(loaded)
    study["figures"] |= {"merges": merged(loaded), "fastest": fastest(loaded)}
    say(console, f"written: {write(f'study-{NAME}', study)}")


if __name__ == "__main__":
    typer.run(main)
