"""Names of result files."""

import pytest

from treespec.experiments.research.benchmarks import results_file


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "passes-amd-epyc-2-cores.json"),
        ({"simd": "AVX512_BF16"}, "passes-amd-epyc-2-cores.json"),
        ({"simd": None}, "passes-amd-epyc-2-cores.json"),
        ({"simd": "AVX2"}, "passes-amd-epyc-avx2-2-cores.json"),
        ({"gpu": "NVIDIA H200", "simd": "AVX2"}, "passes-nvidia-h200.json"),
    ],
)
def test_machines_that_differ_have_files_of_their_own(changed, name, monkeypatch, tmp_path):
    hardware = {"cpu": "AMD EPYC", "simd": "AVX512", "cores": 2, "gpu": None} | changed
    monkeypatch.setattr(results_file, "environment", lambda: {"hardware": hardware})
    assert results_file.path_of("passes", tmp_path) == tmp_path / name
