"""Experiments: configs, runner, records, reports, and the training of the embedded pair."""
