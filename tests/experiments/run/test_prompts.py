import copy
import json
from collections import Counter
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Prompts, SearchConfig
from treespec.experiments.errors import ConfigError, PromptError
from treespec.experiments.run import prompts as prompts_module
from treespec.experiments.run.prompts import encode, read_prompts, search_prompts, unread_turns


def source(**data):
    return TypeAdapter(Prompts).validate_python(data)


class Letters:
    """A tokenizer in which each character is a token."""

    chat_template = None

    def encode(self, text, add_special_tokens=True, verbose=True):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        return "".join(f"<{turn['content']}>" for turn in messages)


def complaint(**data):
    with pytest.raises(PromptError) as caught:
        read_prompts(source(**data))
    return str(caught.value)


def test_the_embedded_prompts():
    prompts = read_prompts(source(kind="embedded", count=12))
    assert len(prompts) >= 12
    assert all(prompt.text and prompt.id.endswith(".py") for prompt in prompts)


def test_a_text_file_is_one_prompt_or_several(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("first\n\nstill\n---\nsecond\n")
    (prompt,) = read_prompts(source(kind="text", path=str(path)))
    assert prompt.text == path.read_text()
    parts = read_prompts(source(kind="text", path=str(path), separator="---"))
    assert [part.text for part in parts] == ["first\n\nstill\n", "second\n"]
    assert [part.id for part in parts] == ["a.txt:1", "a.txt:2"]


def test_spec_bench_takes_the_first_turn(tmp_path):
    path = tmp_path / "question.jsonl"
    rows = [{"question_id": 81, "category": "writing", "turns": ["one", "two"]}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (prompt,) = read_prompts(source(kind="spec_bench", path=str(path)))
    assert (prompt.id, prompt.category, prompt.text) == ("81", "writing", "one")
    note = unread_turns([prompt, replace(prompt, turns=1)])
    assert f"{path}, line 1: only the first of its 2 turns" in note
    assert "1 of 2 prompts" in note
    assert unread_turns([replace(prompt, turns=1)]) == ""


def test_encoding_truncates_and_templates(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    raw = read_prompts(source(kind="jsonl", path=str(path)))
    config = source(kind="jsonl", path=str(path), tokens=3)
    (prompt,) = encode(raw, config, Letters())
    assert Letters().decode(prompt.ids) == "hel"
    chat = Letters()
    chat.chat_template = "yes"
    (prompt,) = encode(raw, config, chat)
    assert chat.decode(prompt.ids) == "<hel>"
    told = config.model_copy(update={"system": "be brief"})
    assert chat.decode(encode(raw, told, chat)[0].ids) == "<be brief><hel>"
    with pytest.raises(PromptError, match=r"prompts\.system = 'be brief'.*chat_template"):
        encode(raw, told, Letters())
    off = config.model_copy(update={"chat_template": False})
    assert chat.decode(encode(raw, off, chat)[0].ids) == "hel"
    forced = config.model_copy(update={"chat_template": True})
    with pytest.raises(PromptError, match="has no chat template"):
        encode(raw, forced, Letters())


def test_unreadable_files(tmp_path):
    assert "No such file" in complaint(kind="text", path=str(tmp_path / "none.txt"))
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert "empty" in complaint(kind="text", path=str(empty))
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Übung".encode("latin-1"))
    assert "not UTF-8" in complaint(kind="text", path=str(latin))
    gap = tmp_path / "gap.txt"
    gap.write_text("a\n---\n---\nb\n")
    assert "prompt 2 of 3: the prompt is empty" in complaint(
        kind="text", path=str(gap), separator="---"
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "x", "id": 3}', ["line 2", "no field 'prompt'", "fields present: text, id"]),
        ('{"prompt": 3}', ["line 2", "'prompt' holds 3"]),
        ('{"prompt": ""}', ["line 2", "empty"]),
        ("[1]", ["line 2", "JSON object"]),
        ("{oops", ["line 2", "not JSON"]),
    ],
)
def test_bad_lines_name_file_and_line(tmp_path, line, parts):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    text = complaint(kind="jsonl", path=str(path))
    for part in ["p.jsonl", *parts]:
        assert part in text


def test_more_prompts_than_there_are(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n')
    assert "prompts.count = 2, but" in complaint(kind="jsonl", path=str(path), count=2)


def test_short_texts_are_left_out_on_request():
    long = read_prompts(source(kind="embedded", count=8, least_characters=12000))
    assert len(long) >= 8
    assert all(len(prompt.text) >= 12000 for prompt in long)
    with pytest.raises(
        PromptError, match=r"count = 24, but .* prompts of at least 12000 characters"
    ):
        read_prompts(source(kind="embedded", count=24, least_characters=12000))
    with pytest.raises(PromptError, match="has no such prompt"):
        read_prompts(source(kind="embedded", least_characters=10**9))


def test_of_a_prompt_with_a_source_the_source_must_be_long(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "", "read": "short"}\n{"prompt": "", "read": "long enough"}\n')
    given = {"kind": "jsonl", "path": str(path), "source": "read", "least_characters": 8}
    (prompt,) = read_prompts(source(**given))
    assert prompt.source == "long enough"


def test_excerpts_of_embedded_files_are_categories():
    config = source(kind="embedded", excerpts={"beginning": 0, "middle": 50}, tokens=5, count=8)
    files = read_prompts(source(kind="embedded"))
    prompts = read_prompts(config)
    assert len(prompts) == 2 * len(files)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    encoded = encode(prompts[:8], config, Letters())
    for category, start in (("beginning", 0), ("middle", 50)):
        excerpts = [p for p in encoded if p.category == category]
        assert ["".join(map(chr, p.ids)) for p in excerpts] == [
            f.text[start : start + 5] for f in files[:4]
        ]
        assert [p.index % 2 for p in excerpts].count(
            0
        ) == 2  # each half of the prompts has both categories equally often
    long = read_prompts(
        source(kind="embedded", excerpts={"beginning": 0, "middle": 50}, least_characters=4000)
    )
    places = [i % 2 for i, p in enumerate(long) if p.category == "middle"]
    assert abs(2 * sum(places) - len(places)) <= 1
    more = source(kind="embedded", excerpts={"beginning": 0}, start=3, tokens=5)
    (first,) = encode(read_prompts(more)[:1], more, Letters())
    assert "".join(map(chr, first.ids)) == files[0].text[3:8]
    far = source(kind="embedded", excerpts={"beyond": 10**6})
    with pytest.raises(PromptError, match="no tokens after the first 1000000"):
        encode(read_prompts(far), far, Letters())


def test_no_more_is_read_than_needed(tmp_path):
    """With a count, the end of the file does not matter."""
    path = tmp_path / "p.jsonl"
    rows = [json.dumps({"prompt": "x" * (i % 2 + 1)}) + "\n" for i in range(8)]
    path.write_text("".join(rows) + "no JSON\n")
    config = source(kind="jsonl", path=str(path), count=2)
    assert len(read_prompts(config, more=1)) == 3
    long = source(kind="jsonl", path=str(path), count=3, least_characters=2)
    assert [p.where[-1] for p in read_prompts(long, more=1)] == ["2", "4", "6", "8"]
    with pytest.raises(PromptError, match="line 9: not JSON"):
        read_prompts(config)
    path.write_text("".join(rows[:2]))
    with pytest.raises(PromptError, match=r"prompts.count = 3, but .* has 2 prompts"):
        read_prompts(source(kind="jsonl", path=str(path), count=3), more=1)


def test_prompts_are_kept_as_text_of_a_bounded_length(loaded_pair):
    tokenizer = loaded_pair.tokenizer
    texts = "def walk(tree):\n", "x = 1\n" * 2000
    prompts = [
        prompts_module.Prompt(i, "", None, tuple(tokenizer.encode(text)), "", 0)
        for i, text in enumerate(texts)
    ]
    short, cut = prompts_module.texts_of(prompts, tokenizer)
    assert short == texts[0]
    assert cut == f"…{texts[1][-prompts_module.LETTERS_SHOWN :]}"


def test_a_run_keeps_the_text_of_the_prompts_whose_trees_it_keeps(start):
    for trees, out in ((1, "one"), (0, "none")):
        folder = start({"trees": trees}, out=out).folder
        manifest = json.loads((folder / "manifest.json").read_text())
        assert len(manifest["prompt_texts"]) == 1
        assert manifest["prompt_texts"][0]


def test_tasks_are_short_texts_of_each_category():
    """The tasks are our own: not from the held-out files, and short enough for the smallest context."""
    from treespec.experiments.run.held_out import HeldOut

    prompts = read_prompts(source(kind="tasks"))
    wanted = dict.fromkeys(("code", "prose", "editing", "logs"), 12)
    assert Counter(prompt.category for prompt in prompts) == wanted
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == 48
    assert all(200 <= len(prompt.text) <= 2000 for prompt in prompts)
    held_out = HeldOut()
    assert not any(held_out.has_copy(f"{prompt.id}.py", prompt.text) for prompt in prompts)
    assert len(read_prompts(source(kind="tasks", count=5), more=0)) >= 5


def test_chat_prompts_are_requests_of_each_category():
    """As many of each for measuring as for tuning, in turns; each with one request, which is no other's."""
    prompts = read_prompts(source(kind="chat", count=144))
    assert len({prompt.text for prompt in prompts}) == len({p.id for p in prompts}) == 144
    for part in (prompts[:96], prompts[96:]):
        counts = Counter(prompt.category for prompt in part)
        assert len(counts) == 8
        assert set(counts.values()) == {len(part) // 8}
    assert all(20 <= len(prompt.text) <= 1000 and prompt.turns == 1 for prompt in prompts)
    assert read_prompts(source(kind="chat", skip=96)) == prompts[96:]
    assert read_prompts(source(kind="chat")) == prompts[:96]


def test_searches_use_the_chat_prompts_for_tuning():
    def searched(**prompts):
        change = {"prompts": source(kind="chat", **prompts), "search": SearchConfig()}
        return search_prompts(load_config("smoke").model_copy(update=change))

    assert (searched(count=12).skip, searched(count=12).count) == (96, 12)
    assert searched(count=90, skip=6).count == 48
    with pytest.raises(ConfigError, match="name other prompts here"):
        searched(count=97)


def test_chat_prompts_take_the_chat_template():
    config = source(kind="chat", count=1, system="be brief")
    raw, chat = read_prompts(config)[:1], Letters()
    with pytest.raises(PromptError, match="kind = 'chat', but the tokenizer has no chat template"):
        encode(raw, config, chat)
    chat.chat_template = "yes"
    assert chat.decode(encode(raw, config, chat)[0].ids) == f"<be brief><{raw[0].text}>"


ASKED = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "and?"},
]


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"messages": ASKED}, "<be kind><hi><hello><and?>"),
        ({"prompt": ASKED[1:]}, "<be brief><hi><hello><and?>"),
        ({"prompt": "and?", "messages": ASKED}, "<be brief><and?>"),
        ({"prompt": "and?", "system": "be kind"}, "<be kind><and?>"),
        ({"messages": ASKED[1:], "system": "be kind"}, "<be kind><hi><hello><and?>"),
        ({"prompt": "and?", "system": ""}, "<be brief><and?>"),
    ],
)
def test_conversations_and_system_prompts_of_a_file_are_read(tmp_path, row, wanted):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row) + "\n")
    config, chat = source(kind="jsonl", path=str(path), system="be brief"), Letters()
    raw = read_prompts(config)
    assert unread_turns(raw) == ""
    chat.chat_template = "yes"
    assert chat.decode(encode(raw, config, chat)[0].ids) == wanted
    (cut,) = encode(raw, config.model_copy(update={"tokens": 2}), chat)
    assert chat.decode(cut.ids) == wanted.replace("and?", "an")  # only the last turn is cut
    told = config.model_copy(update={"system": None})
    if raw[0].before:
        with pytest.raises(
            PromptError, match=r"p\.jsonl, line 1: several turns, but texts are put"
        ):
            encode(raw, told, Letters())


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "turn 1: role = 'tool', but a turn is by",
        ),
        ({"messages": [ASKED[1], ASKED[0]]}, "turn 2: role = 'system', but a turn is by"),
        ({"messages": ASKED[:3]}, "the last turn is by `assistant`, but the user's turn ends"),
        ({"messages": [{"role": "user"}]}, "turn 1: content = None, but text is needed"),
        ({"messages": [ASKED[1], "and?"]}, "turn 2: role = None"),
        ({"messages": []}, "'messages' holds [], but text is needed"),
        ({"prompt": "x", "system": 3}, "field 'system' holds 3, but text is needed"),
        (
            {"messages": ASKED, "system": "x"},
            "fields 'system' and 'messages' both hold a system prompt",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "holds half a character"),
    ],
)
def test_conversations_that_are_none(tmp_path, row, told):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row) + "\n")
    text = complaint(kind="jsonl", path=str(path))
    assert text.startswith(f"{path}, line 1: ")
    assert told in text


@pytest.mark.parametrize("key", ["prompt", "id", "category"])
def test_half_characters_are_refused_wherever_they_are_kept(tmp_path, key):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "fine", key: "\ud800"}) + "\n")
    assert f"line 1: field '{key}' holds half a character" in complaint(
        kind="jsonl", path=str(path)
    )


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ messages | nonsense }}", "{{ 1 / 0 }}", "{{ a.b.c }}"]
)
def test_a_chat_template_that_fails_is_named(tmp_path, loaded_pair, template):
    tokenizer = copy.deepcopy(loaded_pair.tokenizer)
    tokenizer.chat_template = template
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "hello"}\n')
    config = source(kind="jsonl", path=str(path))
    with pytest.raises(PromptError, match="chat template fails"):
        encode(read_prompts(config), config, tokenizer)
