"""What the notebooks show: why drafting helps, what it must not change, what a pass costs, when it pays.

Each module computes data; `figures` and `timeline_figure` draw it. Nothing is drawn by hand.
"""
