"""Tests of the project on this machine, a few seconds each; each returns its result in words, or raises."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from treespec.errors import in_words

if TYPE_CHECKING:
    from treespec.models.load import Pair

NEW_TOKENS = PROMPT_TOKENS = 48
PREFIX = 96
TOLERANCE = 1e-5
"""Largest difference between two implementations of attention in float32."""

RUN_PROMPTS, RUN_TOKENS = 6, 32
"""Prompts, and new tokens of each, of the short run that compares two identical methods."""


@dataclass(frozen=True)
class Trial:
    name: str
    passed: bool
    value: str
    seconds: float


def attempt(name: str, test: Callable[[], str]) -> Trial:
    """Run and time a test that returns its result in words, or raises if it fails."""
    start = perf_counter()
    try:
        value, passed = test(), True
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        expected = type(error) is AssertionError and said
        value, passed = said if expected else in_words(error, f"the test '{name}'"), False
    return Trial(name, passed, value, round(perf_counter() - start, 3))


def pair_test() -> "tuple[Trial, Pair | None]":
    """Load the embedded pair, which probes its tree attention; also return the pair if it loads."""
    loaded: list[Pair] = []

    def load() -> str:
        from treespec import load_pair

        pair = load_pair("embedded")
        loaded.append(pair)
        target, draft = (
            sum(p.numel() for p in m.model.parameters()) / 1e6 for m in (pair.target, pair.draft)
        )
        return f"target {target:.1f} M, draft {draft:.1f} M parameters"

    trial = attempt("the embedded pair loads", load)
    return trial, loaded[0] if loaded else None


def generation_agrees(pair: "Pair") -> str:
    """Compare a greedy text decoded with trees with that of transformers' `generate`."""
    import torch

    from treespec import TreeShape, generate
    from treespec.experiments.run.prompts import embedded_prompts

    (prompt,) = embedded_prompts(pair.tokenizer, 1, PROMPT_TOKENS)
    ids = torch.tensor([prompt.ids])
    with pair.target.as_transformers() as target:
        model: Any = target
        text = model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0)
    expected = text[0, len(prompt.ids) :].tolist()
    generated = generate(
        pair, prompt.ids, growth=TreeShape.expansion([3, 2, 1]), max_new_tokens=NEW_TOKENS
    )
    if list(generated.tokens) != expected:
        pairs = zip(generated.tokens, expected, strict=False)
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), "the end")
        raise AssertionError(
            f"ids decoded with trees differ from those of generate at new token {position}"
        )
    return (
        f"{len(expected)} greedy tokens equal those of generate, "
        f"{generated.tokens_per_step:.2f} tokens per step"
    )


def tell_apart(pair: "Pair") -> str:
    """Measure how small a difference between two methods this machine can show at the moment.

    Two identical copies of plain decoding and two chains run in turns on the embedded pair. The result says
    how much the two copies differ in this short run; longer runs show smaller differences.
    """
    from treespec.experiments.config.schema import Config
    from treespec.experiments.measure.searched_run import brief_run
    from treespec.experiments.report.times import resolution_sentence

    chains = [{"kind": "tree", "shape": {"kind": "chain", "depth": d}} for d in (2, 4)]
    config = Config.model_validate(
        {
            "name": "doctor",
            # Comparing dtypes and compiling would take longer than all tests together.
            "models": {"dtype": "float32", "passes": None, "draft_passes": None},
            "prompts": {"kind": "embedded", "count": RUN_PROMPTS, "tokens": PROMPT_TOKENS},
            "max_new_tokens": RUN_TOKENS,
            "samplings": [{"temperature": 0}],
            "methods": [{"kind": "plain"}, *chains],
            "trees": 0,
            "meters": [],
            "alone": 0,
        }
    )
    with brief_run(config, load=lambda models: pair) as loaded:
        sentence = resolution_sentence(loaded.measurements["T=0"])
    assert sentence is not None, "the twin of plain decoding decoded no prompt"
    return sentence.replace("This run", f"a run of {RUN_PROMPTS} prompts", 1)


COMPILED_FIRST = {"cuda": ("flex",)}
"""By device, implementations of attention that are compiled at the first call: too long for a self-test."""


def compared_on(device: str) -> list[str]:
    """The implementations that are compared with the reference on a device."""
    from attention_masks.tree_attention import IMPLEMENTATIONS

    left_out = ("reference", *COMPILED_FIRST.get(device, ()))
    return [name for name in IMPLEMENTATIONS if name not in left_out]


def attention_agrees(device: str) -> str:
    """Compare the implementations of tree attention that run on a device with the reference."""
    import torch

    from attention_masks import topology, tree_attention
    from attention_masks.errors import Unavailable

    tree = topology([-1, 0, 0, 1, 1, 2, 3, 3, 5])
    random = torch.Generator().manual_seed(0)
    nodes = len(tree.parents)
    q = torch.randn(1, 8, nodes, 64, generator=random).to(device)
    k, v = (torch.randn(1, 2, PREFIX + nodes, 64, generator=random).to(device) for _ in "kv")
    expected = tree_attention(q, k, v, tree, PREFIX, impl="reference")
    # On a GPU, products of float32 may be rounded to TF32, which keeps about 3 decimals.
    limit = TOLERANCE if device == "cpu" else 1e-2
    agreeing, absent = [], []
    for name in compared_on(device):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # flex warns that it is not compiled on a CPU
                output = tree_attention(q, k, v, tree, PREFIX, impl=name)
        except Unavailable:
            absent.append(name)
            continue
        error = float((output - expected).abs().max())
        if not error <= limit:
            raise AssertionError(
                f"{name} differs from the reference by {error:.1e}, more than {limit}"
            )
        agreeing.append(name)
    missing = f"; not available here: {', '.join(absent)}" if absent else ""
    return f"{', '.join(agreeing)} agree with the reference{missing}"
