"""Configs in YAML: the same content as in JSON, read as people mean it."""

import json
import re
from typing import Any

from utils import imports
from utils.config_file import TWICE
from utils.errors import ConfigError

TAG = "tag:yaml.org,2002:"


def read(text, path):
    """What YAML text says, in plain values; TWICE stands in the place of a key's second value."""
    yaml: Any = imports.optional("yaml", f"{path.absolute()}: YAML", "pyyaml")

    class Loader(yaml.SafeLoader):
        pass

    # YAML 1.1 reads 1e-3 as text, off as false and 2026-01-01 as a date; JSON, Python and people don't.
    kept, other = yaml.SafeLoader.yaml_implicit_resolvers.items(), {f"{TAG}bool", f"{TAG}timestamp"}
    Loader.yaml_implicit_resolvers = {first: [pair for pair in pairs if pair[0] not in other] for first, pairs in kept}
    Loader.add_implicit_resolver(f"{TAG}bool", re.compile("(true|false|True|False)$"), list("tfTF"))
    number = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver(f"{TAG}float", number, list("-+.0123456789"))

    def mapping(loader, node):
        names = [key.value for key, _ in node.value]
        made = loader.construct_mapping(node, deep=True)  # which lets the last of two keys stand
        return made | {name: TWICE for name in made if names.count(name) > 1}

    Loader.add_constructor(f"{TAG}map", mapping)
    try:
        # What JSON has no word for, as a set, is refused.
        return json.loads(json.dumps(yaml.load(text, Loader=Loader)))
    except TypeError as error:
        raise ConfigError(f"{path.absolute()}: holds what JSON has no word for: {error}. Give it as text.") from None
    except (yaml.YAMLError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path.absolute()}: not YAML: {' '.join(str(error).split())[:200]}") from None
