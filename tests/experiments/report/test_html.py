from dataclasses import replace

from run_folders.folders import demo_methods, write_run

from treespec.experiments.report.run import load_run


def test_a_run_says_what_it_found(tmp_path):
    methods = list(demo_methods())
    methods[8] = replace(methods[8], name="<b>tree</b>")
    run = load_run(write_run(tmp_path / "run", methods, prompts=6, spread=0.1, jitter=0.03))
    html = run._repr_html_()
    assert "<h4>tree_vs_chain</h4>" in html
    assert "times as fast as" in html
    assert html.count("<table>") == 2
    assert "&lt;b&gt;tree&lt;/b&gt;" in html
    assert "<b>tree" not in html
