"""The probe: does a model compute on a tree, by a given route, what it computes in sequence?

transformers does not guarantee that a model passes keyword arguments on to its attention, respects
`position_ids`, or states its window to the attention and not only to its mask. So every model is tested
once, when it is wrapped, with a prompt of 3 tokens and a bushy tree of 8 nodes behind it:

1. Truth: the *plain* model, its own attention, no cache, each branch as a text of its own (one batch).
   One further text holds the tree's nodes in row order: what a model that ignores the tree computes.
2. The prompt by our route. On our own attention, every layer must have called it once, with the window
   that the model requested from transformers' mask functions.
3. The tree by our route. For every node

       error = |logits - truth| / |truth|        (2-norms, rows centred)

   must be within `TOLERANCE[dtype]`, and at most a quarter of the largest difference that ignoring the
   tree makes. So rounding in bfloat16 passes, and a wrong mask does not.
4. A second tree: a path of the first with other siblings, and fewer nodes. The rows of the path must be
   those of the first tree, within the same bounds.

Before that, each layer is examined in a pass over 4 tokens (`models.separate_rows`): a model in which one
row depends on others is refused, such as one whose activations are quantised with one scale for all rows.
In models with quantised products, the rounding of activations makes an error by itself. It is measured, by
the truth computed in another way, and allowed where it exceeds `TOLERANCE`.

Five forward passes over at most 55 tokens, and one more for quantised models. An encoder-decoder does all
this behind a source of 5 tokens, and by the second route only: its own attention under our mask.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from attention_masks.errors import AttentionMaskError
from attention_masks.tree_attention import IMPLEMENTATIONS
from attention_masks.tree_attention.triton import available
from treespec.errors import TreespecError, Unavailable, UnsupportedModel, said
from treespec.models.cache import LayerShape
from treespec.models.encoder_decoder import encoded, usual_runner
from treespec.models.logit_errors import errors, of_its_tokens
from treespec.models.recorder import NOT_ASKED, Recorder
from treespec.models.routes import OwnAttention, OwnMask, Route, plain_implementation
from treespec.models.runner import TreeRunner
from treespec.models.separate_rows import examine, recomputed
from treespec.models.support import (
    context_length,
    embedding_count,
    local_attention,
    refusal,
)

PREFIX = 3
SOURCE = 5
"""Tokens of the source of an encoder-decoder model."""
PARENTS = (-1, 0, 0, 1, 2, 1, 0, 6)
OTHER_PARENTS = (-1, 0, 0, 2, 2)
SHARED = {0: 0, 2: 1, 3: 3}
"""Nodes of the second tree, and the nodes of the first with the same path and tokens."""
BRANCHES = ((0, 1, 3), (0, 2, 4), (0, 1, 5), (0, 6, 7))
TOKENS = PREFIX + len(PARENTS)
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}


@dataclass(frozen=True)
class Finding:
    """What the probe found out.

    Args:
        route: how trees enter the model.
        plain: attention implementation that transformers would run the model with.
        layout: layout of its cache.
        vocab_size: width of its logits.
        error: largest error of a node, as defined above.
        effect: largest difference that ignoring the tree makes.
        tolerance: the largest error that rounding explains in this model.
    """

    route: Route
    plain: str
    layout: tuple[LayerShape | None, ...]
    vocab_size: int
    error: float
    effect: float
    tolerance: float


@torch.inference_mode()
def probe(model: PreTrainedModel, attention: str = "auto") -> Finding:
    """Find the route by which a model runs trees correctly, and leave the model set to it.

    Args:
        model: a model in eval mode.
        attention: "auto" tries our attention, then the model's own under our mask; "transformers" tries
            only the latter; the name of an implementation of `attention_masks` tries only our attention
            with that implementation.

    Raises:
        Unavailable: if there is no attention of this name, or it does not run on this device.
        UnsupportedModel: with the model's type and what is wrong with each route.
    """
    require_attention(attention, model.device)
    model_type = model.config.model_type
    reason = refusal(model)
    if reason is None and context_length(model.config) < TOKENS:
        reason = (
            f"its context is {context_length(model.config)} tokens, fewer than the probe's {TOKENS}"
        )
    if reason is not None:
        raise UnsupportedModel(f"{model_type} models cannot verify trees: {reason}")
    two_parts = model.config.is_encoder_decoder
    if two_parts and attention not in ("auto", "transformers"):
        raise UnsupportedModel(
            f"{model_type} models cannot verify trees with attention={attention!r}: encoder-decoders run "
            "them by their own attention under our mask ('auto' or 'transformers')"
        )
    plain = plain_implementation(model)
    routes: list[Route] = []
    if attention != "transformers" and not two_parts:
        routes.append(OwnAttention(attention))
    if attention in ("auto", "transformers"):
        routes.append(OwnMask(plain, model.dtype, model.device))

    _switch(model, plain)
    tokens = _tokens(model)
    try:
        truth, ignoring_tree = _truth(model, tokens)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:
        raise UnsupportedModel(
            f"{model_type} model: it cannot even run a plain pass over {TOKENS} tokens "
            f"({_why(problem)}); check its config and weights"
        ) from problem
    if not torch.isfinite(truth).all():
        raise UnsupportedModel(
            f"{model_type} model: it returns NaN or infinite logits; check its weights"
        )
    effect = _error(model, ignoring_tree, truth)
    tolerance = _tolerance(model, tokens, truth)
    reasons: list[str] = []
    last: Exception | None = None
    for route in routes:
        name = (
            "with our attention"
            if isinstance(route, OwnAttention)
            else "with its own attention under our mask"
        )
        try:
            _switch(model, route.implementation)
            runner = usual_runner(model)(model, route)
            if two_parts:
                runner.source = encoded(model, tokens[:SOURCE])
            _try_prompt(runner, tokens[:PREFIX])
            logits = runner.run(tokens[PREFIX:], PARENTS).logits
            error = _error(model, logits, truth)
            _judge(error, effect, model.dtype, tolerance)
            _require_same_rows(runner, tokens, logits, min(tolerance, effect / 4))
            layout = runner.cache.layout
            return Finding(route, plain, layout, truth.shape[-1], error, effect, tolerance)
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:  # whatever the error, the model does not work by this route
            last = problem
            reasons.append(f"{name}: {_why(problem)}")
    _switch(model, plain)
    asked = (
        "" if attention == "auto" else f" with attention={attention!r} ('auto' tries all routes)"
    )
    raise UnsupportedModel(
        f"{model_type} models cannot verify trees{asked}; " + "; ".join(reasons)
    ) from last


def _why(problem: Exception) -> str:
    ours = isinstance(problem, TreespecError | AttentionMaskError)
    return str(problem) if ours else said(problem) or "its code fails on it"


def require_attention(name: str, device: torch.device) -> None:
    """Refuse an attention that is not available, whatever the model."""
    if name in ("auto", "transformers"):
        return
    if name not in IMPLEMENTATIONS:
        known = ", ".join(map(repr, ("auto", "transformers", *IMPLEMENTATIONS)))
        raise Unavailable(f"attention={name!r} is not known: choose one of {known}")
    if name == "triton" and (missing := available(device)) is not None:
        raise Unavailable(f"attention='triton' cannot run here: {missing}")


def _switch(model: PreTrainedModel, implementation: str) -> None:
    if model.config._attn_implementation == implementation:
        return
    if not model._can_set_attn_implementation():
        raise UnsupportedModel("it does not look up attention functions in AttentionInterface")
    model.set_attn_implementation(implementation)


def _tokens(model: PreTrainedModel) -> Tensor:
    """Distinct tokens from the middle of the vocabulary, if it is large enough."""
    size = embedding_count(model)
    step = max(size * 3 // 4 // TOKENS, 1)
    return (torch.arange(TOKENS) * step + size // 8).remainder(size).to(model.device)


def _truth(
    model: PreTrainedModel, tokens: Tensor
) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
    """Logits after each node, computed in sequence, and in row order as if there were no tree.

    Texts are padded on the right, which a causal model does not see.
    """
    prompt, nodes = tokens[:PREFIX], tokens[PREFIX:]
    texts = [torch.cat([prompt, nodes[list(branch)]]) for branch in BRANCHES]
    padded = [torch.cat([text, text[-1:].expand(TOKENS - len(text))]) for text in texts]
    ids = torch.stack([*padded, tokens])
    logits = _plain_logits(model, tokens, ids)
    truth = torch.empty_like(logits[-1, PREFIX:])
    for row, branch in zip(logits, BRANCHES, strict=False):
        truth[list(branch)] = row[PREFIX : PREFIX + len(branch)]
    return truth, logits[-1, PREFIX:]


def _plain_logits(model: PreTrainedModel, tokens: Tensor, ids: Tensor) -> Float[Tensor, "B T V"]:
    """Logits of the plain model; of an encoder-decoder, behind the first tokens as a source."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=ids, use_cache=False).logits
    sources = tokens[:SOURCE].expand(len(ids), SOURCE)
    return model(input_ids=sources, decoder_input_ids=ids, use_cache=False).logits


