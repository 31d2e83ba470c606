"""What a folder of texts holds, in numbers: for the manifest, the card and the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from treespec.experiments.report.table import Column, Finding, Table
from treespec.experiments.training.texts.grams import distinct_share
from treespec.experiments.training.texts.leaks import HeldOutPrompts, leaks
from treespec.experiments.training.texts.sieve import dropped_in_words
from treespec.experiments.training.texts.text_data import TextData
from treespec.experiments.training.texts.text_index import BatchLine

OPENING_TOKENS, OPENINGS = 8, 20
"""The most frequent openings of answers: their tokens, and how many are listed."""


def counts_of(
    data: TextData, lines: Sequence[BatchLine], tokenizer: Any, held_out: HeldOutPrompts
) -> dict[str, Any]:
    """`counts` of the manifest.

    `leaks` are counted anew over all texts that were kept, so they are 0.
    """
    answers = [ids[n:] for ids, n in zip(data, data.prompt_lengths, strict=True)]
    openings = Counter(tuple(answer[:OPENING_TOKENS].tolist()) for answer in answers)
    dropped = sum((Counter(line.dropped) for line in lines), Counter[str]())
    return {
        "texts": len(data),
        "tokens": int(data.lengths.sum()),
        "answer_tokens": data.tokens,
        "greedy_texts": int(data.greedy.sum()),
        "invented_prompts": int(data.invented.sum()),
        "batches": len(lines),
        "dropped": dict(sorted(dropped.items())),
        "leaks": len(leaks(data, data.prompt_lengths.tolist(), held_out)),
        "distinct_4_grams": round(distinct_share(answers, 4), 6),
        "openings": [
            {"text": str(tokenizer.decode(list(ids))), "texts": count}
            for ids, count in sorted(openings.items(), key=lambda item: (-item[1], item[0]))[
                :OPENINGS
            ]
        ],
    }


def finding(manifest: Mapping[str, Any], seconds: float, written: int) -> Finding:
    """The table at the end of writing.

    Args:
        manifest: of the folder.
        seconds: of this session.
        written: tokens of the answers that were kept in this session.
    """
    counts = manifest["counts"]
    dropped = dropped_in_words(counts["dropped"])
    most = counts["openings"][0]
    rows = [
        ("texts", f"{counts['texts']:,}"),
        ("tokens of answers", f"{counts['answer_tokens']:,}"),
        ("tokens with prompts", f"{counts['tokens']:,}"),
        ("greedy answers", f"{counts['greedy_texts']:,}"),
        ("invented prompts", f"{counts['invented_prompts']:,}"),
        ("dropped", dropped),
        ("leaks in what is kept", f"{counts['leaks']:,}"),
        ("distinct 4-grams", f"{counts['distinct_4_grams']:.1%}"),
        ("most frequent opening", f"{most['text']!r} ({most['texts']:,} texts)"),
    ]
    if written:
        rows.append(
            ("written now", f"{written:,} tokens, {written / max(seconds, 1e-9):,.0f} tokens/s")
        )
    columns = (
        Column[tuple[str, str]]("", lambda row: row[0], left=True),
        Column[tuple[str, str]](manifest["recipe"]["target"], lambda row: row[1], left=True),
    )
    return Finding("Texts", [Table("texts", columns, rows)])


def card_of(manifest: Mapping[str, Any], counts: Mapping[str, Any]) -> str:
    """DATA_CARD.md: what the texts are, how they were made, and under which licences."""
    recipe = manifest["recipe"]
    licences = "\n".join(f"- {what}: {licence}" for what, licence in manifest["licences"].items())
    settings = "\n".join(f"- {key}: {value}" for key, value in recipe.items())
    dropped = dropped_in_words(counts["dropped"])
    openings = "\n".join(
        f"- {opening['text']!r}: {opening['texts']:,}" for opening in counts["openings"]
    )
    return f"""# Texts of {recipe["target"]}

{counts["texts"]:,} texts with {counts["answer_tokens"]:,} tokens of answers ({counts["tokens"]:,} with
prompts), for training draft models and heads. {manifest["what"]}

Kept were {counts["greedy_texts"]:,} greedy answers; {counts["invented_prompts"]:,} prompts were invented by
the target. Dropped: {dropped}. Texts that share 13 tokens in a row with a held-out prompt in what is kept:
{counts["leaks"]}. Distinct 4-grams of answers: {counts["distinct_4_grams"]:.1%}.

## Recipe

{settings}

## Licences

{licences}

## Most frequent openings of answers

{openings}
"""
