"""ConfigParser: a file and what the command line changes of it → a checked config → the objects it names.

Nothing here loads torch before an object is asked for, so a config that is wrong by itself is reported at once.
"""

import copy
import functools
import inspect
import os
from collections import OrderedDict
from pathlib import Path

from logger import get_logger, open_log
from utils import config_file, description, imports, objects, runs, write_json
from utils.errors import ConfigError
from utils.util import as_plain

HOMES = {
    "arch": "model.model",
    "loss": "model.loss",
    "metrics": "model.metric",
    "data_loader": "data_loader.data_loaders",
    "valid_data_loader": "data_loader.data_loaders",
    "test_data_loader": "data_loader.data_loaders",
    "optimizer": "torch.optim",
    "lr_scheduler": "torch.optim.lr_scheduler",
    "trainer": "trainer.trainer",
}
FUNCTIONS = ("loss", "metrics")  # of these sections a function is wanted itself, not what it returns


class ConfigParser:
    """A mapping of sections that can make the objects they name.

    config: the sections, a dict. resume: path of the checkpoint to go on from. modification: {"a;b;c" or "a.b.c":
    value}, None values left out. run_id: the name of the run's folder in `trainer.save_dir/name`, else the time.
    """

    def __init__(self, config, resume=None, modification=None, run_id=None):
        self._config = copy.deepcopy(getattr(config, "config", config))
        self.resume = Path(resume) if resume is not None else None
        self.run_id = run_id
        self.source = "config"  # the file's name, for messages
        self.trust = False
        self.given = None  # with a checkpoint: the sections that the user gave; all others came with it
        self.checkpoint = None  # the content of `resume`, once it was read
        self.changes = []  # [(dotted path, saved, now)] of a resumed run
        self.continues = True  # in the checkpoint's folder; from a checkpoint that is not its newest a new run begins
        self.reuses = False  # a folder of this run_id, begun before and without a checkpoint
        self._folder = None
        self._built = {}
        given = (modification or {}).items()
        self._set_all({path.replace(";", "."): value for path, value in given if value is not None})

    @classmethod
    def from_args(cls, args, options=""):
        """The config that a command line asks for.

        args: an argparse parser with -c/--config, -r/--resume and -d/--device; overrides, run_id and trust are used
        where it has them. options: (flags, type, target) of more flags, the target a path of keys: "optimizer;args;lr"
        or a tuple of names.
        """
        targets = {}
        for flags, kind, target in options:
            made = args.add_argument(*flags, default=None, type=kind)
            targets[made.dest] = target if isinstance(target, str) else ";".join(target)
        parsed = args.parse_intermixed_args()  # KEY=VALUE may stand between the flags
        if getattr(parsed, "device", None) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = parsed.device
        changed = {target: getattr(parsed, name) for name, target in targets.items()}
        changed = {target.replace(";", "."): value for target, value in changed.items() if value is not None}
        changed |= dict(map(_key_and_value, getattr(parsed, "overrides", ())))
        file = Path(parsed.config).absolute() if parsed.config else None
        given = config_file.read(file) if file else {}
        if file:
            imports.remember(file.parent)
        run_id, resume = getattr(parsed, "run_id", None), parsed.resume
        if run_id is not None and (run_id in ("", ".", "..") or Path(run_id).name != run_id):
            raise ConfigError(f"--run-id '{run_id}' can't be a folder's name; leave slashes out.")
        if resume not in (None, "latest", "auto"):
            resume = Path(resume).absolute()
        elif file is None:
            raise ConfigError("Say which config: add -c config.json, or -r CHECKPOINT to go on with a run.")
        imports.add([*([file.parent] if file else []), Path.cwd()])
        os.chdir(imports.ROOT)
        config = cls._resumed(resume, given, changed, run_id)
        config.trust = getattr(parsed, "trust", False)
        config.source = file.name if file else config.resume.name
        return config

    @classmethod
    def _resumed(cls, resume, given, changed, run_id):
        """The saved config of the checkpoint that -r names, with the given sections in the place of the saved ones."""
        complete = description.with_defaults
        path, content = None, {}
        if resume is not None:
            runs_dir = None if isinstance(resume, Path) else cls(complete(given))._set_all(changed).runs_dir
            path, content = runs.find_checkpoint(resume, runs_dir, run_id, get_logger("config").warning)
        if path is None:
            config = cls(given, None, None, run_id)._set_all(changed)
            config.reuses = resume == "auto" and run_id is not None
            return config
        saved = content.get("config", {})
        if not (saved or given):
            raise ConfigError(f"{path}: the checkpoint holds no config; give one with -c FILE.")
        imports.add(runs.config_folders(path.parent, imports.known()))
        config = cls({**saved, **given}, path, None, run_id)._set_all(changed)
        config.checkpoint = content
        config.continues = runs.is_newest(path, content)
        config.given = frozenset(given)
        config.changes = description.differences(complete(saved), complete(config.config)) if saved else []
        return config

    def _set_all(self, values):
        """Set keys by their dotted paths; ConfigError with the nearest name where there is no such key."""
        for path, value in values.items():
            description.set_value(self._config, path, value)
        return self

    def check(self):
        """Find the mistakes that a config has by itself, all at once, and fill in the defaults of what is left out."""
        found = description.problems(self._config)
        if found:
            raise ConfigError("\n".join(f"{self.source}: {line}" for line in found))
        self._config = OrderedDict(description.with_defaults(self._config))

    def init_obj(self, name, module=None, *args, **kwargs):
        """Make the object or objects that section `name` describes; `name` may also be the dotted path of one of them.

        module: where bare names are looked for, else the section's own home (model.model for arch, …). args and kwargs
        come before and beside the section's args, which may not repeat one. A class is constructed; a function is
        called, but for loss and metrics, where it is bound to its args. A list gives a list, names → objects a dict.
        """
        call = name.partition(".")[0] not in FUNCTIONS
        self._built[name] = self._make(self._section(name), self._home(name, module), name, args, kwargs, call)
        return self._built[name]

    initialize = init_obj

    def init_ftn(self, name, module=None, *args, **kwargs):
        """The function of section `name`, bound to its args and to these."""
        given = {**self._section(name).get("args", {}), **kwargs}
        return objects.make(self.find(name, module), args, given, self._place(name), call=False)

    def find(self, name, module=None):
        """The class or function that section `name` names."""
        return self._locate(self._section(name), self._home(name, module), name)

    def remember(self, name, made):
        """Let {"from": "name.attribute"} read off an object that was made another way."""
        self._built[name] = made

    def _section(self, name):
        return functools.reduce(lambda holder, key: holder[key], name.split("."), self._config)

    @staticmethod
    def _home(name, module):
        return module if module is not None else HOMES.get(name.partition(".")[0], "builtins")

    def _place(self, path):
        return f"{self.source}: {path}"

    def _locate(self, spec, home, path):
        kind, place = (spec, path) if isinstance(spec, str) else (spec["type"], f"{path}.type")
        judge, section = None, path.partition(".")[0]
        if self.given is not None and section not in self.given and not self.trust:
            judge = objects.refuse_strangers(self._place(place), imports.users_folders())
        found = objects.locate(kind, home, self._place(place), judge)
        if section == "optimizer":
            from utils.optim import lean

            found = lean(found)
        return found

    def _make(self, spec, home, path, args=(), kwargs=None, call=True):
        if isinstance(spec, list):
            return [self._make(item, home, f"{path}.{i}", args, kwargs, call) for i, item in enumerate(spec)]
        if isinstance(spec, dict) and "type" not in spec:
            return {name: self._make(item, home, f"{path}.{name}", args, kwargs, call) for name, item in spec.items()}
        found = self._locate(spec, home, path)
        spec = {} if isinstance(spec, str) else spec
        given = {name: self._value(value, home, f"{path}.args.{name}") for name, value in spec.get("args", {}).items()}
        if twice := sorted(given.keys() & (kwargs or {}).keys()):
            raise ConfigError(f"{self._place(path)}.args.{twice[0]}: is given by the code; leave it out.")
        made = objects.make(found, args, {**given, **(kwargs or {})}, self._place(path), call)
        return made if call else _named(made, spec.get("name"), getattr(found, "__name__", path))

    def _value(self, value, home, path):
        """An argument's value: objects in it are made first, {"from": "data_loader.x"} is read off what was made."""
        if isinstance(value, list):
            return [self._value(item, home, f"{path}.{i}") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("type"), str) and not value.keys() - {"type", "args"}:
            return self._make(value, home, path, call=False)
        if value.keys() == {"from"}:
            return self._read_off(str(value["from"]), path)
        return {name: self._value(item, home, f"{path}.{name}") for name, item in value.items()}

    def _read_off(self, source, path):
        section, *names = source.split(".")
        if section not in self._built:
            made = ", ".join(self._built) or "nothing"
            raise ConfigError(f"{self._place(path)}: '{source}': {section} is not made before this; there is {made}.")
        found = self._built[section]
        for name in names:
            if name.startswith("_") or not hasattr(found, name):
                hint = description.near(name, [public for public in dir(found) if not public.startswith("_")])
                raise ConfigError(f"{self._place(path)}: {type(found).__name__} has no '{name}'. {hint}".rstrip())
            found = getattr(found, name)
        return found

    def get_logger(self, name, verbosity=2):
        return get_logger(name, verbosity)

    @property
    def runs_dir(self):
        """Where the runs of this name go."""
        if "name" not in self._config:
            raise ConfigError(f"{self.source}: name: missing. {description.PATHS['name'].text}.")
        return Path(self._config["trainer"]["save_dir"]).absolute() / str(self._config["name"])

    @property
    def save_dir(self):
        """The run's folder, made when it is first asked for; of several processes the first makes it."""
        if self._folder is None:
            from utils import processes

            self._folder = processes.from_main(self._begin_folder() if processes.is_main() else None)
        return self._folder

    log_dir = _save_dir = _log_dir = save_dir

    def _begin_folder(self):
        more = {"config_folders": imports.users_folders(), "changes": [list(change) for change in self.changes]}
        if self.resume is not None and self.continues:
            folder = self.resume.parent
        elif self.reuses and (self.runs_dir / self.run_id).exists():
            folder = self.runs_dir / self.run_id
        else:
            folder = runs.create(self.runs_dir, self.run_id)
            more["resumed_from"] = str(self.resume) if self.resume is not None else None
        runs.lock(folder)
        write_json(as_plain(self._config), folder / "config.json")
        runs.write_environment(folder, **more)
        open_log(folder / "train.log")
        return folder

    @property
    def config(self):
        return self._config

    def __getitem__(self, name):
        return self._config[name]

    def __setitem__(self, name, value):
        self._config[name] = value

    def __contains__(self, name):
        return name in self._config

    def get(self, name, default=None):
        return self._config.get(name, default)

    def __reduce__(self):
        return OrderedDict, (list(as_plain(self._config).items()),)


def _key_and_value(override):
    path, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"command line: '{override}' is not KEY=VALUE.")
    return path, config_file.value_of(text)


def _named(made, name, default):
    """A metric or loss that says by `__name__` what its number is called."""
    wanted = name or getattr(made, "__name__", default)
    if getattr(made, "__name__", None) != wanted:
        if inspect.isroutine(made):  # its own name is not ours to change
            made = functools.partial(made)
        made.__name__ = wanted
    return made