def _error(
    model: PreTrainedModel, found: Float[Tensor, "N V"], truth: Float[Tensor, "N V"]
) -> float:
    """The largest error of a row, over the tokens that the model has rows for."""
    return float(errors(of_its_tokens(model, found), of_its_tokens(model, truth)).max())


def _tolerance(model: PreTrainedModel, tokens: Tensor, truth: Float[Tensor, "N V"]) -> float:
    """The largest error that rounding explains: by the model's dtype, and measured if it is quantised.

    Raises:
        UnsupportedModel: if a layer computes a row from other rows too, or may.
    """
    layers = examine(model, lambda: _plain_logits(model, tokens, tokens[None, : PREFIX + 1]))
    if layers.mixing is not None:
        raise UnsupportedModel(
            f"{model.config.model_type} model: its layer {layers.mixing} computes a row from other rows of "
            "a pass too, as a quantisation of activations with one scale for all rows does, and the logits "
            "of a node would depend on its siblings: quantise activations with a scale for each row (with "
            "bitsandbytes also llm_int8_threshold: 0), or weights only"
        )
    if layers.unexamined is not None:
        raise UnsupportedModel(
            f"{model.config.model_type} model: its layer {layers.unexamined} has quantised weights, and "
            "whether it computes each row of a pass by itself cannot be tested: load it without "
            "quantisation, or leave this layer out of it"
        )
    tolerance = TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])
    if not layers.products:
        return tolerance
    with recomputed(model):
        otherwise, _ = _truth(model, tokens)
    return max(tolerance, _error(model, otherwise, truth))


