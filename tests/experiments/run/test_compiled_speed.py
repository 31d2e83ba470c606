"""How compiled passes are compared with eager ones."""

from types import SimpleNamespace

from treespec.experiments.run import compiled_speed


def test_slowdown_is_the_median_of_rounds_in_turns(monkeypatch):
    seconds = iter([3.0, 1.0, 90.0, 1.0, 4.0, 2.0])
    monkeypatch.setattr(compiled_speed, "pass_seconds", lambda model: next(seconds))
    assert compiled_speed.slowdown(SimpleNamespace(fresh=lambda runner: None)) == 3.0


def test_passes_are_timed_behind_a_prompt():
    class Model:
        vocab_size, max_length = 50, 1000
        rows, runs = 0, 0

        def fresh(self):
            return self

        def prefill(self, tokens):
            assert int(tokens.max()) < self.vocab_size
            self.rows = len(tokens)

        def run(self, tokens, parents):
            assert len(tokens) == len(parents)
            self.runs += 1

        def keep(self, nodes):
            assert not nodes

    model = Model()
    assert compiled_speed.pass_seconds(model) >= 0
    assert (model.rows, model.runs) == (256, 6)
    model.max_length = 100
    compiled_speed.pass_seconds(model)
    assert model.rows == 96
