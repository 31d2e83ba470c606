"""The training recipe of the embedded model pair; run it with `python -m treespec.experiments.training`."""
