"""What has been measured: benchmarks, studies, their results and RESULTS.md. Needs a checkout."""
