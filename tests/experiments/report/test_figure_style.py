"""The style that all figures share."""

import warnings

from treespec.experiments.report.figure_style import wrapped


def test_a_name_that_is_wrapped_already_is_measured_without_its_line_breaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a font has no glyph for a line break
        assert wrapped("chain 4\n(naive)", 2.0) == "chain 4 (naive)"
