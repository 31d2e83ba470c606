"""Figures that teach: why drafting helps, what it must not change, what a pass costs, when help ends.

Each module computes; `figures` and `timeline_figure` draw what they return. Nothing is drawn by hand.
`python -m treespec.experiments.teaching --out FOLDER` writes all of them for this machine.
"""
