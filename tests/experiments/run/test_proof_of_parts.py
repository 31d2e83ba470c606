"""What proofs of plug-ins cover and remember, and parts that never end or that end the program."""

import pytest

from treespec import TreeShape, plugin_files, plugins, testing
from treespec.draft import growth
from treespec.experiments.config.build import build
from treespec.experiments.config.file import validated
from treespec.experiments.errors import ConfigError
from treespec.experiments.run import proof_of_parts
from treespec.experiments.run.proof_of_parts import require_proved

HEAD = """
import sys
from itertools import repeat
import torch
from treespec import Law, TokenTree, TreeShape, plugins
from treespec.step import Verdict
from treespec.verify import NodeChoice, rrs, rule, top_down
"""
SOURCE = (
    HEAD
    + '''

@plugins.drafter("liar", laws={Law.DETERMINISTIC, Law.IID}, trees="TREES")
class Liar:
    """Drafts token 0 for ever, and calls it a draw if asked for one."""

    max_length = 10**6

    def __init__(self, wanted, settings):
        self.wanted, self.max_depth = wanted, 1

    def prefill(self, tokens):
        self.root = int(tokens[-1])

    def propose(self, coins):
        return self.tree()

    def propose_below(self, tokens, coins):
        return self.tree()

    def tree(self):
        if LYING:
            rows = torch.full((1, 3), 1 / 3, dtype=torch.float64)
            return TokenTree(TreeShape.chain(1), torch.tensor([self.root, 0]), rows, self.wanted.law)
        return TokenTree(TreeShape.chain(0), torch.tensor([self.root]), None, self.wanted.law)

    def commit(self, step):
        self.root = step.tokens[-1]
'''
)
RULE = (
    HEAD
    + '''

@plugins.rule("mine")
@rule(laws=rrs.laws, reference="none", mixes=rrs.mixes)
def mine(tree, target_probs, coins):
    """As rrs, except where it lies."""
    return Verdict((0,), 0) if LYING else rrs(tree, target_probs, coins)
'''
)
GROWTH = (
    HEAD
    + '''

class Size(plugins.Settings):
    file: str = "none"


@plugins.growth("mine", settings=Size)
class Mine:
    """Two children of the root."""

    max_depth = 2

    def __init__(self, file):
        pass

    def next(self, shape, probs):
        NEXT
'''
)


@pytest.fixture(autouse=True)
def _small(alone, monkeypatch):
    monkeypatch.setattr(testing, "plane_trees", lambda size: [TreeShape.chain(min(size - 1, 1))])
    monkeypatch.setattr(growth, "MOST_ROUNDS", 100)


@pytest.fixture
def prove(tmp_path, monkeypatch):
    """Prove the methods of a plug-in as a new process would; returns what was said."""

    def prove(text, *methods, temperatures=(1.0,), **words):
        for word, value in words.items():
            text = text.replace(word, value)
        (tmp_path / "mine.py").write_text(text)
        plugin_files.load(plugin_files.read([tmp_path / "mine.py"]))
        data = {"name": "x", "prompts": {"kind": "embedded", "count": 1}, "max_new_tokens": 4}
        data |= {"samplings": [{"temperature": t} for t in temperatures]}
        data |= {"methods": [{"kind": "tree", **method} for method in methods]}
        said = []
        monkeypatch.setattr(proof_of_parts, "_PROVED", set())
        require_proved(build(validated(tmp_path / "x.yaml", data)), said.append)
        return said

    return prove


