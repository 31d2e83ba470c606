"""Experiments: configs, runs, records, reports, studies, and the training of the embedded pair; a room for each."""
