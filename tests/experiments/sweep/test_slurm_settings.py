import pytest

from treespec.experiments.errors import SweepError
from treespec.experiments.sweep.slurm import parse_settings


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("partition=gpu", "partition", "gpu"),
        ("time=60", "time", 60),
        ("cpus-per-task=2", "cpus_per_task", 2),
        ("nodelist=010", "nodelist", "010"),
        ("begin=16:00", "begin", "16:00"),
        ("gres=gpu:a=b", "gres", "gpu:a=b"),
        ("requeue=true", "requeue", True),
        ("use_srun=false", "use_srun", False),
        ("setup=module load cuda: 12", "setup", ["module load cuda: 12"]),
    ],
)
def test_values_are_text_but_for_whole_numbers_and_switches(text, key, value):
    found = parse_settings([text])
    assert found == {key: value}
    assert type(found[key]) is type(value)


def test_lists_grow_and_the_last_of_others_counts():
    given = ["setup=a", "mem=1G", "setup=7", "mem=2G", "srun_args=--mpi=none"]
    assert parse_settings(given) == {
        "setup": ["a", "7"],
        "mem": "2G",
        "srun_args": ["--mpi=none"],
    }


@pytest.mark.parametrize("value", ["1:00:00", "1-0", "060", "1.5", "60m", "true"])
def test_times_that_are_no_minutes_are_refused(value):
    with pytest.raises(SweepError, match=rf"'time={value}': .*whole number of minutes.*time=60"):
        parse_settings([f"time={value}"])


@pytest.mark.parametrize(
    "text", ["partition", "=gpu", "partition=", "additional_parameters={a: 1}"]
)
def test_what_is_no_setting_is_refused(text):
    with pytest.raises(SweepError, match=r"(?i)key=value"):
        parse_settings([text])


@pytest.mark.parametrize(
    "text", ["account=a\nrm -rf x", "a\nb=c", "comment=\x1b[2J", "setup=a\rb", "a b=c"]
)
def test_nothing_of_a_setting_becomes_a_line_of_the_script(text):
    with pytest.raises(SweepError, match="on one line"):
        parse_settings([text])
