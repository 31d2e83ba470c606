"""Marks of live steps: spine, rows and fresh drafts."""

import pytest
import torch
from every_source import COLD, drafters
from known_rates import FixedText

from treespec import Law, Scores, Step, TokenTree, TorchCoins, TreeShape, Verdict, decode, verify
from treespec.draft import ModelDrafter, NoDrafter
from treespec.experiments.config.schema import Config
from treespec.experiments.measure.searched_run import run
from treespec.experiments.records.outcome import StepOutcome
from treespec.experiments.report import details
from treespec.experiments.report.right_shares import SIBLING
from treespec.experiments.report.run import load_run
from treespec.experiments.run import unit as unit_module
from treespec.experiments.run.right_marks import fresh_right, next_right
from treespec.target import ModelTarget

#        0
#     1     2
#   3   4   5
#   6
SHAPE = TreeShape((-1, 0, 0, 1, 1, 2, 3))
IDS = [0, 1, 2, 3, 4, 5, 6]


def marks(path, bonus, best, kept=None):
    """The marks of a step whose target prefers `best[node]` after each node."""
    tree = TokenTree(SHAPE, torch.tensor(IDS), None, Law.DETERMINISTIC)
    rows = torch.nn.functional.one_hot(torch.tensor(best), 8).float()
    tokens = (*(IDS[node] for node in path[1:]), bonus)[:kept]
    return next_right(
        NoDrafter(), Step(tree, Verdict(path, bonus), Scores(rows), tokens, rows=rows)
    )


@pytest.mark.parametrize(
    ("path", "bonus", "spine", "right"),
    [
        ((0,), 7, 0, "0"),
        ((0, 1, 3, 6), 7, 3, "111-"),  # the last node has no children
        ((0, 1, 4), 7, 1, "10-"),
        ((0, 2, 5), 7, 0, "01-"),  # after a sibling the row may be right
        ((0, 2), 7, 0, "00"),
        ((0, 1), 7, 1, "10"),
    ],
)
def test_marks_by_hand(path, bonus, spine, right):
    best = [7] * 7
    for node, after in zip(path, (*path[1:], bonus), strict=True):
        best[node] = after
    assert marks(path, bonus, best) == (spine, right)


def test_a_step_that_is_cut_has_a_mark_for_each_kept_token():
    best = [1, 3, 7, 6, 7, 7, 7]
    assert marks((0, 1, 3, 6), 7, best, kept=2) == (3, "11")


def test_above_temperature_0_right_is_the_best_token_not_the_drawn_one():
    # the accepted path leaves the target's best tokens: node 0 is right, and yet a sibling follows
    assert marks((0, 2, 5), 7, [1, 7, 5, 7, 7, 7, 7]) == (0, "11-")


def decoded(target, drafter, prompt, tokens):
    steps = []
    for step in decode(
        ModelTarget(target), drafter, verify.greedy, prompt, sampling=COLD, coins=TorchCoins(0),
        max_new_tokens=tokens,
    ):  # fmt: skip
        found = next_right(drafter, step)
        steps.append(
            StepOutcome(
                step.tree.shape, step.tree.token_ids, step.verdict, len(step.tokens), {}, 0.0, 0.0,
                spine=found.spine, right=found.right,
            )
        )  # fmt: skip
    return steps


def accept_nothing(tree, rows, coins):
    return Verdict((0,), 0)


def same_where_there_is_a_row(right, fresh):
    assert len(right) == len(fresh)
    return all(mine in ("-", new) for mine, new in zip(right, fresh, strict=True))


def test_a_fresh_draft_of_an_autoregressive_model_has_the_rows_of_the_tree(loaded_pair):
    prompt = torch.tensor(loaded_pair.tokenizer.encode("for node in tree:"))

    def drafter():
        return ModelDrafter(loaded_pair.draft, SHAPE, Law.DETERMINISTIC, COLD)

    steps = decoded(loaded_pair.target, drafter(), prompt, 24)
    fresh = fresh_right(ModelTarget(loaded_pair.target), drafter(), COLD, prompt, steps)
    right, fresh = "".join(step.right for step in steps), "".join(fresh)
    assert {"0", "1", "-"} == set(right)
    assert set(fresh) == {"0", "1"}  # a draft that is rooted there has a row everywhere
    assert same_where_there_is_a_row(right, fresh)