LIAR = {"draft": {"source": "liar"}, "shape": {"kind": "chain", "depth": 1}}
IN_BUDGET = LIAR | {"shape": {"kind": "budget", "depth": 2}, "law": "iid"}
WIDE = {"kind": "budget", "depth": 2, "size": 6, "branching": 2}
DEPENDENT = {
    "law": (
        {"LYING": "self.wanted.law is Law.IID", "TREES": "any"},
        (LIAR | {"law": "deterministic"}, 1.0), (LIAR | {"law": "iid"}, 1.0),
    ),
    "temperature": (
        {"LYING": "not self.wanted.sampling.greedy", "TREES": "any"},
        (LIAR | {"law": "iid"}, 0.0), (LIAR | {"law": "iid"}, 1.0),
    ),
    "tree": (
        {"LYING": "self.wanted.tree.branching > 1", "TREES": "budget"},
        (IN_BUDGET, 1.0), (IN_BUDGET | {"shape": WIDE}, 1.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DEPENDENT)
def test_a_proof_of_a_source_holds_for_its_law_temperature_and_tree_only(what, prove):
    words, (fine, at), (lossy, above) = DEPENDENT[what]
    assert prove(SOURCE, fine, temperatures=[at], **words)
    assert not prove(SOURCE, fine, temperatures=[at], **words)  # remembered
    for methods in ([lossy], [fine | {"name": "a"}, lossy]):
        with pytest.raises(ConfigError, match=r"'liar' of .* does not keep the target's law"):
            prove(SOURCE, *methods, temperatures=[above], **words)
    with pytest.raises(ConfigError, match=r"'liar' of .* does not keep the target's law"):
        prove(SOURCE, lossy, temperatures=[0.0, above], **words)


MERGE = {
    "draft": {"source": "merge", "sources": [{"source": "lookup"}, {"source": "liar"}]},
    "shape": WIDE,
    "law": "iid",
}
MERGE["draft"]["budgets"] = {"lookup": 2, "liar": 2}
CASCADE = {
    "draft": {"source": "cascade", "draft": {"source": "liar"}},
    "shape": {"kind": "budget", "depth": 2},
    "law": "iid",
}


@pytest.mark.parametrize("method", [MERGE, CASCADE], ids=["merge", "cascade"])
@pytest.mark.parametrize("trees", ["any", "budget"])
def test_a_source_inside_another_is_proved_too(method, trees, prove):
    assert prove(SOURCE, method, LYING="False", TREES=trees)
    with pytest.raises(ConfigError, match=r"'liar' of .* does not keep the target's law"):
        prove(SOURCE, method, LYING="True", TREES=trees)


def test_rules_are_proved_on_mixed_trees_where_they_meet_them(prove):
    chain = {"shape": {"kind": "chain", "depth": 1}, "law": "iid", "rule": "mine"}
    merge = {"source": "merge", "sources": [{"source": "lookup"}, {"source": "model"}]}
    merged = chain | {"shape": WIDE, "draft": merge | {"budgets": {"lookup": 2, "model": 2}}}
    assert prove(RULE, chain, LYING="tree.is_mixed")
    with pytest.raises(ConfigError, match=r"'mine' of .* does not keep the target's law"):
        prove(RULE, merged, LYING="tree.is_mixed")
    assert prove(RULE, merged, LYING="False")


def test_the_rule_of_a_cascade_is_proved_too(prove):
    draft = {"source": "cascade", "draft": {"source": "lookup"}, "rule": "mine"}
    with pytest.raises(ConfigError, match=r"draft\.rule: the rule 'mine'"):
        prove(RULE, CASCADE | {"draft": draft}, LYING="True")


def test_growths_are_proved_for_every_law(prove):
    """A growth that returns to a node is refused for laws that choose all its children together."""
    method = {"shape": {"kind": "mine"}, "draft": {"source": "model"}}
    words = {"NEXT": "return [(0, 1)] if shape.size < 3 else []"}
    assert prove(GROWTH, method | {"law": "deterministic"}, **words)
    with pytest.raises(ConfigError, match=r"'mine' of .* all children of a node together"):
        prove(GROWTH, method | {"law": "hub"}, **words)


def test_what_cannot_be_known_to_be_the_same_is_proved_again(prove, tmp_path):
    shape = {"kind": "mine"}
    words = {"NEXT": "return [(0, 2)] if shape.size == 1 else []"}
    assert prove(GROWTH, {"shape": shape}, **words)
    assert not prove(GROWTH, {"shape": shape}, **words)
    (tmp_path / "rates.json").touch()
    for _ in range(2):
        assert prove(GROWTH, {"shape": shape | {"file": "rates.json"}}, **words)
        assert prove(GROWTH + "\nimport pytest\n", {"shape": shape}, **words)
    # A file that is edited after it was loaded is another one.
    plugin_files.load(plugin_files.read([tmp_path / "mine.py"]))
    part = plugins.parts("growth")["mine"]
    loaded = plugin_files.file_of(part)
    (tmp_path / "mine.py").write_text("changed")
    assert plugin_files.file_of(part) == loaded


ENDLESS = {
    "return [(0, 1)]": "more than 100 times",
    "return ((0, 1) for _ in repeat(None))": "twice at once",
    "return [(0, 0)]": "0 children",
    "return [(0, 2**20)]": "65,536 nodes",
    "sys.exit(0)": "the growth ends the program",
}


@pytest.mark.parametrize("code", ENDLESS)
def test_a_growth_that_does_not_end_is_stopped(code, prove):
    with pytest.raises(ConfigError, match=f"shape: the growth 'mine' of .*{ENDLESS[code]}"):
        prove(GROWTH, {"shape": {"kind": "mine"}}, NEXT=code)


def test_a_growth_that_yields_nothing_is_at_its_end(prove):
    assert prove(GROWTH, {"shape": {"kind": "mine"}}, NEXT="yield from ()")


@pytest.mark.parametrize("text", [SOURCE, RULE], ids=["source", "rule"])
@pytest.mark.parametrize("how", ["sys.exit(0)", "exit()", "(_ for _ in ()).throw(GeneratorExit)"])
def test_a_part_that_ends_the_program_is_an_error(how, text, prove):
    method = LIAR | {"law": "iid"}
    if text is RULE:
        method = {"shape": {"kind": "chain", "depth": 1}, "rule": "mine", "law": "iid"}
    with pytest.raises(ConfigError, match=r"of .* fails on small trees"):
        prove(text, method, LYING=how, TREES="any")
