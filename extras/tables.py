"""Tables of words that lie beside the code: what to look for, and what to say of it."""

import re
from pathlib import Path


def text(name):
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def pairs(name):
    """[(pattern, words)] of a file in which each pattern is a line, and its words the indented lines below it."""
    blocks = (block.split("\n") for block in re.split(r"\n(?=\S)", text(name).rstrip()))
    return [(pattern, " ".join(map(str.strip, words))) for pattern, *words in blocks]
