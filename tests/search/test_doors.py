"""What `import search` provides, and what it imports only when needed."""

import subprocess
import sys

CODE = """
import sys, search
assert search.formats.load("[(0,), (0, 0)]").parents == (-1, 0, 1)
assert "formats" in search.__all__
heavy = {"networkx", "scipy", "transformers", "yaml", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_formats_are_at_the_door_and_nothing_heavy_is():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
