"""Choose how a model runs its passes: operation by operation, compiled, or captured. Done once, at load.

A compiled pass is tested like the model itself (`probe`): a short prompt with the probe's tree, once as a
whole, once level by level as drafters run it, and the root alone; then a tree of 64 nodes after a prompt
longer than the model's window, in a cache that has grown. All logits (of a head with a vocabulary of its
own, those of its tokens) must match those of ordinary passes within the probe's tolerance, and ignoring the
tree must change them visibly.
"""

import logging
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import InvalidArgument, TreespecError, Unavailable, UnsupportedModel, in_words
from treespec.models.encoder_decoder import usual_runner
from treespec.models.logit_errors import errors, of_its_tokens
from treespec.models.pass_kinds import PASSES, Passes
from treespec.models.passes.code_on_disk import is_on_disk, note_on_disk
from treespec.models.passes.compiled_pass import CompiledPass
from treespec.models.passes.compiled_runner import LEVELS, CompiledRunner
from treespec.models.probe import PARENTS, PREFIX, TOKENS
from treespec.models.transformers_model import TransformersModel

log = logging.getLogger("treespec")

COMPILED_ATTENTION = ("auto", "sdpa", "transformers")
"""Values of `attention` with which passes can be compiled."""

LARGE_TREE = tuple((i - 1) // 3 if i else -1 for i in range(64))
"""Parents of a tree of 64 nodes."""

MOST_PROMPT_TOKENS = 300
"""Upper bound on the longer prompt, in tokens: more than the initial capacity of a cache."""


def require_passes(asked: str | None) -> None:
    """Refuse an unknown kind of pass.

    Raises:
        InvalidArgument: listing the known kinds.
    """
    if asked is not None and asked not in PASSES:
        known = ", ".join(map(repr, PASSES))
        raise InvalidArgument(f"passes={asked!r} is not known: choose one of {known}")


def choose_passes(model: TransformersModel, asked: str | None, *, draft: bool = False) -> None:
    """Set how a model runs its passes.

    Args:
        model: a target, a draft, or a part of a target that drafts (`TransformersModel.without`).
        asked: "eager", "compiled" or "captured", without a fallback. "auto": compiled on a CPU and captured
            on CUDA if possible, else eager, with the reason in `model.passes.why` and in the log. None
            leaves the model unchanged: eager on a CPU; on CUDA a target is captured if possible
            (`make_target`).
        draft: whether the model drafts.

    Raises:
        InvalidArgument: if the kind is unknown.
        Unavailable: if this machine cannot run passes of the requested kind.
        UnsupportedModel: if the model cannot run passes of the requested kind, with the reason.
    """
    require_passes(asked)
    if asked is None:
        return
    if asked == "eager":
        model.run_by(usual_runner(model.model), Passes("eager", asked))
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
    # Triton is installed with CUDA only.
    from treespec.models.passes.captured_runner import Places
    from treespec.models.passes.layers_trial import compiled_layers
    from treespec.models.passes.static_trial import require_static

    require_static(model)
    layers, why, seconds = compiled_layers(model)
    passes = Passes("captured", asked, seconds=seconds, uncompiled=why)
    if draft:
        model.run_by(Places(layers).copying_runner, passes)
    else:  # `GraphTarget` captures the passes itself and lends logits instead of copying them
        model.passes = passes


def _compile(model: TransformersModel, asked: str, draft: bool) -> None:
    model_type, finding = model.model.config.model_type, model.finding
    if model.attention not in COMPILED_ATTENTION:
        raise UnsupportedModel(
            f"the model was loaded with attention={model.attention!r}, but a compiled pass needs 'auto', "
            "'sdpa' or 'transformers'"
        )
    if model.needs_source:
        raise UnsupportedModel(
            f"{model_type} models are encoder-decoders, whose passes run operation by operation"
        )
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        raise UnsupportedModel(
            f"its weights are on {', '.join(sorted(map(str, devices)))}: "
            "a compiled pass runs on one device"
        )
    from_disk = is_on_disk(model)
    try:
        compiled = CompiledPass(model.model, finding.route, finding.layout, model.packed)
        runner = partial(CompiledRunner, compiled)
        _require_same(model, model.fresh(runner=runner))
    except torch.OutOfMemoryError:
        raise
    except TreespecError:
        raise
    except Exception as problem:  # the compiler raises errors of many classes
        why = in_words(problem, "the compiler")
        raise UnsupportedModel(f"{model_type} models cannot be compiled here: {why}") from problem
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
        from_disk=from_disk,
    )
    model.run_by(runner, passes)


def _require_same(model: TransformersModel, compiled: TransformersModel) -> None:
    """Check that compiled passes give the logits of ordinary ones."""
    net = model.model
    tokens = torch.arange(1, TOKENS + 1, device=model.device) * 7 % model.vocab_size
    prompt, nodes = tokens[:PREFIX], tokens[PREFIX:]
    ordinary = model.fresh()
    ordinary.prefill(prompt)
    expected = ordinary.run(nodes, PARENTS).logits
    chain = tuple(range(-1, len(PARENTS) - 1))
    ordinary.prefill(prompt)
    effect = _error(net, ordinary.run(nodes, chain).logits, expected)
    compiled.prefill(prompt)
    outputs = [compiled.run(nodes, PARENTS).logits]
    compiled.prefill(prompt)
    outputs.append(
        torch.cat(
            [compiled.run(nodes[begin:end], PARENTS[:end], begin).logits for begin, end in LEVELS]
        )
    )
    compiled.prefill(prompt[:1])
    ordinary.prefill(prompt[:1])
    found, truth = (each.run(nodes[:1], (-1,)).logits for each in (compiled, ordinary))
    error = max(
        *(_error(net, logits, expected) for logits in outputs),
        _error(net, found, truth),
        _error_behind_text(ordinary, compiled),
    )
    tolerance = model.finding.tolerance
    if not error <= min(tolerance, effect / 4):
        raise UnsupportedModel(
            f"{model.model.config.model_type} models: logits of a compiled pass differ from those of an "
            f"ordinary one by {error:.2g} of their norm ({tolerance:.2g} is allowed in "
            f"{model.model.dtype}; ignoring the tree changes them by {effect:.2g})"
        )


def _error_behind_text(ordinary: TransformersModel, compiled: TransformersModel) -> float:
    """The largest error of a node of a large tree after a longer prompt."""
    config = ordinary.model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None) or MOST_PROMPT_TOKENS
    rows = min(window + 8, MOST_PROMPT_TOKENS, ordinary.max_length - len(LARGE_TREE))
    if rows < 1:
        return 0.0
    tokens = torch.arange(rows + len(LARGE_TREE), device=ordinary.device) * 7 % ordinary.vocab_size
    outputs = []
    for model in (ordinary, compiled):
        model.prefill(tokens[:rows])
        outputs.append(model.run(tokens[rows:], LARGE_TREE).logits)
    return _error(ordinary.model, outputs[1], outputs[0])


def _error(net: PreTrainedModel, found: Float[Tensor, "N V"], truth: Float[Tensor, "N V"]) -> float:
    """The largest error of a row, over the tokens that the model has rows for."""
    return float(errors(of_its_tokens(net, found), of_its_tokens(net, truth)).max())
