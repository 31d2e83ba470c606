"""Experiments: configs, runs, records, reports, studies, the embedded pair: a room for each."""
