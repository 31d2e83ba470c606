"""A wrong path is told before anything slow is imported."""

import json
import subprocess
import sys

import pytest

from treespec.experiments.config.file import read_data
from treespec.experiments.config.places import require_inputs
from treespec.experiments.errors import ConfigError

WRONG = {
    "run nosuch.yaml": "no config file 'nosuch.yaml'",
    "sweep nosuch": "no config file 'nosuch'",
    "run smoke models.target=./none": "models.target: there is no model folder './none'",
    "trace smoke models.draft=~/none --out x.npz": "models.draft: there is no model folder '~/none'",
    "check-lossless smoke prompts.kind=text prompts.path=none.txt": "prompts.path = none.txt",
    "generate x --target ./none": "--target: there is no model folder './none'",
    "generate --file none.txt": "none.txt: No such file",
    "search none.npz": "'none.npz': there is no such file; `treespec trace",
    "search none.pt": "'none.pt': there is no such file; `treespec estimate",
    "search 0.6 --latency none.json": "--latency 'none.json'",
    "replay none.npz --shapes chain:2": "'none.npz'",
    "estimate none.npz": "'none.npz'",
    "export none.json --to eagle": "'none.json'",
    "datastore build x.datastore none.md": "none.md: No such file",
    "datastore build x.datastore --model ./none": "--model: there is no model folder './none'",
    "datastore info none.datastore": "none.datastore: No such file",
    "skip-set search x.json none.md": "none.md: No such file",
    "report none": "none is not a run folder",
    "diff none other": "none is not a run folder",
}

CALLS = """
import json, sys
from typer.testing import CliRunner
from treespec.experiments.cli.main import app
found = {}
for line in json.load(sys.stdin):
    done = CliRunner().invoke(app, line.split())
    slow = [name for name in ("torch", "transformers", "polars", "scipy") if name in sys.modules]
    found[line] = done.exit_code, done.stderr, slow
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    command = [sys.executable, "-c", CALLS]
    folder = tmp_path_factory.mktemp("empty")
    lines = json.dumps(list(WRONG))
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=folder)
    assert not done.returncode, done.stderr
    assert not list(folder.iterdir())
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_path_is_told_at_once(told, line):
    code, said, slow = told[line]
    assert (code, slow) == (2, [])
    assert said.startswith("error: ")
    assert WRONG[line] in said


def test_paths_of_the_config_itself_wait_for_the_check_of_its_keys(tmp_path):
    config = tmp_path / "own.yaml"
    config.write_text("models: {target: ./none}\nseed: 1\n")
    before = read_data(config)[1]
    require_inputs(read_data(config, ["models.target=embedded"])[1], before)
    require_inputs(read_data(config, ["seed=2"])[1], before)
    hub = ["prompts={kind: hf_dataset, path: openai/none, split: test}"]
    require_inputs(read_data(config, hub)[1], before)
    with pytest.raises(ConfigError, match=r"models\.draft: there is no model folder '\./no'"):
        require_inputs(read_data(config, ["models.draft=./no"])[1], before)
