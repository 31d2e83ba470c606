"""What `until` determines before a run starts: its prompts, when it looks, and whether it can decide."""

from collections.abc import Sequence

from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.schema import Config, Method, Prompts, TreeMethod
from treespec.experiments.config.shapes import BudgetShape
from treespec.experiments.config.trees import wants_measured
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.sequential import looks
from treespec.experiments.run.prompts import RawPrompt

__all__ = ["at_most", "ends_of_looks", "planned_of", "planned_prompts", "require_decidable"]


def at_most(config: Config) -> int | None:
    """The number of prompts, or of files where prompts are excerpts, that `until` allows; None without."""
    return None if config.until is None else config.until.at_most


def planned_prompts(config: Config) -> Prompts:
    """The prompts of the config, as many as `until` allows."""
    limit = at_most(config)
    if limit is None:
        return config.prompts
    count = limit * len(getattr(config.prompts, "excerpts", None) or {"": 0})
    return config.prompts.model_copy(update={"count": count})


def planned_of(prompts: Sequence[RawPrompt]) -> dict[str, int]:
    """How many prompts a run has at most, and how many samples they amount to.

    Args:
        prompts: the measured prompts.

    Returns:
        `prompts`, and `samples`: the number of files where prompts are excerpts, since excerpts of a file
        are alike.
    """
    return {"prompts": len(prompts), "samples": len(_ends_of_samples(prompts))}


def ends_of_looks(prompts: Sequence[RawPrompt]) -> list[int]:
    """The numbers of prompts after which a run looks; it never looks between excerpts of one file.

    Args:
        prompts: the measured prompts.

    Example:
        >>> texts = [RawPrompt(f"{i}", "text", None, "") for i in range(14)]
        >>> ends_of_looks(texts)
        [8, 12, 14]
        >>> ends_of_looks([RawPrompt(f"{i}", "text", None, "", file=f"{i // 2}") for i in range(20)])
        [16, 20]
    """
    ends = _ends_of_samples(prompts)
    return [ends[samples - 1] for samples in looks(len(ends))]


def _ends_of_samples(prompts: Sequence[RawPrompt]) -> list[int]:
    """The number of prompts up to the end of each sample; excerpts of a file are consecutive."""
    return [
        end
        for end, prompt in enumerate(prompts, start=1)
        if end == len(prompts) or prompt.file is None or prompts[end].file != prompt.file
    ]


def require_decidable(experiment: Experiment) -> None:
    """Refuse `until` if the methods of the run leave it nothing to decide.

    Raises:
        ConfigError: names what is missing.
    """
    until = experiment.config.until
    if until is None:
        return
    sides = set[str]().union(*map(_sides, experiment.config.methods, experiment.methods))
    if {"tree", "chain"} <= sides:
        return
    wanted = {"tree": "no tree", "chain": "no chain or assisted generation"}
    missing = " and ".join(words for side, words in wanted.items() if side not in sides)
    if until.decided:
        raise ConfigError(
            f"until: decided compares trees with chains, but the methods have {missing} that is lossless: "
            "add one, or remove `until`"
        )
    if "plain" not in sides or sides == {"plain"}:
        missing += "" if "plain" in sides else ", and no plain decoding"
        raise ConfigError(
            f"until.half_width = {until.half_width:g} compares trees with chains, or else one of them with "
            f"plain decoding, but the methods have {missing}: add one, or remove `until`"
        )


def _sides(written: Method, built: BuiltMethod) -> set[str]:
    """The sides of a comparison that a method may be on; none for a lossy method."""
    if not built.lossless:
        return set()
    if not isinstance(written, TreeMethod):
        return {"chain" if written.kind == "assisted" else "plain"}
    if wants_measured(written):  # a search may find either
        return {"tree", "chain"}
    if built.shape is not None:
        return {"chain" if built.shape.is_chain else "tree"}
    straight = isinstance(written.shape, BudgetShape) and written.shape.branching == 1
    return {"chain" if straight else "tree"}
