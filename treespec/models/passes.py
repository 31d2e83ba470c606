"""How a model's passes are run: operation by operation, compiled, or captured. Chosen once, at load.

A compiled pass is tried like the model itself (`probe`): a short prompt, the tree of the probe, once as a
whole, once level by level as drafters run it, and the root alone; then a tree of 64 nodes behind a prompt
that is longer than the model's window, in a cache that has grown. All logits must be those of ordinary
passes, as well as the probe asks, and overlooking the tree must show.
"""

import logging
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.errors import InvalidArgument, TreespecError, Unavailable, UnsupportedModel, in_words
from treespec.models.code_on_disk import note_on_disk
from treespec.models.compiled_pass import CompiledPass
from treespec.models.compiled_runner import CompiledRunner
from treespec.models.pass_kinds import PASSES, Passes
from treespec.models.probe import PARENTS, PREFIX, TOKENS, TOLERANCE
from treespec.models.runner import TreeRunner
from treespec.models.transformers_model import TransformersModel

__all__ = ["choose_passes", "require_passes"]

log = logging.getLogger("treespec")

LEVELS = ((0, 1), (1, 3), (3, 7), (7, 8))
"""The nodes of the probe's tree, in parts each of which has its parents before it."""
LARGE_TREE = tuple((i - 1) // 3 if i else -1 for i in range(64))
"""The parents of a tree of 64 nodes."""

MOST_PROMPT_TOKENS = 300
"""Tokens of the longer prompt, at most: more than the first rows of a cache."""


def require_passes(asked: str | None) -> None:
    """Refuse what is no kind of pass.

    Raises:
        InvalidArgument: with the names.
    """
    if asked is not None and asked not in PASSES:
        known = ", ".join(map(repr, PASSES))
        raise InvalidArgument(f"passes={asked!r} is not known: choose one of {known}")


def choose_passes(model: TransformersModel, asked: str | None, *, draft: bool = False) -> None:
    """Have a model run its passes in this way from now on.

    Args:
        model: probed; a target, a draft, or a part of a target that drafts (`TransformersModel.without`).
        asked: "eager", "compiled" or "captured", which is had or refused; "auto": compiled on a CPU, and
            on CUDA captured, where that can be, and else eager, with the reason in `model.passes.why` and
            in the log. None leaves the model as it is: eager on a CPU, and on CUDA a target is captured
            where it can be (`make_target`).
        draft: whether it drafts.

    Raises:
        InvalidArgument: if there is no such kind.
        Unavailable: if what was asked for cannot be had here.
        UnsupportedModel: if the model cannot do it, with the reason.
    """
    require_passes(asked)
    if asked is None:
        return
    if asked == "eager":
        model.run_by(TreeRunner, Passes("eager", asked))
        return
    captured = asked == "captured" or (asked == "auto" and model.device.type == "cuda")
    try:
        if captured:
            _capture(model, asked, draft)
        else:
            _compile(model, asked, draft)
    except TreespecError as problem:
        why = str(problem)
        if asked != "auto":
            key = "draft_passes" if draft else "passes"
            raise type(problem)(f"{key}={asked!r} cannot be had: {why}") from problem
        log.warning("the passes of the %s stay eager: %s", "draft" if draft else "target", why)
        model.passes = Passes("eager", asked, why)


def _capture(model: TransformersModel, asked: str, draft: bool) -> None:
    if model.device.type != "cuda":
        raise Unavailable(
            f"it needs a CUDA device, but the model is on {model.device} ('compiled' is for the CPU)"
        )
    # Triton is there on CUDA only.
    from treespec.models.captured_runner import Places
    from treespec.models.static_trial import require_static

    require_static(model)
    passes = Passes("captured", asked)
    if draft:
        model.run_by(Places().copying_runner, passes)
    else:  # `GraphTarget` lends logits instead of copying them
        model.passes = passes


def _compile(model: TransformersModel, asked: str, draft: bool) -> None:
    kind, finding = model.model.config.model_type, model.finding
    if model.attention not in ("auto", "sdpa", "transformers"):
        raise UnsupportedModel(
            f"the model was asked to run attention={model.attention!r}, but a compiled pass takes 'auto', "
            "'sdpa' or 'transformers'"
        )
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        raise UnsupportedModel(
            f"its weights are on {', '.join(sorted(map(str, devices)))}: a compiled pass is of one device"
        )
    try:
        compiled = CompiledPass(model.model, finding.route, finding.layout, model.packed)
        runner = partial(CompiledRunner, compiled)
        _require_same(model, model.fresh(runner=runner))
    except torch.OutOfMemoryError:
        raise
    except TreespecError:
        raise
    except Exception as problem:  # whatever it raises, its pass cannot be compiled
        why = in_words(problem, "the compiler")
        raise UnsupportedModel(f"{kind} models cannot be compiled here: {why}") from problem
    note_on_disk(model)
    unpacked = compiled.unpacked
    if unpacked is not None:
        log.warning(
            "the passes of the %s are compiled for the model's own weights, which is slower: %s",
            "draft" if draft else "target",
            unpacked,
        )
    passes = Passes(
        "compiled",
        asked,
        seconds=compiled.seconds,
        packed_bytes=compiled.packed_bytes,
        frozen=unpacked is None,
        unpacked=unpacked,
    )
    model.run_by(runner, passes)


def _require_same(model: TransformersModel, compiled: TransformersModel) -> None:
    """Make sure that compiled passes give the logits of ordinary ones."""
    tokens = torch.arange(1, TOKENS + 1, device=model.device) * 7 % model.vocab_size
    prompt, nodes = tokens[:PREFIX], tokens[PREFIX:]
    ordinary = model.fresh()
    ordinary.prefill(prompt)
    expected = ordinary.run(nodes, PARENTS)
    chain = tuple(range(-1, len(PARENTS) - 1))
    ordinary.prefill(prompt)
    effect = float(_error(ordinary.run(nodes, chain), expected).max())
    compiled.prefill(prompt)
    outputs = [compiled.run(nodes, PARENTS)]
    compiled.prefill(prompt)
    outputs.append(
        torch.cat([compiled.run(nodes[begin:end], PARENTS[:end], begin) for begin, end in LEVELS])
    )
    compiled.prefill(prompt[:1])
    ordinary.prefill(prompt[:1])
    error = max(float(_error(logits, expected).max()) for logits in outputs)
    alone = _error(compiled.run(nodes[:1], (-1,)), ordinary.run(nodes[:1], (-1,)))
    error = max(error, float(alone.max()), _error_behind_text(ordinary, compiled))
    tolerance = TOLERANCE.get(model.model.dtype, TOLERANCE[torch.bfloat16])
    if not error <= min(tolerance, effect / 4):
        raise UnsupportedModel(
            f"{model.model.config.model_type} models: logits of a compiled pass differ from those of an "
            f"ordinary one by {error:.2g} of their size ({tolerance:.2g} is allowed in "
            f"{model.model.dtype}; overlooking the tree makes {effect:.2g})"
        )


def _error_behind_text(ordinary: TransformersModel, compiled: TransformersModel) -> float:
    """How far a large tree behind a longer prompt is off, where it is furthest."""
    config = ordinary.model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or MOST_PROMPT_TOKENS
    rows = min(window + 8, MOST_PROMPT_TOKENS, ordinary.max_length - len(LARGE_TREE))
    if rows < 1:
        return 0.0
    tokens = torch.arange(rows + len(LARGE_TREE), device=ordinary.device) * 7 % ordinary.vocab_size
    outputs = []
    for model in (ordinary, compiled):
        model.prefill(tokens[:rows])
        outputs.append(model.run(tokens[rows:], LARGE_TREE))
    return float(_error(outputs[1], outputs[0]).max())


def _error(logits: Float[Tensor, "N V"], truth: Float[Tensor, "N V"]) -> Float[Tensor, "N"]:
    """Distance of centred rows, relative to the length of the true one."""
    truth, logits = (x.double() - x.double().mean(-1, keepdim=True) for x in (truth, logits))
    return (logits - truth).norm(dim=-1) / truth.norm(dim=-1).clamp_min(1e-30)
