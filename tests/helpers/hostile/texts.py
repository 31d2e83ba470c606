"""Small texts that mean too much: bombs of aliases, endless brackets, numbers of 5,000 digits."""

__all__ = [
    "BASE", "BOMB", "DEEP", "DIGITS", "INLINE", "MERGES", "NESTED", "ROW", "at_path", "named", "shape",
]  # fmt: skip

BASE = """name: x
models: {target: /nowhere/model, dtype: float32}
prompts: {kind: jsonl, path: prompts.jsonl}
max_new_tokens: 4
samplings: [{temperature: 0}]
methods: [{kind: plain}]
"""
DIGITS = "9" * 5000
DEEP = "[" * 100_000
NESTED = "[" * 500 + "]" * 500
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(
    f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 10)}]}}\n" for i in range(1, 9)
)
INLINE = "[&a [1, 1, 1, 1, 1, 1, 1, 1], " + ", ".join(
    f"&{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)
INLINE += "]"
ROW = '{"prompt": "def f(x):"}\n'
"""A prompt."""


def shape(text):
    return BASE.replace("[{kind: plain}]", f"[{{kind: tree, shape: {{{text}}}}}]")


def named(name):
    return BASE.replace("name: x", f"name: {name}")


def at_path(path):
    return BASE.replace("path: prompts.jsonl", f"path: {path}")
