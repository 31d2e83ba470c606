"""Every key of a config is described, and the files made of the descriptions are those of the code."""

import json

import pytest
import yaml

from treespec.experiments.config import reference
from treespec.experiments.config.file import load_config, shipped
from treespec.experiments.config.first import first_config
from treespec.experiments.config.reference import PAGE, SCHEMA, config_schema, reference_page
from treespec.experiments.config.schema import Config

COMMAND = "python -m treespec.experiments.config.reference"


def test_the_files_are_those_of_the_code():
    assert PAGE.read_text(encoding="utf-8") == reference_page(), COMMAND
    assert SCHEMA.read_text(encoding="utf-8") == reference.schema_text(), COMMAND


def undescribed(part, where=""):
    """Properties of a schema without words of their own."""
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
    assert {method.kind for method in config.methods} == {"plain", "tree"}
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
