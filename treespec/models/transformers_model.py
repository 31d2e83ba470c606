"""Adapter that lets transformers models run the nodes of a tree: decoders, and encoder-decoders."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.checks import token_ids
from treespec.errors import ContextOverflow, InvalidPrompt, UnsupportedModel
from treespec.features import Features
from treespec.kernels import drawn_children
from treespec.models.cache_view import CacheView
from treespec.models.decoder_layers import layer_count
from treespec.models.encoder_decoder import encoded, usual_runner
from treespec.models.encoder_source import require_source
from treespec.models.fingerprint import fingerprint
from treespec.models.packed_weights import PackedWeights
from treespec.models.pass_kinds import EAGER, Passes
from treespec.models.probe import Finding, probe
from treespec.models.routes import OwnAttention
from treespec.models.runner import TreeRunner
from treespec.models.some_tokens import SomeTokens
from treespec.models.support import context_length, embedding_count, source_length
from treespec.models.variants.shortened import shortened
from treespec.models.variants.sublayers import Sublayer, layers_from, require_sublayers
from treespec.models.variants.trimmed import trimmed
from treespec.models.waiting import Nodes, run_or_wait
from treespec.protocols import Decision
from treespec.step import Scores


class TransformersModel:
    """A transformers model with a tree cache (`treespec.protocols.TreeModel`).

    The model is put in eval mode and probed (`treespec.models.probe`): three short passes check that
    trees give the logits of sequential decoding. The model stays set to tree attention; use
    `as_transformers` for plain calls and `generate`.

    Args:
        model: a causal language model, or an encoder-decoder of text, whose decoder runs the trees behind a
            source (`condition`); its dtype and device do not change.
        vocab_size: width of the logits, by default the model's own. Narrower logits are padded with the
            lowest finite number, wider ones are cut: for a pair that shares a tokenizer but pads its
            vocabularies differently. A token id beyond the model's embeddings is read as token 0. Only a
            drafter can get one, if the target draws it from padding that training gave no meaning.
        attention: "auto": our attention with the best implementation for each layer, or, if the model
            does not support it, the model's own attention under our mask. "transformers": only the latter.
            "triton", "sdpa", "two_pass", "flex", "reference": our attention with this implementation of
            `attention_masks`, without a fallback. The choice is meant for trees: on prompts, layers without
            window, softcap and sinks use PyTorch's causal attention whatever the name, except "reference".

    Raises:
        Unavailable: if there is no attention of this name, or it does not run on the model's device.
        UnsupportedModel: if the model cannot run trees exactly, with the reason.

    Not covered: batches, padding, and length-dependent rotary scaling beyond the original context
    (`max_length` ends there). Of encoder-decoders: passes that several texts share, compiled or captured
    passes, hidden states, and skipped layers.
    """

    def __init__(
        self, model: PreTrainedModel, *, vocab_size: int | None = None, attention: str = "auto"
    ) -> None:
        model.eval()
        self.packed = PackedWeights(model)
        """Packed copies of the weights in compiled graphs, including those of shortened models."""
        self._set_up(model, probe(model, attention), vocab_size, usual_runner(model))

    def _set_up(
        self,
        model: PreTrainedModel,
        finding: Finding,
        vocab_size: int | None,
        runner: Callable[..., TreeRunner],
    ) -> None:
        self.model, self.finding, self.make_runner = model, finding, runner
        self.passes, self._reserved = EAGER, 0
        self._shortened: dict[frozenset[Sublayer], TransformersModel] = {}
        self._trimmed: dict[tuple[int, ...], TransformersModel] = {}
        self.gguf: str | None = None
        """The GGUF file that the weights were dequantised from, if any."""
        self._whole: PreTrainedModel | None = None
        """The model whose first layers this model consists of, if any."""
        self.vocab_size = vocab_size or finding.vocab_size
        self.max_length = context_length(model.config)
        self._runner = runner(model, finding.route, finding.layout)
        self._embeddings, self._dtype = embedding_count(model), model.dtype
        self._reads_more = self.vocab_size > self._embeddings

    def fresh(
        self, *, vocab_size: int | None = None, runner: Callable[..., TreeRunner] | None = None
    ) -> "TransformersModel":
        """A model with the same weights and an empty cache of its own; it is not probed again.

        Args:
            vocab_size: width of the logits; by default that of this model.
            runner: makes what runs the passes (`static_pass`, `compiled_runner`); by default as here.
        """
        width = vocab_size or self.vocab_size
        twin = self._twin(self.model, self.finding, width, runner or self.make_runner)
        twin.passes, twin._whole = self.passes, self._whole
        twin._runner.source = self._runner.source
        return twin

    @property
    def needs_source(self) -> bool:
        """Whether it is an encoder-decoder, which runs trees behind a source only."""
        return self.model.config.is_encoder_decoder

    @property
    def start_tokens(self) -> tuple[int, ...]:
        """Token ids that begin the text of an encoder-decoder, as in `generate`; empty for a decoder."""
        if self.needs_source:
            for settings in (self.model.generation_config, self.model.config):
                for name in ("decoder_start_token_id", "bos_token_id"):
                    if isinstance(start := getattr(settings, name, None), int):
                        return (start,)
        return ()

    def condition(self, source: Int[Tensor, " S"]) -> "TransformersModel":
        """An encoder-decoder model with the same weights and a cache of its own, behind this source.

        The source is encoded here, once: models made from the result (`fresh`) share it.

        Args:
            source: token ids for the encoder, at least one, with the end-of-text token that the tokenizer
                adds; on the model's device.

        Raises:
            UnsupportedModel: if the model has no encoder.
            InvalidPrompt: if the source is empty, not a row of token ids of the vocabulary, or longer than
                the encoder takes.
        """
        if not self.needs_source:
            raise UnsupportedModel(
                f"{self.model.config.model_type} models have no encoder: put the source into the prompt"
            )
        self.require_source(source)
        twin = self.fresh()
        twin._runner.source = encoded(self.model, source)
        return twin

    def require_source(self, source: Int[Tensor, " S"]) -> None:
        """Refuse a source that the encoder cannot read.

        Raises:
            InvalidPrompt: see `condition`.
        """
        token_ids("the source", source, InvalidPrompt)
        require_source(source.tolist(), source_length(self.model.config), self._embeddings)

    def _twin(
        self,
        model: PreTrainedModel,
        finding: Finding,
        vocab_size: int,
        runner: Callable[..., TreeRunner],
    ) -> "TransformersModel":
        """A wrapper of a model with these weights, without a probe."""
        twin = object.__new__(type(self))
        twin.packed = self.packed
        twin._set_up(model, finding, vocab_size, runner)
        # A trimmed model has fewer logits, and reads the same ids.
        twin._reads_more |= self._reads_more
        twin.reserve(self._reserved)
        twin._runner.prepare()
        return twin

    @cached_property
    def fingerprint(self) -> str:
        """A name for the weights (`treespec.models.fingerprint`); empty if this process lacks some."""
        return fingerprint(self.model)

    @property
    def layer_count(self) -> int:
        return layer_count(self.model)

    def without(self, skip: Iterable[str | Sublayer]) -> "TransformersModel":
        """A model that skips sublayers, with the same weights, final norm and head.

        It has a cache of its own, which holds the rows of the shortened model. The same set of sublayers
        always gives the same object. Its passes are eager until `choose_passes`
        changes that; compiled graphs share packed copies of weights with those of this model.

        Args:
            skip: sublayers, or their names, such as `attention.3`; an empty set gives a model with equal
                logits.

        Raises:
            InvalidArgument: if the model lacks one of them, or none would be left.
            UnsupportedModel: if models of this architecture cannot skip them.
        """
        if self.needs_source:
            raise UnsupportedModel(
                f"{self.model.config.model_type} models are encoder-decoders, whose layers are not skipped"
            )
        skipped = require_sublayers("skip", skip, self.layer_count)
        if skipped not in self._shortened:
            model, layout = shortened(self.model, self.finding.route, skipped)
            finding = replace(self.finding, layout=layout)
            twin = self._twin(model, finding, self.vocab_size, TreeRunner)
            kept_layers = self.layer_count - len(skipped) // 2
            is_prefix = skipped == {*layers_from(kept_layers, self.layer_count)}
            twin._whole = self.model if is_prefix else None
            self._shortened[skipped] = twin
        return self._shortened[skipped]

    @property
    def own_vocab_size(self) -> int:
        """Number of tokens that the model has logits of."""
        return min(self.finding.vocab_size, self.vocab_size)

    def of_tokens(self, tokens: Int[Tensor, " S"]) -> SomeTokens:
        """A draft that computes logits of these tokens only, with the same weights (arXiv:2502.14856).

        Its passes are eager. The same tokens always give the same weights.

        Args:
            tokens: ids, each once.

        Raises:
            UnsupportedModel: if the head of this model is not a plain matrix, or it is an encoder-decoder.
        """
        if self.needs_source:
            raise UnsupportedModel(
                f"{self.model.config.model_type} models are encoder-decoders, which are not trimmed"
            )
        key = tuple(tokens.tolist())
        if key not in self._trimmed:
            model = trimmed(self.model, tokens)
            finding = replace(self.finding, vocab_size=len(key))
            self._trimmed[key] = self._twin(model, finding, len(key), TreeRunner)
        return SomeTokens(self._trimmed[key], tokens, self.vocab_size)

    def in_cache_of(self, whole: object) -> "TransformersModel | None":
        """This model reading the committed rows of the model whose first layers it consists of.

        Its own rows are those of the tree in progress; `keep` and `prefill` discard them, and never change
        the other model's committed rows.

        Args:
            whole: a model that runs trees; its committed rows are those of the text.

        Returns:
            The model; None if it does not consist of the first layers of `whole`, or if its passes are tied
            to the addresses of a cache of their own (captured passes).
        """
        if not isinstance(whole, TransformersModel) or whole.model is not self._whole:
            return None
        if not self._runner.any_cache:
            return None
        twin = self.fresh()
        twin._runner.cache = CacheView(whole._runner.cache, self.finding.layout)
        return twin

    def run_by(self, runner: Callable[..., TreeRunner], passes: Passes) -> None:
        """Change how passes are run, and empty the cache.

        Args:
            runner: makes what runs the passes.
            passes: description of these passes.
        """
        self.make_runner, self.passes, source = runner, passes, self._runner.source
        self._runner = runner(self.model, self.finding.route, self.finding.layout)
        self._runner.source = source
        self.reserve(self._reserved)

    def reserve(self, rows: int) -> None:
        """Set the initial capacity of caches, so that none grows while a text is timed.

        A cache that grows is copied, and graphs captured with it are lost. The capacity applies to this
        model's cache from the next text on, to models made from it later (`fresh`) and to shortened models
        (`without`). Texts that need more rows still get them.

        Args:
            rows: tokens of the longest text plus nodes of the trees behind it; 0 reserves nothing.
        """
        self._reserved = self._runner.cache.least = rows
        for part in (*self._shortened.values(), *self._trimmed.values()):
            part.reserve(rows)

    def release(self) -> None:
        """Give the memory of the cache back, once a text is over; the next `prefill` allocates it anew."""
        self._runner.release()

    @property
    def runner(self) -> TreeRunner:
        """What runs the passes, with its cache."""
        return self._runner

    @property
    def repeats(self) -> Any:
        """The runner, if it can run several passes as one (`StaticRunner.work`); else None."""
        return self._runner if hasattr(self._runner, "work") else None

    @property
    def readable_tokens(self) -> int | None:
        """Number of tokens that it has embeddings of, if its rows have more; others are read as 0."""
        return self._embeddings if self._reads_more else None

    @property
    def device(self) -> torch.device:
        """The device on which tokens must be."""
        return self.model.device

    @property
    def attention(self) -> str:
        """How trees enter the model: "auto", an implementation's name, or "transformers"."""
        route = self.finding.route
        return route.impl if isinstance(route, OwnAttention) else "transformers"

    @property
    def length(self) -> int:
        return self._runner.length

    @property
    def draws_by_kernel(self) -> bool:
        """Whether kernels can draw and accept from its logits (compiled passes, float32 or bfloat16)."""
        return self.passes.kind == "compiled" and self._dtype in drawn_children.DTYPES

    def lend(self, reads: Features) -> None:
        """From the next `prefill` on, return these features with every pass; a fresh model lends none.

        Compiled passes are compiled anew for features that no text has read before (seconds).

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had.
        """
        self._runner.lend(reads)

    def prefill(
        self, tokens: Int[Tensor, "T"], states: Float[Tensor, "T W"] | None = None
    ) -> Float[Tensor, "T F H"] | None:
        """Forget all rows, run these tokens in one pass and commit their rows; T = 0 only forgets.

        `states`: what a trained head reads beside the tokens (`treespec.draft.trained`). Returns the
        features that are lent of these tokens; None if none are lent.

        Raises:
            ContextOverflow: if there are more tokens than positions.
        """
        self._require_positions(len(tokens))
        return self._runner.prefill(self._embeddable(tokens), states)

    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1; see `treespec.protocols.TreeModel.run`.

        `states`: what a trained head reads beside the tokens.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            ContextOverflow: if a node lies beyond the model's positions.
        """
        if (
            self.length + len(parents) > self.max_length
        ):  # otherwise no depth can exceed the context
            depths = [0]
            for parent in parents[1:]:
                depths.append(depths[parent] + 1)
            self._require_positions(self.length + max(depths) + 1)
        scores = run_or_wait(self, Nodes(self._embeddable(tokens), parents, first, states))
        logits = scores.logits
        missing = self.vocab_size - logits.shape[-1]
        if not missing:
            return scores
        if missing > 0:
            padded = F.pad(logits, (0, missing), value=torch.finfo(logits.dtype).min)
            return Scores(padded, scores.features)
        return Scores(logits[:, : self.vocab_size], scores.features)

    @property
    def joins(self) -> Hashable:
        """Models with equal values share passes in a batch of texts; None if passes run alone."""
        return self._runner.joins

    def run_together(self, parts: Sequence[tuple["TransformersModel", Nodes]]) -> list[Scores]:
        """One pass over nodes of several texts; see `treespec.models.waiting.Joinable`."""
        if len(parts) == 1:
            nodes = parts[0][1]
            read = () if nodes.states is None else (nodes.states,)
            return [self._runner.run(*nodes[:3], *read)]
        return self._runner.run_together([(model._runner, nodes) for model, nodes in parts])

    def keep(self, nodes: Sequence[int]) -> None:
        """Commit the rows of these nodes, a path from node 0 down, and forget all other tree rows.

        Raises:
            InvalidTree: if the nodes are not such a path, or have not been run.
        """
        self._runner.keep(nodes)

    def keep_ahead(self, kept: Int[Tensor, "N D"], decision: Decision) -> None:
        """Move rows by a decision that only the device knows; `keep` follows with what it was.

        `kept`: for each node that can be the last of the path, the nodes to keep, -1 behind them.
        """
        self._runner.keep_ahead(kept, decision)

    @contextmanager
    def as_transformers(self) -> Iterator[PreTrainedModel]:
        """The plain model with its original attention, for `generate` and other baselines.

        Wrappers that share its weights (`fresh`) cannot run inside the context.
        """
        ours = self.finding.route.implementation
        plain = self.finding.plain
        if plain != ours:
            self.model.set_attn_implementation(plain)
        try:
            yield self.model
        finally:
            if plain != ours:
                self.model.set_attn_implementation(ours)

    def _embeddable(self, tokens: Tensor) -> Tensor:
        """The tokens, with 0 for ids beyond the embeddings."""
        if not self._reads_more:
            return tokens
        return torch.where(tokens < self._embeddings, tokens, 0)

    def _require_positions(self, needed: int) -> None:
        if needed > self.max_length:
            raise ContextOverflow(
                f"{needed} positions are needed, but the model's context is {self.max_length}"
            )
