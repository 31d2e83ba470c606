"""What the recipe writes: two model folders with one tokenizer, and the held-out texts."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treespec.experiments.training.corpus import SourceFile
from treespec.search.whole_file import write_whole

PROMPT_BYTES = 16 * 1024
SHORTEST_PROMPT_BYTES = 3000
MOST_PROMPTS = 24


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path
) -> LlamaForCausalLM:
    """Write `model` in bfloat16, with the tokenizer, and return what was written in float32.

    Whatever is measured or distilled afterwards sees the weights that ship, rounding included.
    """
    model = model.bfloat16()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.float().eval()


def choose_prompts(files: Iterable[SourceFile]) -> list[SourceFile]:
    """At most 24 held-out files that begin with code or documentation, in order of a path hash.

    Short files, character tables and files that open with a licence make poor prompts.
    """
    chosen = [
        SourceFile(file.path, shorten(file.text, PROMPT_BYTES))
        for file in sorted(files, key=lambda file: hashlib.sha256(file.path.encode()).digest())
        if len(file.text.encode()) >= SHORTEST_PROMPT_BYTES
        and not file.path.startswith("encodings/")
        and "copyright" not in file.text[:1000].lower()
    ]
    return chosen[:MOST_PROMPTS]


def shorten(text: str, most_bytes: int) -> str:
    """All of `text` if it fits in `most_bytes`, else as many of its first lines as fit."""
    if len(text.encode()) <= most_bytes:
        return text
    head = text.encode()[:most_bytes]
    return head[: head.rfind(b"\n") + 1].decode()


def write_held_out(files: Iterable[SourceFile], path: Path) -> None:
    """One JSON object per line: the file's relative path and its text."""
    lines = [json.dumps({"file": file.path, "text": file.text}) for file in files]
    write_whole(path, "".join(f"{line}\n" for line in lines))
