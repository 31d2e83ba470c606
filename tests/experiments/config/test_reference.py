"""Every key of a config is described, and the generated files match the descriptions in the code."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from treespec import plugin_files
from treespec.experiments.cli.main import app
from treespec.experiments.config import reference
from treespec.experiments.config.build import LAWS
from treespec.experiments.config.file import first_config, load_config
from treespec.experiments.config.files import shipped
from treespec.experiments.config.reference import PAGE, SCHEMA, config_schema, reference_page
from treespec.experiments.config.schema import Config
from treespec.verify import RULES

FOUR = Path(__file__).parents[2] / "helpers" / "plugins" / "four_parts.py"
COMMAND = "python -m treespec.experiments.config.reference"


def test_the_files_are_those_of_the_code():
    assert PAGE.read_text(encoding="utf-8") == reference_page(), COMMAND
    assert SCHEMA.read_text(encoding="utf-8") == reference.schema_text(), COMMAND


def undescribed(part, where=""):
    """Properties of a schema without a description."""
    for key, value in part.get("properties", {}).items():
        if not value.get("description", "").strip():
            yield f"{where}.{key}"
    for name, inner in part.get("$defs", {}).items():
        yield from undescribed(inner, name)


def test_every_key_is_described():
    schema = config_schema()
    assert len(schema["$defs"]) > 20
    assert list(undescribed(schema)) == []
    assert all(part["description"] for part in schema["$defs"].values())


def test_rules_and_laws_are_listed_and_others_are_allowed():
    """Editors offer built-in names; names of plug-ins are not errors."""
    tree = config_schema()["$defs"]["TreeMethod"]["properties"]
    for key, names in (("law", LAWS), ("rule", RULES)):
        listed, other, null = tree[key]["anyOf"]
        assert listed["enum"] == [*names]
        assert all(listed["enumDescriptions"])
        assert (other["type"], null["type"]) == ("string", "null")
        page = reference_page()
        assert f"| `{key}` | [name](#{key}) or null |" in page
        assert all(f"| `{name}` | " in page.split(f"\n## {key}\n")[1] for name in names)


def test_parts_of_a_plug_in_are_in_the_schema():
    words = ["configs", "--schema", "--plugin", str(FOUR)]
    told = json.loads(CliRunner().invoke(app, words).stdout)
    try:
        assert list(undescribed(told)) == []
        tree = told["$defs"]["TreeMethod"]["properties"]
        assert "mine" in tree["rule"]["anyOf"][0]["enum"]
        assert "repeat" in tree["draft"]["discriminator"]["mapping"]
        assert any("twins" in one.get("discriminator", {}).get("mapping", {})
                   for one in tree["shape"]["anyOf"])  # fmt: skip
    finally:
        plugin_files.load()
    assert config_schema() == json.loads(SCHEMA.read_text(encoding="utf-8"))
    alone = CliRunner().invoke(app, ["configs", "--plugin", str(FOUR)])
    assert (alone.exit_code, alone.stderr.count("give --schema too")) == (2, 1)


def test_a_key_without_a_description_would_be_found():
    schema = config_schema()
    del schema["$defs"]["ChainShape"]["properties"]["depth"]["description"]
    assert list(undescribed(schema)) == ["ChainShape.depth"]


def test_every_key_stands_on_the_page():
    page = reference_page()
    schema = config_schema()
    for part in [schema, *schema["$defs"].values()]:
        kind = part["properties"].get("kind")
        if kind is not None:
            assert f"### {kind['const']}\n" in page
        for key, value in part["properties"].items():
            if key != "kind":
                assert f"| `{key}` |" in page
                assert " ".join(value["description"].split()) in page


def test_bounds_and_defaults_are_the_models():
    page = reference_page()
    assert "| `width` | whole number from 1 to 64 | `8` | Children recorded" in page
    assert "| `name` | text | **must be given** |" in page
    assert "above 0 and of at most 1 or null" in page


@pytest.mark.parametrize("name", shipped())
def test_shipped_configs_fit_the_schema(name):
    validate = pytest.importorskip("jsonschema").validate
    validate(yaml.safe_load(shipped()[name].read_text(encoding="utf-8")), config_schema())


def test_spelled_shapes_fit_and_nonsense_does_not():
    module = pytest.importorskip("jsonschema")
    data = yaml.safe_load(shipped()["smoke"].read_text(encoding="utf-8"))
    data["methods"][3]["shape"] = "kary:2x3"
    module.validate(data, config_schema())
    data["methods"][3]["shap"] = "kary:2x3"
    with pytest.raises(module.ValidationError):
        module.validate(data, config_schema())


@pytest.mark.parametrize("name", ["my.yaml", "null.yaml", "12.yaml", "a b: {c}.yaml", "é.yml", "x"])
def test_the_first_config_is_one(tmp_path, name):
    path = tmp_path / name
    path.write_text(first_config(path), encoding="utf-8")
    config = load_config(path)
    assert config.name == path.stem
    assert {method.kind for method in config.methods} == {"generate", "plain", "tree"}
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
