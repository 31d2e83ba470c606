"""`python -m treespec.experiments.cli`: the command line without its script."""

from treespec.experiments.cli.main import main

main()
