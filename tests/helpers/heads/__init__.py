"""Published formats of trained drafts: random tiny checkpoints, and their rows by straight-line arithmetic.

Nothing here imports `treespec`: the references were written from the formats, so that a drafter which
agrees with them agrees with the format and not with itself.
"""
