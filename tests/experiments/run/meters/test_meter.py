from treespec.experiments.records.rows import PromptRow
from treespec.experiments.run.meters.meter import COLUMNS, Meters


class Fake:
    def __init__(self, log, fail=""):
        self.log, self.fail = log, fail
        self.sources = {"rss_bytes": "fake"}
        self.unavailable = {"peak_rss_bytes": "it is a fake"}

    def start(self):
        self.log.append("start")
        if self.fail == "start":
            raise OSError("gone")

    def stop(self):
        self.log.append("stop")
        if self.fail == "stop":
            raise ValueError("gone")
        return {"rss_bytes": 7}


def test_every_column_is_one_of_the_rows():
    assert set(COLUMNS) <= set(PromptRow.model_fields)


def test_all_columns_are_there_and_the_manifest_says_why_some_are_null():
    meters = Meters([Fake([])], {"gpu_energy_j": "no GPU"}, {"cpu": 4.5})
    meters.start()
    values = meters.stop()
    assert set(values) == set(COLUMNS)
    assert values["rss_bytes"] == 7
    assert sum(value is not None for value in values.values()) == 1
    assert meters.about() == {
        "sources": {"rss_bytes": "fake"},
        "unavailable": {"peak_rss_bytes": "it is a fake", "gpu_energy_j": "no GPU"},
        "idle_w": {"cpu": 4.5},
    }


def test_the_last_to_start_is_the_first_to_stop():
    log = []
    first, second = Fake(log), Fake(log)
    first.start = lambda: log.append("first")
    second.stop = lambda: log.append("second") or {}
    meters = Meters([first, second])
    meters.start()
    meters.stop()
    assert log == ["first", "start", "second", "stop"]


def test_a_meter_that_fails_is_left_out_and_the_run_goes_on():
    for where in ("start", "stop"):
        log = []
        meters = Meters([Fake(log, where), Fake([])])
        for _ in range(2):
            meters.start()
            assert meters.stop()["rss_bytes"] == 7  # from the meter that works
        assert log.count("start") == 1
        alone = Meters([Fake([], where)])
        alone.start()
        assert alone.stop()["rss_bytes"] is None
        assert "failed during the run" in alone.about()["unavailable"]["rss_bytes"]
        assert "gone" in alone.about()["unavailable"]["rss_bytes"]
