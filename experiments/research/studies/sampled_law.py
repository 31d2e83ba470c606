"""Check the sampled law of five rules on rows of the real model, and of its decoding end to end.

    python -m treespec.experiments.research.studies.sampled_law [--decisions 20000] [--tokens 1000]

Rows of target and draft (layer skip, as in the config `real_sources`) are computed once at 300 positions of
texts that the target itself decoded, T = 0.7, top_p 0.9; settings with a repetition penalty process the
same rows. At each position trees of three children are drafted from the draft's row and decided by the
rule.

Let S be the chosen children, or, where children are drawn, the tokens that the draft finds more probable
than the target does. S depends on the text only, so an exact rule emits a token of S with the probability
that the target gives to S, whatever was drafted; z is the difference, in standard errors. (The drawn
children themselves will not do: a rule that is exact on average over them emits one of them more often than
the target's mass on them.) Every rule runs again with a coin that accepts too often, by 0.02, for three
seeds: the check must find it. What it accepts wrongly are tokens that the draft overrates, those of S. End
to end, S is taken at the root of every step.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from transformers import RepetitionPenaltyLogitsProcessor

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, load_pair, verify
from treespec.draft import LayerSkip, NoDrafter
from treespec.experiments.config.file import load_config
from treespec.experiments.config.layers import LayerSkipDraft
from treespec.experiments.config.schema import ChatPrompts
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.models.load import Pair
from treespec.sampling.children import chosen_children
from treespec.sampling.distributions import SampledRows
from treespec.sampling.processing.rows import finite_for_forbidden, processed_row
from treespec.sampling.processors import Processors
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget
from treespec.verify import Rule, verifier_for

RULES = {
    "onehot": Law.DETERMINISTIC,
    "rrs": Law.IID,
    "rrsw": Law.WITHOUT_REPLACEMENT,
    "kseq": Law.IID,
    "traversal": Law.WITHOUT_REPLACEMENT,
}
SETTINGS = {
    "T=0.7, top_p=0.9": Sampling(0.7, top_p=0.9),
    "with repetition_penalty=1.1": Sampling(
        0.7, top_p=0.9, processors=Processors(repetition_penalty=1.1)
    ),
}
CHILDREN = 3
BIAS, BIASED_SEEDS, LIMIT = 0.02, (1, 2, 3), 3.3


class AcceptsTooOften(TorchCoins):
    """Coins that accept with a probability that is too large by `BIAS`."""

    def accept(self, probability: Any) -> bool:
        return super().accept(min(1.0, float(probability) + BIAS))


class Deviation:
    """How often events happened, against their probabilities; `z` is the difference in standard errors."""

    def __init__(self) -> None:
        self.count, self.difference, self.variance = 0, 0.0, 0.0

    def add(self, happened: bool, probability: float) -> None:
        self.count += 1
        self.difference += happened - probability
        self.variance += probability * (1 - probability)

    @property
    def z(self) -> float:
        return self.difference / math.sqrt(self.variance)


def contexts_of(pair: Pair, prompts: int, each: int) -> Iterator[tuple[list[int], int]]:
    """Ids before each context, a prefix of a text that the target decoded, and the prompt's length."""
    config = ChatPrompts(kind="chat")
    encoded = encode(read_prompts(config)[:prompts], config, pair.tokenizer)
    for prompt in track(encoded, description="texts of the target"):
        ids = list(prompt.ids)
        for step in decode(
            ModelTarget(pair.target), NoDrafter(), verify.naive, torch.tensor(ids),
            sampling=next(iter(SETTINGS.values())), coins=TorchCoins(prompt.key),
            max_new_tokens=4 * each, stop=stop_at_tokens(pair.end_tokens),
        ):  # fmt: skip
            ids += step.tokens
        places = range(len(prompt.ids), len(ids))
        for i in range(each):
            yield ids[: places[i * len(places) // each]], len(prompt.ids)


def skip_set() -> tuple[str, ...]:
    """The sublayers that the config `real_sources` leaves out."""
    drafts = [getattr(method, "draft", None) for method in load_config("real_sources").methods]
    return next(draft.skip for draft in drafts if isinstance(draft, LayerSkipDraft) and draft.skip)


def stored(pair: Pair, skip: Sequence[str], file: Path) -> list[dict[str, Any]]:
    """Ids, prompt length, and logits of target and draft of 300 contexts, computed once."""
    about = [pair.target.fingerprint, list(skip)]
    if not file.exists() or torch.load(file)["about"] != about:
        draft = pair.target.without(skip)
        found = []
        for ids, prompt in contexts_of(pair, 25, 12):
            rows = []
            for model in (pair.target.fresh(), draft.fresh()):
                model.prefill(torch.tensor(ids[:-1]))
                rows.append(model.run(torch.tensor(ids[-1:]), (-1,)).logits[0].clone())
            found.append({"ids": ids, "prompt": prompt, "target": rows[0], "draft": rows[1]})
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".part")
        torch.save({"about": about, "contexts": found}, aside)
        aside.replace(file)
    return torch.load(file)["contexts"]


def decide(
    rule: Rule, law: Law, sampling: Sampling, contexts: list[dict[str, Any]], coins: TorchCoins,
    decisions: int,
) -> Deviation:  # fmt: skip
    """Draft and decide trees at the contexts in turn."""
    deviation, shape = Deviation(), TreeShape.expansion([CHILDREN])
    each = math.ceil(decisions / len(contexts))
    plain = sampling.without_processors
    for context in contexts:
        logits = [
            finite_for_forbidden(
                processed_row(sampling, context[name], context["ids"], context["prompt"]).clone()
            )
            for name in ("target", "draft")
        ]
        if sampling.processors is not None:  # rows of `generate`, whatever ours would be
            penalty = RepetitionPenaltyLogitsProcessor(sampling.processors.repetition_penalty)
            own = penalty(torch.tensor([context["ids"]]), context["target"][None].float())
            assert torch.equal(own[0], logits[0])
        rows = SampledRows(logits[0].expand(shape.size, -1), plain)
        draft = plain(logits[1])[None]
        top = chosen_children(logits[1][None], CHILDREN, Law.DETERMINISTIC)[0]
        counted = draft[0] > rows[0]
        if law is Law.DETERMINISTIC:
            counted = torch.zeros_like(counted).index_fill(0, top, True)
        mass = float(rows[0].double()[counted].sum())
        for _ in range(min(each, decisions - deviation.count)):
            drawn = top if law is Law.DETERMINISTIC else coins.draw_many(draft, CHILDREN, law)[0]
            tokens = torch.cat([torch.tensor(context["ids"][-1:]), drawn])
            tree = TokenTree(shape, tokens, None if law is Law.DETERMINISTIC else draft, law)
            verdict = rule(tree, rows, coins)
            first = verdict.path[1] if verdict.accepted else None
            token = verdict.bonus if first is None else tree.token_ids[first]
            deviation.add(bool(counted[token]), mass)
    return deviation


def end_to_end(pair: Pair, skip: Sequence[str], sampling: Sampling, tokens: int) -> Deviation:
    """Decode this many tokens by recursive rejection sampling, and check the first token of each step."""
    deviation, done = Deviation(), 0
    config = ChatPrompts(kind="chat", skip=25)
    for prompt in encode(read_prompts(config), config, pair.tokenizer):
        if done >= tokens:
            break
        own = sampling.ending(pair.end_tokens, 128)
        drafter = LayerSkip(
            pair.target, skip, TreeShape.expansion([CHILDREN, 1]), Law.WITHOUT_REPLACEMENT, own
        )
        for step in decode(
            ModelTarget(pair.target), drafter, verifier_for(verify.rrsw, pair.target),
            torch.tensor(prompt.ids), sampling=own, coins=TorchCoins(prompt.key), max_new_tokens=128,
            stop=stop_at_tokens(pair.end_tokens),
        ):  # fmt: skip
            done += len(step.tokens)
            if step.tree.shape.size == 1:
                continue
            assert step.rows is not None
            counted = step.tree.draft_probs_of(0) > step.rows[0]
            mass = float(step.rows[0].double()[counted].sum())
            deviation.add(bool(counted[step.tokens[0]]), mass)
    return deviation


COLUMNS = (
    keyed("rule", "rule", left=True),
    keyed("children", "law", left=True),
    keyed("sampling", "sampling", left=True),
    keyed("decisions", "decisions", ","),
    keyed("z", "z", "+.2f"),
    keyed("z of a coin biased by 0.02", "biased_z", left=True),
)


def main(
    decisions: Annotated[int, typer.Option(min=300, help="Decisions of each rule.")] = 20_000,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to decode end to end.")] = 1000,
    rows: Annotated[Path, typer.Option(help="Where the rows are kept.")] = Path(
        "runs/sampled_law.pt"
    ),
) -> None:
    """Print z of every rule and setting, and save them. Exit code 1 if a law or a bias is missed."""
    pair, skipped = load_pair("smollm2"), skip_set()
    contexts = stored(pair, skipped, rows)
    found: list[dict[str, Any]] = []
    for setting, sampling in SETTINGS.items():
        for name, law in track(RULES.items(), description=setting):
            rule = verify.RULES[name]
            z = decide(rule, law, sampling, contexts, TorchCoins(0), decisions).z
            biased = [
                decide(rule, law, sampling, contexts, AcceptsTooOften(seed), decisions).z
                for seed in BIASED_SEEDS
            ]
            found.append(
                {
                    "rule": name, "law": str(law), "sampling": setting, "decisions": decisions, "z": z,
                    "biased": biased, "biased_z": ", ".join(f"{each:+.1f}" for each in biased),
                    "as_it_must": abs(z) < LIMIT < min(map(abs, biased)),
                }
            )  # fmt: skip
        whole = end_to_end(pair, skipped, sampling, tokens)
        found.append(
            {
                "rule": "rrsw, end to end", "law": str(Law.WITHOUT_REPLACEMENT), "sampling": setting,
                "decisions": whole.count, "z": whole.z, "biased": [], "biased_z": "",
                "as_it_must": abs(whole.z) < LIMIT,
            }
        )  # fmt: skip
    print_and_save(
        "sampled_law",
        {
            "contexts": len(contexts),
            "largest_z": max(abs(row["z"]) for row in found),
            "smallest_biased": min(abs(z) for row in found for z in row["biased"]),
            "rules": found,
        },
        Table("sampled law on rows of smollm2", COLUMNS, found),
        width=120,
    )
    if not all(row["as_it_must"] for row in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
