"""Draft sources without a model, in configs: each is built within its budget, from files that match."""

from types import SimpleNamespace

import pytest

from treespec import draft
from treespec.draft import Datastore, Lookahead, SuffixCounts, TokenRecycling
from treespec.draft.state import tokenizer_digest
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.config.places import inputs_of
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.inputs import require_fits
from treespec.models.outline import outline_pair

TREE = {"kind": "budget", "depth": 4, "size": 8, "branching": 3}
CHAIN = {"kind": "budget", "depth": 4}


@pytest.fixture(scope="module")
def outline():
    return outline_pair("embedded", "none")


@pytest.fixture(scope="module")
def digest(outline):
    return tokenizer_digest(outline.tokenizer)


def experiment(source, shape=TREE, **settings):
    method = {"kind": "tree", "draft": {"source": source, **settings}, "shape": shape}
    data = {
        "name": "sources",
        "models": {"draft": "none"},
        "prompts": {"kind": "embedded", "count": 1},
        "max_new_tokens": 8,
        "samplings": [{"temperature": 0}, {"temperature": 1}],
        "methods": [method],
    }
    return build(validated("test.yaml", data))


def made(outline, *given, **settings):
    built = experiment(*given, **settings)
    require_fits(built, outline, [])
    (method,) = built.methods
    assert [str(choice.rule) for choice in method.choices.values()] == ["greedy", "onehot"]
    return method, method.drafter(outline, "T=1")


