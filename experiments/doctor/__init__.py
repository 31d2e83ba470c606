"""What this machine can do: facts about it, tests of what matters, and the cost of verifying a tree."""

from experiments.doctor.checkup import examine
from experiments.doctor.findings import Checkup, Fact, Speed, Status, Trial
from experiments.doctor.text import print_checkup

__all__ = ["Checkup", "Fact", "Speed", "Status", "Trial", "examine", "print_checkup"]
