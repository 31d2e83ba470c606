"""Check what this machine can do: facts about it, a self-test, and the cost of verifying a tree."""

from treespec.experiments.doctor.checkup import examine
from treespec.experiments.doctor.findings import Checkup, Fact, Speed, Status, Trial
from treespec.experiments.doctor.text import print_checkup

__all__ = ["Checkup", "Fact", "Speed", "Status", "Trial", "examine", "print_checkup"]
