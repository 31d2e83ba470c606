"""Drafts of another tokenizer, with the embedded tokenizer, SmolLM2's where it was fetched, and others."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from other_tokenizers import metaspace, save_tiny_model, unigram
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from treespec import (
    Law,
    Sampling,
    TokenTree,
    TorchCoins,
    TreeShape,
    decode,
    generate,
    load_pair,
    verify,
)
from treespec.draft import ModelDrafter, PromptLookup, StringDrafter, make_drafter
from treespec.draft.strings import HELD
from treespec.errors import InvalidPrompt, TokenizerMismatch, UnsupportedModel
from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.errors import PromptError
from treespec.experiments.run.inputs import require_fits
from treespec.experiments.run.prompts import Prompt
from treespec.models.codec import CUT, Codec, codec_of, token_bytes
from treespec.models.known_models import folder_of
from treespec.models.outline import outline_pair
from treespec.models.pair_places import EMBEDDED, embedded_folder
from treespec.models.shared_tokens import shared_tokens
from treespec.models.text_follower import TextFollower
from treespec.models.variants.trimmed import most_frequent
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget

TEXT = (
    "The naïve 🙂👩‍💻 déjà vu  doesn't\n\n    def f(x):\n\treturn 12345  日本語 "
    "and the end of the text. "
)
GREEDY = Sampling(temperature=0.0)


OURS = {"metaspace": metaspace, "unigram": cache(unigram)}


def tokenizer(name: str):
    """One of the tokenizers, by name."""
    if name in OURS:
        return OURS[name]()
    folder = embedded_folder() / "target" if name == EMBEDDED else folder_of(name)
    if not (folder / "tokenizer.json").exists():
        pytest.skip(f"{name} was not fetched")
    return AutoTokenizer.from_pretrained(folder)


PAIRS = [
    (EMBEDDED, "smollm2"), ("smollm2", EMBEDDED), (EMBEDDED, "metaspace"), ("metaspace", EMBEDDED),
    (EMBEDDED, "unigram"), ("unigram", EMBEDDED), ("smollm2", "unigram"), ("unigram", "smollm2"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_shared_tokens_are_the_same_bytes(target: str, draft: str) -> None:
    pair = tokenizer(target), tokenizer(draft)
    shared = shared_tokens(*pair, len(pair[0]), len(pair[1]))
    of_target, of_draft = map(token_bytes, pair)
    for ours, theirs in zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True):
        assert of_target[ours] == of_draft[theirs]
    assert len(shared.target_ids) > 40
    assert not set(pair[0].all_special_ids) & set(shared.target_ids.tolist())
    # A token that only the target knows is several of the draft's, with the same bytes.
    for token in pair[0].encode(TEXT, add_special_tokens=False):
        read = b"".join(of_draft.get(i, b"") for i in shared.pieces(token))
        assert read == of_target[token]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_growing_text_is_followed_as_if_it_were_encoded_at_once(target: str, draft: str) -> None:
    """Earlier pieces change as the text grows, and characters come in parts."""
    source, codec = codec_of(tokenizer(target)), codec_of(tokenizer(draft))
    ids = source.ids((TEXT + "<s>x</s> <|im_end|><unk>y") * 3)
    follower, changed, partial = TextFollower(source, codec), 0, 0
    for token in ids:
        before = list(follower.ids)
        follower.append([token])
        assert follower.ids == (
            [*codec.opening, *codec.ids(follower.text)] if follower.text else []
        )
        changed += follower.ids[: len(before)] != before
        partial += not follower.whole
    assert follower.text == source.decode(ids)
    assert follower.whole
    assert changed or draft == "metaspace"  # whose pieces of this text are single letters
    assert partial or target == "smollm2"


class Says:
    """A source that drafts one string, as its codec splits it."""

    max_depth, max_length = 40, 10_000

    def __init__(self, codec: Codec, says: str) -> None:
        self.ids = codec.ids(says)

    def prefill(self, tokens):
        self.root = int(tokens[-1])

    def commit(self, step):
        self.root = step.verdict.bonus

    def propose(self, coins):
        return self.propose_below([], coins)

    def propose_below(self, tokens, coins):
        root = tokens[-1] if tokens else self.root
        shape = TreeShape.chain(len(self.ids))
        return TokenTree.of(shape, [root, *self.ids], None, Law.DETERMINISTIC, torch.device("cpu"))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize(
    ("text", "continued"),
    [("in the end", " and the end"), ("the e", "nd."), ("over the", "n and"), ("the", "\n\nend")],
)
def test_a_string_is_drafted_in_the_targets_ids(
    target: str, draft: str, text: str, continued: str
) -> None:
    """Spaces at the beginning of a draft stay, and none come in."""
    source, codec = codec_of(tokenizer(target)), codec_of(tokenizer(draft))
    # A continuation such as " and", whose first space a tokenizer of `▁` adds by itself.
    says = Says(codec, continued.removeprefix(" ") if draft in OURS else continued)
    if draft in OURS and not continued.startswith(" "):
        says.ids = codec.ids("x" + continued)[len(codec.ids("x")) :]
    drafter = StringDrafter(says, source, codec, size=30, depth=20)
    ids = source.ids(text)
    drafter.prefill(torch.tensor(ids))
    tree = drafter.propose(TorchCoins(0))
    assert tree.shape.is_chain
    assert source.decode([*ids, *tree.token_ids[1:]]) == text + continued


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_special_tokens_are_no_text(target: str, draft: str) -> None:
    """Text that spells one is split, and a draft ends before one; what opens a text stands before it."""
    source, own = codec_of(tokenizer(target)), tokenizer(draft)
    codec = codec_of(own)
    for token in codec.special.values():
        assert not codec.special.keys() & {*codec.ids(f"the {token} end")}
    assert [*codec.opening, *codec.ids("the end")] == own("the end").input_ids
    says = Says(codec, "and the")
    said = codec.decode(says.ids)
    says.ids += [own.eos_token_id, *codec.ids("end")]
    drafter = StringDrafter(says, source, codec, size=30, depth=20)
    drafter.prefill(torch.tensor(source.ids("in the ")))
    assert source.decode(drafter.propose(TorchCoins(0)).token_ids[1:]).strip() == said.strip()


def test_a_text_in_other_ids_is_opened_as_its_tokenizer_does() -> None:
    target, draft = tokenizer(EMBEDDED), tokenizer("metaspace")
    shared = shared_tokens(target, draft, len(target), len(draft))
    read = shared.read(target.encode("in the end"))
    assert read == draft("in the end").input_ids
    assert read[0] == draft.bos_token_id


def test_a_piece_is_preferred_to_a_byte_token() -> None:
    target, draft = tokenizer(EMBEDDED), tokenizer("metaspace")
    shared = shared_tokens(target, draft, len(target), len(draft))
    of_target = {text: i for i, text in token_bytes(target).items()}
    assert shared.pieces(of_target[b"a"]) == (draft.convert_tokens_to_ids("a"),)
    assert shared.pieces(of_target[b"%"]) == (draft.convert_tokens_to_ids("<0x25>"),)


def emitting(token: int) -> Step:
    """A step without drafts."""
    root = TokenTree.of(TreeShape.chain(0), [1], None, Law.DETERMINISTIC, torch.device("cpu"))
    return Step(root, Verdict((0,), token), Scores(torch.empty(1, 0)), (token,))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_parts_of_characters_are_neither_drafted_nor_drafted_after(target: str, draft: str) -> None:
    source, codec = codec_of(tokenizer(target)), codec_of(tokenizer(draft))
    says = Says(codec, "and 日")
    says.ids.pop()
    drafter = StringDrafter(says, source, codec, size=30, depth=20)
    drafter.prefill(torch.tensor(source.ids("the ")))
    text = source.decode(drafter.propose(TorchCoins(0)).token_ids[1:])
    assert "and" in text
    assert CUT not in text
    ids = source.ids("the 𓂀")  # a piece of no tokenizer
    begun = next(i for i in range(1, len(ids)) if source.decode(ids[:i]).endswith(CUT))
    drafter.prefill(torch.tensor(ids[: begun - 1]))
    for i, token in enumerate(ids[begun - 1 :], start=begun):
        drafter.commit(emitting(token))
        assert (drafter.propose(TorchCoins(0)).shape.size > 1) == (i == len(ids))


class Given(Says):
    """It also writes down the text that it was given."""

    def prefill(self, tokens):
        super().prefill(tokens)
        self.text = tokens.tolist()

    def commit(self, step):
        super().commit(step)
        self.text += step.emitted_ids


def letters(text: str) -> tuple[list[int], list[int]]:
    return [ord(letter) for letter in text], [*range(len(text))]


def in_pairs(text: str) -> tuple[list[int], list[int]]:
    """Pairs of letters from the end: each further letter changes all earlier pieces."""
    starts = [0] * (len(text) % 2) + [*range(len(text) % 2, len(text), 2)]
    pieces = [text[:1]] * (len(text) % 2) + [text[i : i + 2] for i in starts[len(text) % 2 :]]
    return [sum(ord(c) << 8 * i for i, c in enumerate(piece)) for piece in pieces], starts


def test_earlier_pieces_that_change_are_given_anew() -> None:
    """To a source of real tokenizers, and to one of a splitting that changes everywhere."""
    toy = Codec(lambda ids: "".join(map(chr, ids)), letters)
    pairs = Codec(
        lambda ids: "".join(chr(i & 255) + chr(i >> 8) * (i > 255) for i in ids), in_pairs
    )
    codecs = [(toy, pairs), *((codec_of(tokenizer(a)), codec_of(tokenizer(b))) for a, b in PAIRS)]
    for source, codec in codecs:
        ids, says = source.ids("the end of 12345 and the end " * 2), Given(codec, "end")
        drafter = StringDrafter(says, source, codec, size=9, depth=8)
        drafter.prefill(torch.tensor(ids[:20]))
        for token in ids[20:]:
            drafter.commit(emitting(token))
            whole = [*codec.opening, *codec.ids(drafter._text.text)]
            assert says.text == whole[: max(len(whole) - HELD, 1)]


def test_a_draft_that_would_say_something_else_is_left_out() -> None:
    """A line end that would be one piece with that before it, and a piece that changes the text before."""
    plain = Codec(lambda ids: "".join(map(chr, ids)), letters)
    joining = Codec(lambda ids: "".join(map(chr, ids)).replace("ab", "c"), letters)
    spaces, embedded = codec_of(metaspace()), codec_of(tokenizer(EMBEDDED))
    for source, codec, text, says in (
        (spaces, embedded, "the\n", "\nend"),
        (plain, joining, "eea", "bx"),
    ):
        drafter = StringDrafter(Says(codec, says), source, codec, size=9, depth=8)
        drafter.prefill(torch.tensor(source.ids(text)))
        assert drafter.propose(TorchCoins(0)).shape.size == 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny random models with these tokenizers."""
    return {
        name: save_tiny_model(tmp_path_factory.mktemp(name), tokenizer(name), seed=i)
        for i, name in enumerate((EMBEDDED, *OURS))
    }


