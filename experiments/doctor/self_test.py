"""Tests of the project on this machine, a few seconds each; each returns its result in words, or raises."""

from typing import TYPE_CHECKING

from treespec.experiments.doctor.findings import Trial, attempt

if TYPE_CHECKING:
    from treespec.models.load import Pair

NEW_TOKENS = 48
PROMPT_TOKENS = 48
PREFIX = 96
TOLERANCE = 1e-5
"""Largest difference between two implementations of attention in float32."""

RUN_PROMPTS, RUN_TOKENS = 6, 32
"""Prompts, and new tokens of each, of the short run that compares two identical methods."""


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


def proof() -> str:
    """Prove two rules lossless by exact enumeration of their code."""
    from treespec import TreeShape, verify
    from treespec.testing import assert_lossless

    shapes = [TreeShape.expansion([2]), TreeShape.chain(2), TreeShape((-1, 0, 0, 1))]
    proved = assert_lossless(verify.rrs, shapes=shapes) + assert_lossless(
        verify.rrsw, shapes=shapes
    )
    return (
        f"rrs and rrsw keep the target's law: {proved.runs} branches of {proved.cases} cases, largest "
        f"error {proved.largest_error:.0e}"
    )


def generation_agrees(pair: "Pair") -> str:
    """Compare a greedy text decoded with trees with that of transformers' `generate`."""
    import torch

    from treespec import Sampling, TreeShape, generate
    from treespec.experiments.config.schema import EmbeddedPrompts
    from treespec.experiments.run.baselines import generate_plain
    from treespec.experiments.run.prompts import encode, read_prompts
    from treespec.experiments.run.turns import finish
    from treespec.stopping import stop_at_tokens

    config = EmbeddedPrompts(kind="embedded", count=1, tokens=PROMPT_TOKENS)
    (prompt,) = encode(read_prompts(config)[:1], config, pair.tokenizer)
    reference = finish(
        generate_plain(
            pair, torch.tensor(prompt.ids), Sampling(temperature=0.0), max_new_tokens=NEW_TOKENS,
            stop=stop_at_tokens(pair.end_tokens), seed=0,
        )
    )  # fmt: skip
    generated = generate(
        pair, prompt.ids, growth=TreeShape.expansion([3, 2, 1]), max_new_tokens=NEW_TOKENS
    )
    if generated.tokens != reference.tokens:
        pairs = zip(generated.tokens, reference.tokens, strict=False)
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), "the end")
        raise AssertionError(
            f"ids decoded with trees differ from those of generate at new token {position}"
        )
    return (
        f"{len(generated.tokens)} greedy tokens equal those of generate, "
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

    config = Config.model_validate(
        {
            "name": "doctor",
            "prompts": {"kind": "embedded", "count": RUN_PROMPTS, "tokens": PROMPT_TOKENS},
            "max_new_tokens": RUN_TOKENS,
            "samplings": [{"temperature": 0}],
            "methods": [
                {"kind": "plain"},
                *({"kind": "tree", "shape": {"kind": "chain", "depth": d}} for d in (2, 4)),
            ],
            "trees": 0,
            "meters": [],
            "alone": 0,
        }
    )
    with brief_run(config, load=lambda models: pair) as loaded:
        sentence = resolution_sentence(loaded.measurements["T=0"])
    assert sentence is not None, "the twin of plain decoding decoded no prompt"
    return sentence.replace("This run", f"a run of {RUN_PROMPTS} prompts", 1)


def attention_agrees(device: str) -> str:
    """Compare all implementations of tree attention that run on a device with the reference."""
    import warnings

    import torch

    from attention_masks import topology, tree_attention
    from attention_masks.errors import Unavailable
    from attention_masks.tree_attention import IMPLEMENTATIONS

    tree = topology([-1, 0, 0, 1, 1, 2, 3, 3, 5])
    random = torch.Generator().manual_seed(0)
    nodes = len(tree.parents)
    q = torch.randn(1, 8, nodes, 64, generator=random).to(device)
    k, v = (torch.randn(1, 2, PREFIX + nodes, 64, generator=random).to(device) for _ in "kv")
    expected = tree_attention(q, k, v, tree, PREFIX, impl="reference")
    # On a GPU, products of float32 may be rounded to TF32, which keeps about 3 decimals.
    limit = TOLERANCE if device == "cpu" else 1e-2
    agreeing, absent = [], []
    for name in IMPLEMENTATIONS:
        if name == "reference":
            continue
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