@pytest.mark.parametrize("name", ["model", "early_exit", "lookup", "suffix_tree", "documents"])
def test_a_fresh_draft_is_that_of_a_drafter_prefilled_with_the_text(name, loaded_pair, tmp_path):
    pair = loaded_pair
    prompt = torch.tensor(pair.tokenizer.encode("for node in tree: for node in"))
    known = pair.tokenizer.encode("yield node, walk(node) for node in tree.children")

    def drafter(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        return drafters(pair.target, pair.draft, known, tmp_path / folder)[name]

    steps = decoded(pair.target, drafter("live"), prompt, 12)
    fresh = "".join(fresh_right(ModelTarget(pair.target), drafter("fresh"), COLD, prompt, steps))
    text = [token for step in steps for token in step.text]
    ids, rooted = prompt.tolist(), []
    for token in text:
        new = drafter("fresh")
        (step,) = decode(
            ModelTarget(pair.target), new, accept_nothing, torch.tensor(ids), sampling=COLD,
            coins=TorchCoins(0), max_new_tokens=1,
        )  # fmt: skip
        rooted.append(next_right(new, step).right)
        ids.append(token)
    assert "".join(rooted) == fresh


@pytest.mark.parametrize(
    "name",
    ["layer_skip", "suffix_automaton", "retrieval", "token_recycling", "lookahead", "jacobi",
     "cascade", "merge"],
)  # fmt: skip
def test_every_source_ranks_tokens(name, loaded_pair, tmp_path):
    pair = loaded_pair
    prompt = torch.tensor(pair.tokenizer.encode("for node in tree: for node in"))
    known = pair.tokenizer.encode("yield node, walk(node) for node in tree.children")

    def drafter(folder):
        (tmp_path / folder).mkdir()
        return drafters(pair.target, pair.draft, known, tmp_path / folder)[name]

    steps = decoded(pair.target, drafter("live"), prompt, 12)
    target = ModelTarget(pair.target)
    fresh = fresh_right(target, drafter("fresh"), COLD, prompt, steps)
    for step, new in zip(steps, fresh, strict=True):
        assert len(step.right) == len(new) == step.kept
        path = step.verdict.path
        ranks = [step.shape.ranks[node] for node in path[1 : step.kept + 1]]
        assert step.right[: len(ranks)].startswith("1" * min(step.spine, step.kept))
        assert [mark == "1" for mark in step.right][: len(ranks)] == [r == 0 for r in ranks]


class Forgetful:
    """Ranks the text's next token at the root, and another one below it."""

    max_depth, max_length = 1, 10_000

    def __init__(self, text):
        self._text = text.tolist()

    def prefill(self, tokens):
        self._place = len(tokens)

    def propose(self, coins):
        tokens = self._text[self._place - 1 : self._place + 1]
        self._best = [tokens[1], (self._text[self._place + 1] + 1) % 6]
        return TokenTree(TreeShape.chain(1), torch.tensor(tokens), None, Law.DETERMINISTIC)

    def best_next(self):
        return self._best

    def commit(self, step):
        self._place += step.verdict.emitted


def test_a_fresh_draft_differs_where_rows_depend_on_the_root():
    text = torch.arange(40) % 6
    drafter, steps = Forgetful(text), []
    for step in decode(
        FixedText(text), drafter, verify.greedy, text[:1], sampling=COLD, coins=TorchCoins(0),
        max_new_tokens=9,
    ):  # fmt: skip
        found = next_right(drafter, step)
        steps.append(
            StepOutcome(
                step.tree.shape, step.tree.token_ids, step.verdict, len(step.tokens), {}, 0.0, 0.0,
                spine=found.spine, right=found.right,
            )
        )  # fmt: skip
    assert [step.right for step in steps] == ["10", "10", "10", "10", "1"]
    fresh = fresh_right(FixedText(text), Forgetful(text), COLD, text[:1], steps)
    assert fresh == ["11", "11", "11", "11", "1"]


@pytest.fixture(scope="module")
def config(settings):
    methods = [m for m in settings["methods"] if m["kind"] in ("generate", "plain", "tree")]
    lookup = {"kind": "tree", "name": "lookup", "draft": {"source": "lookup"}}
    lookup["shape"] = {"kind": "budget", "depth": 3, "size": 6, "branching": 2}
    return settings | {"methods": [*methods, lookup], "max_new_tokens": 12, "fresh_drafts": 1}


@pytest.fixture(scope="module")
def finished(config, loaded_pair, tmp_path_factory):
    path = tmp_path_factory.mktemp("right") / "run"
    made = run(Config.model_validate(config), folder=path, load=lambda models: loaded_pair)
    return load_run(made.folder)


@pytest.mark.parametrize("changes", [{}, {"batch": 2}])
def test_every_tree_method_records_its_marks(changes, config, loaded_pair, tmp_path, finished):
    if changes:
        changed = Config.model_validate(config | changes)
        folder = run(changed, folder=tmp_path / "run", load=lambda models: loaded_pair).folder
        finished = load_run(folder)
    seen = set()
    for row in finished.steps.iter_rows(named=True):
        if row["method"] in ("generate", "plain"):
            assert row["right"] is row["spine"] is row["fresh"] is None
            continue
        seen.add(row["method"])
        assert len(row["right"]) == row["kept"]
        assert 0 <= row["spine"] <= row["accepted"]
        assert (row["fresh"] is None) == (row["prompt"] >= 1)  # of the first prompt only
        if row["fresh"] is not None and row["method"] != "lookup":
            assert same_where_there_is_a_row(row["right"], row["fresh"])
        if row["sampling"] == "T=0" and row["kept"] == row["emitted"]:
            ranks = row["path_ranks"]
            first = [rank for rank in range(len(ranks)) if ranks[rank]]
            assert row["spine"] == (first[0] if first else len(ranks))
            assert row["right"][: len(ranks)] == "".join("01"[rank == 0] for rank in ranks)
    assert seen == {"chain 3", "expansion 2x2", "lookup"}
    assert ("T=0", "expansion 2x2") in finished.next_right
    found = finished.next_right["T=0", "expansion 2x2"]
    assert found.texts == 2
    assert found.nodes.text.max() == 1
    kept = finished.steps.filter(method="expansion 2x2", sampling="T=0")["kept"].sum()
    assert len(found.nodes.depth) == kept
    assert all(place != SIBLING or band != "root" for place, band in found.shares)


def test_a_fresh_draft_that_fails_leaves_the_measured_text_as_it_is(
    config, loaded_pair, tmp_path, monkeypatch, finished
):
    def failing(*arguments):
        raise RuntimeError("no memory")

    monkeypatch.setattr(unit_module, "fresh_right", failing)
    changed = Config.model_validate(config | {"samplings": [{"temperature": 0}]})
    done = run(changed, folder=tmp_path / "r", load=lambda models: loaded_pair)
    found = load_run(done.folder)
    assert not done.failures
    errors = found.prompts.filter(prompt=0)["fresh_error"].to_list()
    assert sum("no memory" in (error or "") for error in errors) == 3
    assert found.prompts.filter(prompt=1)["fresh_error"].null_count() == 5
    kept = ["prompt", "method", "step", "kept", "spine", "right"]
    same = finished.steps.filter(sampling="T=0").select(kept).sort("method", "prompt", "step")
    assert found.steps.select(kept).sort("method", "prompt", "step").equals(same)
    assert found.steps["fresh"].null_count() == len(found.steps)
    (shown,) = details.errors(found).tables
    assert {row["error"].split(":")[0] for row in shown.items} == {"fresh drafts"}
