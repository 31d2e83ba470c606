"""What is known of a pair before its weights are loaded."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase as Tokenizer

from treespec.errors import about
from treespec.models.decoder_layers import stated_layers
from treespec.models.encoder_source import require_source
from treespec.models.pair_places import (
    draft_source,
    locate_pair,
    other_tokenizer_of,
    require_decoder,
)
from treespec.models.shared_tokens import SharedTokens, shared_tokens
from treespec.models.some_tokens import Intersection
from treespec.models.source import Place, Source, find, read_config, require_weights
from treespec.models.support import context_length, source_length


@dataclass(frozen=True)
class ModelOutline:
    """The limits that a model's configuration states.

    Args:
        max_length: number of positions in the model's context.
        vocab_size: width of its logits.
        layer_count: number of decoder layers; 0 if there is no model.
        start_tokens: that begin the text of an encoder-decoder; empty for a decoder.
        source_length: number of tokens that the encoder of an encoder-decoder takes.
        own_vocab_size: number of the target's tokens that it has logits of.
        shared: the tokens that target and draft both know; None for a draft of the target's tokenizer.
    """

    max_length: int
    vocab_size: int
    layer_count: int
    start_tokens: tuple[int, ...] = ()
    source_length: int = 0
    own_vocab_size: int = 0
    shared: SharedTokens | None = None

    @property
    def needs_source(self) -> bool:
        """Whether it is an encoder-decoder."""
        return bool(self.start_tokens)


@dataclass(frozen=True)
class PairOutline:
    """What is known of a pair before its weights are loaded.

    Args:
        target: the target's limits.
        draft: the draft's limits, its vocabulary cut or padded to the target's.
        tokenizer: the target's tokenizer.
        others: limits of further draft models, by folder or hub id.
    """

    target: ModelOutline
    draft: ModelOutline
    tokenizer: Tokenizer = field(repr=False)
    others: Mapping[str, ModelOutline] = field(default_factory=dict)

    def require_source(self, source: Sequence[int]) -> None:
        """Refuse a source that an encoder of these models cannot read; see `Pair.require_source`."""
        for model in (self.target, self.draft, *self.others.values()):
            if model.needs_source:
                require_source(source, model.source_length, model.own_vocab_size)


def outline_pair(
    name_or_target: Source, draft: Source | None = None, *, other_tokenizer: bool = False
) -> PairOutline:
    """Inspect a pair in seconds and without its memory: read all that `load_pair` reads but the weights.

    Args:
        name_or_target: as in `load_pair`.
        draft: as in `load_pair`.
        other_tokenizer: as in `load_pair`.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel: see `load_pair`; also if a file of local weights is
            missing or truncated.
    """
    target_place, draft_place, tokenizer = locate_pair(name_or_target, draft)
    with about("target"):
        target = _outline(target_place)
    if draft_place is None:
        return PairOutline(target, ModelOutline(sys.maxsize, target.vocab_size, 0), tokenizer)
    with about("draft"):
        require_decoder(draft_place, target.needs_source)
        draft_limits = _draft_outline(draft_place, target.vocab_size, tokenizer, other_tokenizer)
    return PairOutline(target, draft_limits, tokenizer)


def outline_with_drafts(
    outline: PairOutline, names: Iterable[str], *, other_tokenizer: bool = False
) -> PairOutline:
    """Add further draft models to an outline: read all that `with_drafts` reads but the weights.

    Args:
        outline: the outline of the pair.
        names: folders or hub ids of the draft models.
        other_tokenizer: as in `load_pair`.

    Raises:
        LoadError, TokenizerMismatch, UnsupportedModel: see `outline_pair`.
    """
    width, tokenizer = outline.target.vocab_size, outline.tokenizer
    drafts = {}
    with about("draft"):
        for name in names:
            place = find(draft_source(name))
            require_decoder(place, outline.target.needs_source)
            drafts[name] = _draft_outline(place, width, tokenizer, other_tokenizer)
    return replace(outline, others={**outline.others, **drafts})


def _draft_outline(
    place: Place, vocab_size: int, tokenizer: Tokenizer, other_tokenizer: bool
) -> ModelOutline:
    """The limits of a draft model in the ids of the target."""
    other, limits = other_tokenizer_of(tokenizer, place, other_tokenizer), _outline(place)
    if other is None:
        own = min(vocab_size, limits.vocab_size)
        return replace(limits, vocab_size=vocab_size, own_vocab_size=own)
    shared = shared_tokens(tokenizer, other, vocab_size, limits.vocab_size)
    return replace(limits, vocab_size=vocab_size, max_length=Intersection.max_length, shared=shared)


def _outline(place: Place) -> ModelOutline:
    config = read_config(place)
    require_weights(place)
    vocab_size = config.get_text_config(decoder=True).vocab_size
    starts = [getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id")]
    start = next((start for start in starts if start is not None), 0)
    limits = ModelOutline(
        context_length(config), vocab_size, stated_layers(config), own_vocab_size=vocab_size
    )
    if not config.is_encoder_decoder:
        return limits
    return replace(limits, start_tokens=(start,), source_length=source_length(config))
