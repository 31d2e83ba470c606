import pytest
import torch

from treespec import Sampling, TreeShape
from treespec.experiments.teaching import timeline
from treespec.experiments.teaching.timeline import DRAFT_PASS, Brought, Lane, watch

METHODS = {
    "plain": TreeShape.chain(0),
    "chain": TreeShape.chain(3),
    "tree": TreeShape.expansion([2, 1]),
}


@pytest.fixture(scope="module")
def lanes(loaded_pair):
    prompt = torch.tensor(loaded_pair.tokenizer.encode("def walk(tree):"))
    found = watch(loaded_pair, prompt, METHODS, tokens=8, repeats=1)
    return dict(zip(METHODS, found, strict=True))


def test_all_methods_write_the_same_text_at_temperature_0(lanes, loaded_pair):
    ids = loaded_pair.tokenizer.encode("def walk(tree):")
    with loaded_pair.target.as_transformers() as model:
        out = model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=8, min_new_tokens=8, pad_token_id=0
        )
    wanted = "".join(loaded_pair.tokenizer.decode([t]) for t in out[0, len(ids) :].tolist())
    for name, lane in lanes.items():
        assert (lane.name, lane.tokens, lane.text) == (name, 8, wanted)


def test_every_step_has_one_pass_of_the_target_and_the_drafts_passes_lie_in_its_stage(lanes):
    for name, lane in lanes.items():
        stages = [span.stage for span in lane.spans]
        assert stages.count("verify") == len(lane.steps)
        assert stages.count(DRAFT_PASS) == METHODS[name].depth * len(lane.steps)
        outer = [span for span in lane.spans if span.stage == "draft"]
        for span in lane.spans:
            assert 0 <= span.start <= span.end <= lane.seconds
            if span.stage == DRAFT_PASS:
                assert any(o.start <= span.start and span.end <= o.end for o in outer)
        assert lane.total(DRAFT_PASS) <= lane.total("draft")


def test_steps_follow_each_other_and_say_who_guessed(lanes):
    for name, lane in lanes.items():
        assert lane.steps[0].start == 0
        for step, after in zip(lane.steps, lane.steps[1:], strict=False):
            assert step.end == after.start
            assert step.guessed == len(step.texts) - 1  # but for a last, cut step
        assert lane.steps[-1].guessed <= len(lane.steps[-1].texts)
        assert name != "plain" or all(step.guessed == 0 for step in lane.steps)


def test_above_temperature_0_the_coins_decide(loaded_pair):
    prompt = torch.tensor(loaded_pair.tokenizer.encode("def walk(tree):"))
    settings = {"tokens": 6, "repeats": 1, "sampling": Sampling(1.0)}
    text, same_seed, other_seed = (
        watch(loaded_pair, prompt, {"tree": METHODS["tree"]}, seed=seed, **settings)[0].text
        for seed in (1, 1, 2)
    )
    assert text == same_seed != other_seed


def test_the_lane_of_median_length_is_kept_and_the_first_round_is_not(loaded_pair, monkeypatch):
    lengths = iter([9.0, 3.0, 1.0, 2.0])

    def fake(*arguments):
        return Lane("a", (), (Brought(0.0, next(lengths), ("x",), 0),))

    monkeypatch.setattr(timeline, "_decoded", fake)
    (lane,) = watch(loaded_pair, torch.tensor([1]), {"a": TreeShape.chain(0)}, repeats=3)
    assert lane.seconds == 2.0
