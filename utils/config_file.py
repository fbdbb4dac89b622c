"""Config files: JSON or YAML, UTF-8 with or without a byte-order mark, no key twice, no NaN."""

import json
import math
import re
from pathlib import Path

from utils.errors import ConfigError


def read(path):
    """The config in the file, a dict."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path.absolute()}: there is no such file. Give a config with -c FILE.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.absolute()}: can't be read as UTF-8 text: {error}") from None
    content = _yaml(text, path) if path.suffix in (".yaml", ".yml") else _json(text, path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path.absolute()}: holds {type(content).__name__}; a config is an object of sections.")
    return content


def value_of(text):
    """A value from the command line: JSON where it parses, else the text itself."""
    if text in ("True", "False", "None"):  # as text all three would mean true
        raise ConfigError(f"command line: {text}: write {'null' if text == 'None' else text.lower()}.")
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except ValueError:
        return text


def _json(text, path):
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        raise ConfigError(
            f"{path.absolute()}: not JSON: {error.msg}, line {error.lineno}, column {error.colno}: {line.strip()[:80]}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path.absolute()}: {error}") from None


def _no_key_twice(pairs):
    made = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"the key '{name}' stands twice in one object; keep one of them.")
        made[name] = value
    return made


def _finite(text):
    value = float(text)
    return value if math.isfinite(value) else _no_constant(text)


def _no_constant(name):
    raise ValueError(f"{name} is not a number that JSON knows; give a finite one.")


def _yaml(text, path):
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"{path.absolute()}: YAML wants 'pyyaml', which isn't installed: pip install pyyaml."
        ) from None

    class Loader(yaml.SafeLoader):
        pass

    # YAML 1.1 reads 1e-3 as text and off as false; JSON, Python and people don't.
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.items()
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
        for first, pairs in resolvers
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("(true|false|True|False)$"), list("tfTF"))
    number = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))

    def mapping(loader, node):
        return _no_key_twice(
            [(loader.construct_object(k, True), loader.construct_object(v, True)) for k, v in node.value]
        )

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    try:
        # What JSON has no word for, a date or .nan, is refused.
        return json.loads(json.dumps(yaml.load(text, Loader=Loader)), parse_constant=_no_constant)
    except TypeError as error:
        raise ConfigError(f"{path.absolute()}: holds what JSON has no word for: {error}. Give it as text.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path.absolute()}: not YAML: {' '.join(str(error).split())[:200]}") from None