@pytest.mark.parametrize(
    ("target", "draft"),
    [pair for pair in PAIRS if "smollm2" not in pair] + [("metaspace", "unigram")],
)
def test_greedy_ids_equal_those_of_generate(folders, target: str, draft: str) -> None:
    """Through both ways, and for a text source of another tokenizer."""
    pair = load_pair(folders[target], folders[draft], other_tokenizer=True)
    prompt = pair.tokenizer.encode("in the end and the")
    with pair.target.as_transformers() as model:
        ids = torch.tensor([prompt])
        right = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, pad_token_id=0
        )[0, len(prompt) :].tolist()  # fmt: skip
    shape, shared = TreeShape.expansion([2, 2, 1]), pair.draft.shared
    codecs = shared.target, shared.draft
    drafters = [
        make_drafter(pair.draft, shape, Law.DETERMINISTIC, GREEDY),
        StringDrafter(
            ModelDrafter(pair.draft.inner, shape, Law.DETERMINISTIC, Sampling()),
            *codecs,
            size=9,
            depth=3,
        ),
        StringDrafter(PromptLookup(4, ngram=2), *codecs, size=9, depth=4),
    ]
    for drafter in drafters:
        found = generate(
            pair,
            prompt,
            drafter=drafter,
            verifier=verify.greedy,
            sampling=GREEDY,
            max_new_tokens=24,
        )
        assert list(found.tokens) == right


