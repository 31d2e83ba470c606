"""Places of captured passes, without a device: who gets one, and in which state."""

import gc

from treespec.models.cache import TreeCache
from treespec.models.passes import captured_runner
from treespec.models.passes.captured_runner import Place, Places
from treespec.models.transformers_model import TransformersModel


def test_a_place_that_is_given_again_holds_no_rows_of_the_last_text(load, monkeypatch):
    monkeypatch.setattr(
        captured_runner, "_new_place", lambda model, layout: Place(TreeCache(layout), None, None)
    )
    model, places = TransformersModel(load("llama")), Places()
    given = model.model, model.finding.route, model.finding.layout
    runner = places.runner(*given)
    place = runner.place
    runner.cache.begin(0, 3)
    runner.cache.keep(range(3))
    assert places.runner(*given).place is not place
    del runner
    gc.collect()
    again = places.runner(*given)
    assert again.place is place
    assert again.cache.length == 0
