"""A tokenizer's chat template: prompts for an answer, and the beginning of a user's message."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treespec.errors import text_of
from treespec.experiments.errors import PromptError

_MARK = "MESSAGE"


@dataclass(frozen=True)
class Chat:
    """Puts messages into a tokenizer's chat template."""

    tokenizer: Any

    @classmethod
    def of(cls, tokenizer: Any) -> "Chat | None":
        """None for a tokenizer without a chat template."""
        return cls(tokenizer) if getattr(tokenizer, "chat_template", None) else None

    def prompt(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of turns (role and content), up to where the answer begins."""
        return self._ids(self._rendered(turns, answer=True))

    def told(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a whole conversation."""
        return self._ids(self._rendered(turns, answer=False))

    def opening(self, words: str) -> list[int]:
        """Token ids up to and with the first words of a user's message, which a model may complete."""
        before = self._rendered([("user", _MARK)], answer=False).partition(_MARK)[0]
        return self._ids(before + words)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, verbose=False)

    def _rendered(self, turns: Sequence[tuple[str, str]], answer: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=answer, tokenize=False
            )
        except Exception as error:  # a template is code of its own
            raise PromptError(
                f"the tokenizer's chat template fails ({text_of(error)[:300]})"
            ) from None
