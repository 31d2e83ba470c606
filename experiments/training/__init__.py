"""The recipe that trains the embedded model pair; run it with `python -m treespec.experiments.training`."""
