"""Benchmarks of all claims about speed, measured side by side in one process and printed as ratios.

Each benchmark is a module to run (`python -m treespec.experiments.research.benchmarks.pass_times`). It
writes its figures with hardware, versions and git hash into `experiments/research/results/`.
"""
