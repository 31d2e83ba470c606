"""The study of losses: which drafts it takes, and intervals that cover prompts and seeds."""

from pathlib import Path

import numpy as np
import pytest

from treespec.experiments.config.file import load_config
from treespec.experiments.errors import TrainingError
from treespec.experiments.report.statistics import Totals
from treespec.experiments.research.studies.distillation import (
    SHAPES,
    Kept,
    config_of,
    finished,
    over_seeds,
)
from treespec.experiments.training.settings import as_yaml, load_training
from treespec.experiments.training.trained import Trained
from treespec.files import write_whole

SEEDS, PROMPTS = 3, 24


def test_without_a_difference_of_seeds_the_interval_is_that_over_prompts() -> None:
    random = np.random.default_rng(0)
    tokens = np.full((1, PROMPTS), 48.0)
    steps = random.integers(20, 40, (1, PROMPTS)).astype(float)
    alike = over_seeds([tokens.repeat(SEEDS, 0)], [steps.repeat(SEEDS, 0)])
    prompts = Totals.of({"tokens": tokens[0], "steps": steps[0]}).ratio(["tokens"], ["steps"])
    assert alike.estimate == pytest.approx(prompts.estimate)
    assert alike.half_width == pytest.approx(prompts.half_width, rel=0.1)


def test_intervals_cover_the_ratio_of_other_seeds_and_prompts() -> None:
    """Drafts that are worth the same, but for the luck of a seed and of each text."""
    random, found = np.random.default_rng(1), []

    def kept() -> Kept:
        luck = random.normal(0, 0.05, (SEEDS, 1)) + random.normal(0, 0.1, (SEEDS, PROMPTS))
        return Kept(np.full((SEEDS, PROMPTS), 48.0), 30 * np.exp(luck + of_texts))

    for _ in range(300):
        of_texts = random.normal(0, 0.3, PROMPTS)
        found.append(kept().over(kept()).contains(1.0))
    assert 0.93 <= np.mean(found) <= 1.0


def test_a_draft_without_one_of_its_seeds_is_left_out(tmp_path: Path) -> None:
    config = load_training("distillation")
    write_whole(tmp_path / "config.yaml", as_yaml(config))
    with pytest.raises(TrainingError, match="forward_kl"):
        finished(tmp_path)
    first = [draft for draft in config.trainings if draft.title in ("forward_kl", "lk_alpha")]
    for draft in first[:-1]:
        (tmp_path / draft.label).mkdir()
        Trained(
            draft=draft.title, seed=draft.seed, family=draft.family, parameters=1, learning_rate=0.1,
            seconds=1.0, settings={}, inputs={}, environment={}, curve=[{"tokens": 1}],
        ).save(tmp_path / draft.label)  # fmt: skip
    groups = finished(tmp_path)
    assert [*groups] == ["forward_kl"]
    assert [one.seed for one in groups["forward_kl"]] == [0, 1, 2]

    file = tmp_path / "run.yaml"
    write_whole(file, config_of(groups, tmp_path))
    methods = load_config(file).methods
    assert len(methods) == SEEDS * len(SHAPES)
    assert len({method.name for method in methods}) == len(methods)
