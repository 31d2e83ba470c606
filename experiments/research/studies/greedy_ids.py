"""Compare the greedy texts of every method of a config with transformers' `generate`, token by token.

    python -m treespec.experiments.research.studies.greedy_ids [real_sources] [--prompts 24] [--tokens 64]

Three settings: a compiled target in float32 and in bfloat16, and eager passes in float32. The reference is
`generate` in the same dtype, with its logits. Where a text first differs from it, the gap is the
reference's logit of its own token minus that of the other, in float32: two computations of one row round
differently, so a small gap is a near-tie. The method then goes on from the reference's tokens, so that
one near-tie is counted once and nothing after it is left out. In float32 a gap above 1e-3 is a fault, and
so is more than one near-tie in 500 tokens; bfloat16 rounds 65,536 times as coarsely, and its
differences are counted only.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch import Tensor

from treespec.experiments.config.build import BuiltMethod, build
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.baselines import first_difference
from treespec.experiments.run.datastores import build_missing, missing_datastores
from treespec.experiments.run.models import load_models
from treespec.experiments.run.ours import decode_ours
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.models.load import Pair
from treespec.stopping import stop_at_tokens

SETTINGS = {
    "float32 compiled": {"dtype": "float32", "passes": "compiled", "draft_passes": "eager"},
    "bfloat16 compiled": {"dtype": "bfloat16", "passes": "compiled", "draft_passes": "eager"},
    "float32 eager": {"dtype": "float32", "passes": "eager", "draft_passes": "eager"},
}
GREEDY = "T=0"

NEAR_TIE = 1e-3
"""Largest gap between two logits that rounding explains in float32."""

TOKENS_PER_NEAR_TIE = 500
"""Tokens that a method must decode for each near-tie, in float32."""


def reference(pair: Pair, prompt: Sequence[int], tokens: int) -> tuple[list[int], Tensor]:
    """The greedy text of `generate`, and the logits that each of its tokens was chosen from."""
    ids = torch.tensor([list(prompt)])
    ends = sorted(pair.end_tokens)
    made: Any = plain_twin(pair.target).generate(  # pyrefly: ignore[not-callable]
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens,
        eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return made.sequences[0, len(prompt) :].tolist(), torch.cat(made.logits).float()


def gaps(
    pair: Pair,
    method: BuiltMethod,
    prompt: Sequence[int],
    text: Sequence[int],
    logits: Tensor,
    budget: int,
) -> tuple[list[float], int]:
    """The gaps where a method's text differs from the reference, and its steps; see the module.

    A text that ends elsewhere without a differing token is an infinite gap. `budget`: new tokens.
    """
    found: list[float] = []
    done = steps = 0
    while done < len(text):
        ids: list[int] = []
        for step in decode_ours(
            pair, method, GREEDY, torch.tensor([*prompt, *text[:done]]),
            max_new_tokens=budget - done, stop=stop_at_tokens(pair.end_tokens), seed=0,
        ):  # fmt: skip
            ids += step.text
            steps += 1
        if ids == list(text[done:]):
            break
        at = first_difference(ids, text[done:])
        if at in (len(ids), len(text) - done):
            return [*found, float("inf")], steps
        found.append(float(logits[done + at, text[done + at]] - logits[done + at, ids[at]]))
        done += at + 1
    return found, steps


def compared(config: Config, setting: str, tokens: int) -> Iterator[dict[str, Any]]:
    """One row for each method."""
    raw = read_prompts(config.prompts)[: config.prompts.count]
    pair = load_models(config.models.model_copy(update=SETTINGS[setting]))
    methods = build(config).ending(pair.end_tokens, tokens).methods
    build_missing(missing_datastores(methods), pair, Reporter(None))
    prompts = [prompt.ids for prompt in encode(raw, config.prompts, pair.tokenizer)]
    texts = [reference(pair, prompt, tokens) for prompt in track(prompts, f"generate, {setting}")]
    decoded = sum(len(text) for text, _ in texts)
    for method in (each for each in methods if each.choices):
        found: list[float] = []
        steps = 0
        for prompt, text in zip(track(prompts, f"{method.name}, {setting}"), texts, strict=True):
            more, taken = gaps(pair, method, prompt, *text, tokens)
            found, steps = found + more, steps + taken
        faults = sum(gap > NEAR_TIE for gap in found) if "float32" in setting else 0
        if "float32" in setting and len(found) - faults > decoded / TOKENS_PER_NEAR_TIE:
            faults = len(found)
        yield {
            "setting": setting, "method": method.name, "tokens": decoded, "steps": steps,
            "differences": len(found), "largest_gap": max(found, default=0.0), "faults": faults,
        }  # fmt: skip


COLUMNS = (
    keyed("setting", "setting", left=True),
    keyed("method", "method", left=True),
    keyed("tokens", "tokens", ","),
    keyed("steps", "steps", ","),
    keyed("differences", "differences"),
    keyed("largest gap", "largest_gap", ".2g"),
    keyed("faults", "faults"),
)

SUMMED = ("tokens", "steps", "differences", "faults")


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each setting, over its methods."""
    return [
        {
            "setting": setting,
            "methods": len(of_setting),
            **{key: sum(row[key] for row in of_setting) for key in SUMMED},
            "largest_gap": max(row["largest_gap"] for row in of_setting),
        }
        for setting in SETTINGS
        if (of_setting := [row for row in rows if row["setting"] == setting])
    ]


def main(
    config: Annotated[
        str, typer.Argument(help="A config with models and methods.")
    ] = "real_sources",
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 24,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text.")] = 64,
) -> None:
    """Compare the texts; print the counts and save them. Exit code 1 if there is a fault."""
    made = load_config(config, [f"prompts.count={prompts}", "samplings=[{temperature: 0}]"])
    rows: list[Mapping[str, Any]] = []
    for setting in SETTINGS:  # saved after each: together they take an hour and a half
        rows += compared(made, setting, tokens)
        print_and_save(
            "greedy_ids",
            {"prompts": prompts, "tokens": tokens, "settings": summary(rows), "methods": rows},
            Table(f"greedy texts: {prompts} prompts x {tokens} tokens, {setting}", COLUMNS, rows),
            width=120,
        )
    if any(row["faults"] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
