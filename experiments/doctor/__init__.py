"""Check what this machine can do: facts about it, a self-test, and the cost of verifying a tree."""

from treespec.experiments.doctor.checkup import examine, print_checkup

__all__ = ["examine", "print_checkup"]
