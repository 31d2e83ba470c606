import json

import pytest

from treespec import Law, TreeShape, verify
from treespec.experiments.lossless import prove
from treespec.experiments.lossless.prove import Job, Result, jobs
from treespec.testing import Proof, plane_trees

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def test_the_whole_proof_has_every_tree_law_and_theorem():
    whole = jobs()
    shapes = [shape for size in range(1, 7) for shape in plane_trees(size)]
    assert len(shapes) == 65
    steps = {(job.shape, job.law) for job in whole if job.theorem == "one step"}
    assert steps == {(shape, law) for shape in shapes for law in Law}
    assert all(job.tables >= 20 for job in whole if job.theorem == "one step")
    composed = {job.shape for job in whole if job.theorem == "composition"}
    assert composed == {shape for shape in shapes if shape.size <= 4}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "theorem", ["one step", "fractions", pytest.param("composition", marks=pytest.mark.slow)]
)
def test_a_part_proves_every_rule_of_its_law(theorem):
    results = prove.prove(Job(theorem, TreeShape.expansion([2]), Law.IID, 1))
    rules = {str(r) for r in verify.RULES.values() if r.lossless and Law.IID in r.laws}
    assert {r.rule for r in results} == rules - {"chain", "block"}  # they need chains
    assert all(r.failure is None and r.proof.cases > 0 for r in results)
    if theorem == "fractions":
        assert all(r.proof.largest_error == 0 for r in results)


def test_a_rule_that_is_not_lossless_is_found(monkeypatch):
    biased = verify.lenient.using(lenience=0.5)
    biased.lossless = True
    monkeypatch.setitem(prove.RULES, "lenient", biased)
    for theorem in ("one step", "composition"):
        results = prove.prove(Job(theorem, TreeShape.chain(1), Law.IID, 1))
        assert [r.rule for r in results if r.failure] == ["lenient"]


def test_the_command_prints_and_writes(monkeypatch, tmp_path, capsys):
    def few(todo):
        yield 1, 2, [Result("one step", "rrs", "iid", Proof(3, 40, 1e-16))]
        yield 2, 2, [Result("one step", "rrs", "iid", Proof(2, 20, 2e-16), failure)]

    monkeypatch.setattr(prove, "proofs", few)
    failure, out = None, tmp_path / "proof.json"
    assert prove.main(["--out", str(out)]) == 0
    assert "5 cases, 60 branches, largest error 2e-16" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["proved"] == [
        {"theorem": "one step", "rule": "rrs", "law": "iid", "cases": 5, "runs": 60,
         "largest_error": 2e-16, "largest_share": 0.0}
    ]  # fmt: skip
    assert {"hardware", "versions"} <= written.keys()
    assert (written["parts"], written["of_parts"]) == (2, 2)
    failure = "rule rrs is not lossless"
    assert prove.main([]) == 1
    assert "NOT PROVED: rule rrs is not lossless" in capsys.readouterr().out


def test_what_was_proved_before_an_end_is_not_lost(monkeypatch, tmp_path):
    def cut_short(todo):
        yield 1, 2, [Result("one step", "rrs", "iid", Proof(3, 40, 1e-16))]
        raise KeyboardInterrupt

    monkeypatch.setattr(prove, "proofs", cut_short)
    with pytest.raises(KeyboardInterrupt):
        prove.main(["--out", str(tmp_path / "proof.json")])
    written = json.loads((tmp_path / "proof.json").read_text())
    assert (written["parts"], written["of_parts"]) == (1, 2)
    assert written["proved"][0]["runs"] == 40


def test_a_file_of_others_is_not_replaced(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(prove, "proofs", lambda todo: pytest.fail("refused before"))
    (tmp_path / "proof.json").write_text('{"mine": 1}')
    with pytest.raises(SystemExit) as ended:
        prove.main(["--out", str(tmp_path / "proof.json")])
    assert ended.value.code == 2
    assert "is not a record of this command" in capsys.readouterr().err
    assert (tmp_path / "proof.json").read_text() == '{"mine": 1}'