@pytest.fixture(scope="module")
def files(tmp_path_factory, outline, digest):
    """A text, a datastore and past texts, in the tokens of the embedded pair."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text.py").write_text("for i in range(10):\n    print(i)\n")
    ids = outline.tokenizer.encode((folder / "text.py").read_text())
    made_with = {"vocab_size": outline.target.vocab_size, "tokenizer": digest}
    Datastore.build(folder / "store", [ids], **made_with)
    past = SuffixCounts()
    past.read(ids)
    past.end()
    past.save(folder / "past", **made_with)
    past.read(ids[:3])
    past.end()
    past.save(folder / "two texts", **made_with)
    return folder


def test_each_is_made_within_its_budget(outline, files):
    settings = {
        "lookup": {},
        "documents": {"files": [str(files / "text.py")]},
        "suffix_tree": {"warm": str(files / "past")},
        "retrieval": {"datastore": str(files / "store")},
    }
    for source, given in settings.items():
        method, drafter = made(outline, source, **given)
        assert (drafter.limits.depth, drafter.limits.size, drafter.limits.branching) == (4, 8, 3)
        assert drafter.max_depth == method.max_depth == 4
        assert method.name.startswith(source)
        assert made(outline, source, CHAIN, **given)[1].limits.branching == 1
    assert made(outline, "documents", files=None)[1].limits.size == 8  # the prompt is the document
    recycling = made(outline, "token_recycling")[1]
    assert recycling.shape.size == 8
    assert max(map(len, recycling.shape.children)) == 3
    for source, kind in {
        "suffix_automaton": draft.SuffixAutomaton, "jacobi": draft.Jacobi
    }.items():  # fmt: skip
        drafter = made(outline, source, CHAIN)[1]
        assert isinstance(drafter, kind)
        assert drafter.max_depth == 4


def test_warm_state_is_that_of_the_file(outline, files, tmp_path, digest):
    past = made(outline, "suffix_tree", warm=str(files / "past"))[1].past
    assert past is made(outline, "suffix_tree", warm=str(files / "past"))[1].past  # counted once
    two = str(files / "two texts")
    (latest,) = made(outline, "suffix_tree", warm=two, most_tokens=4)[1].past.texts
    assert len(latest) == 3
    assert len(made(outline, "suffix_tree", warm=two)[1].past.texts) == 2
    with pytest.raises(
        ConfigError,
        match="most_tokens = 4 limits past texts, but there are none: name their file as warm",
    ):
        experiment("suffix_tree", most_tokens=4)
    size = outline.target.vocab_size
    table, pool = TokenRecycling(table={1: [2, 3]}), Lookahead(1, 2, 1, pool={1: [(2,)]})
    for drafter in (table, pool):
        drafter._restart()
        drafter.save(tmp_path / type(drafter).__name__, vocab_size=size, tokenizer=digest)
    warm = made(outline, "token_recycling", warm=str(tmp_path / "TokenRecycling"))[1]
    assert warm._initial == {1: [2, 3]}
    settings = {"window": 1, "ngram": 2, "guesses": 1, "warm": str(tmp_path / "Lookahead")}
    assert made(outline, "lookahead", **settings)[1]._initial == {1: [(2,)]}


def test_warm_state_of_another_target_is_refused_before_the_first_token(outline, tmp_path, digest):
    """A target with the same tokens but other weights; files of text sources depend on tokens only."""
    limits = vars(outline.target)
    target = SimpleNamespace(**limits, fingerprint="B of 2 parameters, weights 02")
    loaded = SimpleNamespace(
        target=target, draft=outline.draft, tokenizer=outline.tokenizer, others={}
    )
    made_with = {"vocab_size": target.vocab_size, "tokenizer": digest}
    for name, drafter, settings in (
        ("token_recycling", TokenRecycling(table={1: [2, 3]}), {}),
        (
            "lookahead",
            Lookahead(1, 2, 1, pool={1: [(2,)]}),
            {"window": 1, "ngram": 2, "guesses": 1},
        ),
    ):
        own, other = tmp_path / f"{name} own", tmp_path / f"{name} other"
        drafter.save(own, **made_with, target=target.fingerprint)
        drafter.save(other, **made_with, target="A of 1 parameters, weights 01")
        assert made(loaded, name, warm=str(own), **settings)[1]._initial
        with pytest.raises(ConfigError) as refused:
            made(loaded, name, warm=str(other), **settings)
        said = str(refused.value)
        assert said.startswith(f"methods[0].draft: {other}: learned from another target (A of 1 ")
        assert target.fingerprint in said
        assert made(outline, name, warm=str(other), **settings)[1]._initial  # no weights to tell by


def test_lookahead_needs_room_for_its_trees(outline):
    wide = {"kind": "budget", "depth": 9, "size": 56, "branching": 11}
    assert made(outline, "lookahead", wide)[1].size == 56
    for key, value in (("depth", 8), ("size", 55), ("branching", 10)):
        with pytest.raises(ConfigError, match=r"depth: 9, branching: 11") as refused:
            made(outline, "lookahead", wide | {key: value})
        assert "methods[0].draft: lookahead with window 7" in str(refused.value)


def test_files_of_others_are_refused_before_the_first_token(outline, files, tmp_path):
    other = {"vocab_size": 10, "tokenizer": "another"}
    past = SuffixCounts()
    past.read([1])
    past.end()
    past.save(tmp_path / "past", **other)
    Datastore.build(tmp_path / "store", [[1]], **other)
    Datastore.build(tmp_path / "of no tokenizer", [[1]], vocab_size=10)
    past.save(tmp_path / "past of none", vocab_size=10)
    table = TokenRecycling()
    table._restart()
    table.save(tmp_path / "large", vocab_size=10**6)
    (tmp_path / "cut").write_bytes((files / "store").read_bytes()[:-1])
    for said, source, settings in (
        ("another tokenizer", "suffix_tree", {"warm": str(tmp_path / "past")}),
        ("another tokenizer", "retrieval", {"datastore": str(tmp_path / "store")}),
        (
            "does not state the tokenizer",
            "suffix_tree",
            {"warm": str(tmp_path / "past of none")},
        ),
        (
            "does not state the tokenizer",
            "retrieval",
            {"datastore": str(tmp_path / "of no tokenizer")},
        ),
        ("truncated", "retrieval", {"datastore": str(tmp_path / "cut")}),
        ("not a datastore", "retrieval", {"datastore": str(files / "text.py")}),
        ("vocabulary of 1000000", "token_recycling", {"warm": str(tmp_path / "large")}),
        ("a token recycling table, but", "suffix_tree", {"warm": str(tmp_path / "large")}),
        ("No such file", "documents", {"files": [str(tmp_path / "none")]}),
        ("sorted by 32", "retrieval", {"datastore": str(files / "store"), "longest": 30}),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            made(outline, source, **settings)
        assert str(refused.value).startswith("methods[0].draft: ")


def test_files_that_sources_read_are_inputs(files, tmp_path):
    """So that no run writes to, or clears, a folder that contains one."""
    text, store = str(files / "text.py"), str(files / "store")
    found = {}
    for source, given in {
        "documents": {"files": [text, text]},
        "retrieval": {"datastore": store},
        "suffix_tree": {"warm": str(files / "past")},
    }.items():
        found |= dict(inputs_of(experiment(source, **given).config))
        assert dict(inputs_of(experiment("documents", files=[str(tmp_path / "x")]).config)) == {}
    assert {key: path.name for key, path in found.items()} == {
        "methods[0].draft.files": "text.py",
        "methods[0].draft.datastore": "store",
        "methods[0].draft.warm": "past",
    }