def test_what_is_refused(folders, tmp_path: Path) -> None:
    pair = folders[EMBEDDED], folders["metaspace"]
    with pytest.raises(TokenizerMismatch, match=r"models\.other_tokenizer: true"):
        load_pair(*pair)
    loaded = load_pair(*pair, other_tokenizer=True)
    with pytest.raises(InvalidPrompt, match="'</s>', a special token of the draft"):
        loaded.draft.prefill(torch.tensor(loaded.tokenizer.encode("a </s> b")))
    with pytest.raises(UnsupportedModel, match="another tokenizer is not trimmed"):
        loaded.draft.of_tokens(torch.arange(8))
    method = {"kind": "tree", "shape": "chain:2"}
    config = Config.model_validate({
        "name": "x", "prompts": {"kind": "tasks"}, "max_new_tokens": 4,
        "samplings": [{"temperature": 0}], "methods": [method],
    })  # fmt: skip
    ids = {text: tuple(loaded.tokenizer.encode(text)) for text in ("a </s> b", "a s b")}
    prompts = [Prompt(i, text, None, ids[text], text, i) for i, text in enumerate(ids)]
    require_fits(build(config), loaded, prompts[1:])
    with pytest.raises(
        PromptError, match=r"^a </s> b, method .*'</s>', a special token of the draft"
    ):
        require_fits(build(config), loaded, prompts)
    foreign = Tokenizer(models.WordLevel({"Ω": 0, "Ψ": 1}, unk_token="Ω"))
    for file in folders["metaspace"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    PreTrainedTokenizerFast(tokenizer_object=foreign).save_pretrained(tmp_path)
    with pytest.raises(TokenizerMismatch, match=rf"draft \('{tmp_path}'\) share no token"):
        outline_pair(folders["metaspace"], tmp_path, other_tokenizer=True)


def test_a_trimmed_draft_has_the_rows_of_its_tokens(folders) -> None:
    pair = load_pair(folders["metaspace"], folders["metaspace"])
    kept = torch.tensor([5, 260, 280])
    whole, trimmed = pair.draft.fresh(), pair.draft.of_tokens(kept).fresh()
    rows = []
    for model in (whole, trimmed):
        model.prefill(torch.tensor([1, 270]))
        rows.append(model.run(torch.tensor([261, 270, 271]), (-1, 0, 0)).logits)
    torch.testing.assert_close(rows[0][:, kept], rows[1][:, kept])
    assert rows[0].shape == rows[1].shape
    assert float(rows[1].softmax(1)[:, kept].sum(1).min()) == pytest.approx(1)
    assert trimmed.inner.model.get_output_embeddings().weight.shape[0] == 3


def test_a_trimmed_draft_keeps_the_greedy_text_of_the_embedded_pair() -> None:
    """Some of its tokens are drafted, and the others drawn by the target alone."""
    pair = load_pair(EMBEDDED)
    prompt = pair.tokenizer.encode("def walk(tree):\n    for node in")
    with pair.target.as_transformers() as model:
        ids = torch.tensor([prompt])
        right = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, pad_token_id=0,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()  # fmt: skip
    assert len(set(right)) > 6
    # Every other token of the text is one that the draft lacks.
    kept = {*range(200)} - {*sorted(set(right))[::2]} | {*sorted(set(right))[1::2]}
    trimmed = pair.draft.of_tokens(torch.tensor(sorted(kept)))
    drafter = make_drafter(trimmed, TreeShape.expansion([3, 2, 1]), Law.DETERMINISTIC, GREEDY)
    steps = decode(
        ModelTarget(pair.target), drafter, verify.greedy, ids[0], sampling=GREEDY, coins=TorchCoins(0),
        max_new_tokens=40,
    )  # fmt: skip
    tokens, drafted, accepted = [], set(), 0
    for step in steps:
        tokens += step.tokens
        drafted |= {*step.tree.token_ids[1:]}
        accepted += step.verdict.accepted
    assert tokens == right
    assert drafted <= kept
    assert accepted > 5


@pytest.mark.slow
def test_a_chat_model_is_drafted_for_in_other_vocabularies() -> None:
    """By the embedded draft, as tokens and as strings, by a head of 6,144 tokens, and by itself trimmed."""
    if not folder_of("smollm2").exists():
        pytest.skip("smollm2 was not fetched")
    pair = load_pair("smollm2", embedded_folder() / "draft", other_tokenizer=True)
    shape = {"kind": "expansion", "branching": [2, 1]}
    drafts: list[dict[str, str]] = [
        {"source": "model"}, {"source": "strings"}, {"source": "eagle3", "model": "smollm2-eagle3"},
    ]  # fmt: skip
    config = Config.model_validate({
        "name": "x", "prompts": {"kind": "tasks"}, "max_new_tokens": 20,
        "models": {"target": "smollm2", "draft": EMBEDDED, "other_tokenizer": True},
        "samplings": [{"temperature": 0}],
        "methods": [{"kind": "tree", "shape": shape, "draft": draft} for draft in drafts],
    })  # fmt: skip
    prompt = pair.tokenizer.encode("def sum_of_squares(values):\n    total = 0\n    for value in")
    ids = torch.tensor([prompt])
    with pair.target.as_transformers() as model:
        right = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, pad_token_id=0
        )[0, len(prompt) :].tolist()  # fmt: skip
    drafters = {method.name: method.drafter(pair, "T=0") for method in build(config).methods}
    frequent = most_frequent(Counter(prompt + right[::2]), 4096, pair.target.own_vocab_size)
    trimmed = pair.target.of_tokens(frequent)
    drafters["trimmed"] = make_drafter(trimmed, TreeShape.chain(3), Law.DETERMINISTIC, GREEDY)
    for name, drafter in drafters.items():
        found = generate(
            pair,
            prompt,
            drafter=drafter,
            verifier=verify.greedy,
            sampling=GREEDY,
            max_new_tokens=20,
        )
        assert list(found.tokens) == right, name
        assert sum(found.accepted_per_step), f"{name}: no draft was accepted"
