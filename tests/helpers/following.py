"""A drafter of models that checks, step by step, that it follows the text."""


class Follows:
    """Before a drafter in a class's bases: its cache and its pending tokens must be the text."""

    def prefill(self, tokens):
        super().prefill(tokens)
        self.text = tokens.tolist()

    def commit(self, step):
        super().commit(step)
        self.text += step.emitted_ids
        assert [*self.model._committed, *self._pending, self._root] == self.text