def _require_same_rows(
    runner: TreeRunner, tokens: Tensor, logits: Float[Tensor, "N V"], bound: float
) -> None:
    """Check that nodes of one path have the same rows in a tree with other siblings and fewer nodes."""
    nodes = tokens[PREFIX:].flip(0)[: len(OTHER_PARENTS)].clone()
    others, same = [*SHARED], [*SHARED.values()]
    nodes[others] = tokens[PREFIX:][same]
    error = _error(runner.model, runner.run(nodes, OTHER_PARENTS).logits[others], logits[same])
    if not error <= bound:
        raise UnsupportedModel(
            f"the logits of a node differ by {error:.2g} of their norm between two trees in which its path "
            f"is the same ({bound:.2g} is allowed): they depend on its siblings"
        )


def _judge(error: float, effect: float, dtype: torch.dtype, tolerance: float | None = None) -> None:
    if tolerance is None:
        tolerance = TOLERANCE.get(dtype, TOLERANCE[torch.bfloat16])
    if not error <= tolerance:
        raise UnsupportedModel(
            f"its logits on a tree differ from sequential decoding by {error:.2g} of their norm "
            f"({tolerance:.2g} is allowed in {dtype}; ignoring the tree changes them by {effect:.2g})"
        )
    if error > effect / 4:
        raise UnsupportedModel(
            f"rounding in {dtype} changes its logits by {error:.2g} of their norm and ignoring the "
            f"tree by {effect:.2g}, so a wrong mask could not be told from a right one: "
            "load it in float32"
        )


def _try_prompt(runner: TreeRunner, prompt: Tensor) -> None:
    """Prefill. On our attention, check that every layer calls it once and states its window."""
    model, route = runner.model, runner.route
    if not isinstance(route, OwnAttention):
        if limit := local_attention(model.config):
            raise UnsupportedModel(f"its layers do not all see the whole text ({limit})")
        runner.prefill(prompt)
        return
    recorder = Recorder(route, context_length(model.config))
    with recorder.asked_for_masks():
        TreeRunner(model, recorder, ()).prefill(prompt)
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    called = sorted(layer for layer, _, _ in recorder.calls)
    if called != list(range(layers)):
        raise UnsupportedModel(
            f"its {layers} layers should call the attention once each, but the calls came from "
            f"layers {called}"
            if called
            else f"none of its {layers} layers called the attention"
        )
    limit = local_attention(model.config)
    for layer, window, asked in recorder.calls:
        if isinstance(asked, str):
            raise UnsupportedModel(asked)
        if asked is NOT_ASKED and limit:
            raise UnsupportedModel(f"layer {layer} does not state its window ({limit})")
        if asked is not NOT_ASKED and asked != window:
            raise UnsupportedModel(
                f"layer {layer} states window {window} to the attention, but {asked} to its mask"
            )
    runner.prefill(prompt)
