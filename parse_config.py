"""ConfigParser: a file and what the command line changes of it → a checked config → the objects it names.

Nothing here loads torch before an object is asked for, so a config that is wrong by itself is reported at once.
"""

import copy
import functools
import inspect
import os
import sys
from collections import OrderedDict
from pathlib import Path

from logger import get_logger, open_log
from utils import config_file, description, objects, runs, write_json
from utils.errors import ConfigError

ROOT = Path(__file__).resolve().parent
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

    config: the sections, a dict. resume: path of the checkpoint to go on from. modification: {"a;b;c" or "a.b.c": value},
    None values left out. run_id: the name of the run's folder in `trainer.save_dir/name`, else the time.
    """

    def __init__(self, config, resume=None, modification=None, run_id=None):
        self._config = copy.deepcopy(config.config if isinstance(config, ConfigParser) else config)
        self.resume = Path(resume) if resume is not None else None
        self.run_id = run_id
        self.source = "config"  # the file's name, for messages
        self.trust = False
        self.strangers = frozenset()  # sections that a checkpoint's own config brought
        self.checkpoint = None  # the content of `resume`, once it was read
        self.changes = []  # [(dotted path, saved, now)] of a resumed run
        self._folder = None
        self._built = {}
        for path, value in (modification or {}).items():
            if value is not None:
                self.set(path.replace(";", "."), value, "command line")

    @classmethod
    def from_args(cls, args, options=""):
        """The config that a command line asks for.

        args: an argparse parser with -c/--config, -r/--resume and -d/--device; overrides, run_id and trust are used where it
        has them. options: (flags, type, target) of more flags, target being a path of keys as "optimizer;args;lr" or
        a tuple of names.
        """
        targets = {}
        for flags, kind, target in options:
            made = args.add_argument(*flags, default=None, type=kind)
            targets[made.dest] = target if isinstance(target, str) else ";".join(target)
        parsed = args.parse_args()
        if getattr(parsed, "device", None) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = parsed.device
        modification = {target: getattr(parsed, name) for name, target in targets.items()}
        config = cls._from_files(parsed, modification)
        for override in getattr(parsed, "overrides", ()):
            path, equals, text = override.partition("=")
            if not equals:
                raise ConfigError(f"command line: '{override}' is not KEY=VALUE.")
            config.set(path, config_file.value_of(text), "command line")
        config._note_changes()
        return config

    @classmethod
    def _from_files(cls, parsed, modification):
        """The config of -c, of the checkpoint of -r, or of both: the file's sections replace the saved ones."""
        file = Path(parsed.config).absolute() if parsed.config else None
        given = config_file.read(file) if file else {}
        run_id = getattr(parsed, "run_id", None)
        resume = parsed.resume
        if resume not in (None, "latest", "auto"):
            resume = Path(resume).absolute()
        elif file is None:
            raise ConfigError("Say which config: add -c config.json, or -r CHECKPOINT to go on with a run.")
        if file:
            runs.remember_folder(file.parent)
        _import_from([Path.cwd(), *([file.parent] if file else [])])
        os.chdir(ROOT)
        if resume is None:
            config = cls(given, None, modification, run_id)
        else:
            config = cls._resumed(resume, given, modification, run_id)
        config.trust = getattr(parsed, "trust", False)
        config.source = file.name if file else config.resume.name
        return config

    @classmethod
    def _resumed(cls, resume, given, modification, run_id):
        path, content = _find_checkpoint(resume, given, modification, run_id)
        if path is None:
            return cls(given, None, modification, run_id)
        saved = content.get("config")
        if not isinstance(saved, dict):
            raise ConfigError(f"{path}: the checkpoint holds no config; give one with -c FILE.")
        _import_from(_folders_of(path.parent))
        config = cls({**saved, **given}, path, modification, run_id)
        config.checkpoint = content
        config.strangers = frozenset(saved) - frozenset(given)
        return config

    def _note_changes(self):
        if self.checkpoint is not None:
            now = description.with_defaults(self._config)
            self.changes = description.differences(description.with_defaults(self.checkpoint["config"]), now)

    def set(self, path, value, source="command line"):
        """Set a key by its dotted path; ConfigError with the nearest name where there is no such key."""
        description.set_value(self._config, path, value, source)

    def check(self):
        """Find the mistakes that a config has by itself, all at once, and fill in the defaults of what is left out."""
        found = description.problems(self._config)
        if found:
            raise ConfigError("\n".join(f"{self.source}: {line}" for line in found))
        self._config = OrderedDict(description.with_defaults(self._config))

    def init_obj(self, name, module=None, *args, **kwargs):
        """Make the object or objects that section `name` describes.

        module: where bare names are looked for, else the section's own home (model.model for arch, …). args and kwargs
        come before and beside the section's args, which may not repeat one. A class is constructed; a function is
        called, but for loss and metrics, where it is bound to its args. A list gives a list, names → objects a dict.
        """
        self._built[name] = made = self._make(
            self._section(name), self._home(name, module), name, args, kwargs, name not in FUNCTIONS
        )
        return made

    initialize = init_obj

    def init_ftn(self, name, module, *args, **kwargs):
        """The function of section `name`, bound to its args and to these."""
        found = self.find(name, module)
        return objects.make(
            found, args, {**self._section(name).get("args", {}), **kwargs}, self._place(name), call=False
        )

    def find(self, name, module=None):
        """The class or function that section `name` names."""
        section = self._section(name)
        kind = section if isinstance(section, str) else section["type"]
        return self._locate(kind, self._home(name, module), name)

    def _section(self, name):
        """A section, or an object in it by its dotted path."""
        return functools.reduce(lambda holder, key: holder[key], name.split("."), self._config)

    @staticmethod
    def _home(name, module):
        return module if module is not None else HOMES.get(name.partition(".")[0], "builtins")

    def _locate(self, kind, home, path):
        judge, section = None, path.partition(".")[0]
        if section in self.strangers and not self.trust:
            judge = objects.refuse_strangers(self._place(path), [ROOT, *_user_folders()])
        found = objects.locate(kind, home, f"{self._place(path)}.type", judge)
        if section == "optimizer":
            from utils.optim import lean

            found = lean(found)
        return found

    def _make(self, spec, home, path, args=(), kwargs=None, call=True):
        if isinstance(spec, list):
            return [self._make(item, home, f"{path}.{i}", args, kwargs, call) for i, item in enumerate(spec)]
        if isinstance(spec, str):
            spec = {"type": spec}
        if "type" not in spec:
            return {name: self._make(item, home, f"{path}.{name}", args, kwargs, call) for name, item in spec.items()}
        given = {name: self._value(value, home, f"{path}.args.{name}") for name, value in spec.get("args", {}).items()}
        twice = sorted(given.keys() & (kwargs or {}).keys())
        if twice:
            raise ConfigError(f"{self._place(path)}.args.{twice[0]}: is given by the code; leave it out.")
        found = self._locate(spec["type"], home, path)
        made = objects.make(found, args, {**given, **(kwargs or {})}, self._place(path), call)
        if not call:
            made = _named(made, spec.get("name"), spec["type"].rpartition(".")[2])
        return made

    def _value(self, value, home, path):
        """An argument's value: objects in it are made first, {"from": "data_loader.x"} is read off what was made."""
        if isinstance(value, list):
            return [self._value(item, home, f"{path}.{i}") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("type"), str) and not value.keys() - {"type", "args"}:
            return self._make(value, home, path, call=False)
        if value.keys() == {"from"}:
            return self._read_off(value["from"], path)
        return {name: self._value(item, home, f"{path}.{name}") for name, item in value.items()}

    def _read_off(self, source, path):
        section, *names = str(source).split(".")
        found = self._built.get(section)
        if found is None:
            made = ", ".join(self._built) or "nothing"
            raise ConfigError(
                f"{self._place(path)}: '{source}': {section} is not made before this; so far there is {made}."
            )
        for name in names:
            if not hasattr(found, name):
                public = [n for n in dir(found) if not n.startswith("_")]
                hint = objects.nearest(name, public)
                raise ConfigError(f"{self._place(path)}: {type(found).__name__} has no '{name}'. {hint}".rstrip())
            found = getattr(found, name)
        return found

    def remember(self, name, made):
        """Let {"from": "name.attribute"} read off an object that was made another way."""
        self._built[name] = made

    def _place(self, path):
        return f"{self.source}: {path}"

    def get_logger(self, name, verbosity=2):
        return get_logger(name, verbosity)

    @property
    def runs_dir(self):
        """Where the runs of this name go."""
        return Path(self._config["trainer"]["save_dir"]).absolute() / str(self._config["name"])

    @property
    def save_dir(self):
        """The run's folder, made when it is first asked for."""
        if self._folder is None:
            self._folder = self._on_main(self._begin_folder)
        return self._folder

    log_dir = save_dir
    _save_dir = _log_dir = save_dir

    def _begin_folder(self):
        noted = {"config_folders": [str(folder) for folder in _user_folders()]}
        if self.resume is not None and self._continues():
            folder = self.resume.parent
            noted["changes"] = [list(change) for change in self.changes]
        else:
            folder = runs.create(self.runs_dir, self.run_id)
            noted["resumed_from"] = str(self.resume) if self.resume is not None else None
        write_json(plain_text(self._config), folder / "config.json")
        runs.write_environment(folder, **noted)
        open_log(folder / "train.log")
        return folder

    def _continues(self):
        """Whether the checkpoint is the newest of its run; from an older one a new run branches off."""
        if self.resume.name == "latest.pth" or self.checkpoint is None:
            return True
        latest = self.resume.with_name("latest.pth")
        if not latest.exists() or latest.samefile(self.resume):
            return True
        from utils import checkpoint

        newest = runs.newest_checkpoint(self.resume.parent, checkpoint.load, lambda line: None)
        return newest is None or newest[1].get("step", 0) <= self.checkpoint.get("step", 0)

    @staticmethod
    def _on_main(make):
        """What the main process makes, on every process."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return make()
        from utils import processes

        return processes.from_main(make() if processes.is_main() else None)

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
        return OrderedDict, (list(plain_text(self._config).items()),)


def plain_text(config):
    """The config as JSON has it; what is no plain value (a logger that a fork put there) becomes its text."""
    if isinstance(config, dict):
        return OrderedDict((str(name), plain_text(value)) for name, value in config.items())
    if isinstance(config, (list, tuple)):
        return [plain_text(item) for item in config]
    return config if config is None or isinstance(config, (bool, int, float, str)) else str(config)


def _named(made, name, default):
    """A metric or loss that says by `__name__` what its number is called."""
    wanted = name or getattr(made, "__name__", None) or default
    if getattr(made, "__name__", None) != wanted:
        if inspect.isroutine(made):  # its own name is not ours to change
            made = functools.partial(made)
        made.__name__ = wanted
    return made


def _find_checkpoint(resume, given, modification, run_id):
    """(path, content) of what -r names: a file, a run's folder, `latest` or `auto`; (None, None): nothing to resume."""
    from utils import checkpoint

    warn = get_logger("config").warning
    if isinstance(resume, Path):
        if not resume.exists():
            raise ConfigError(f"-r {resume}: there is no such checkpoint.")
        if resume.is_dir():
            found = runs.newest_checkpoint(resume, checkpoint.load, warn)
            if found is None:
                raise ConfigError(f"-r {resume}: the folder holds no checkpoint.")
            return found
        return resume, checkpoint.load(resume, warn)
    config = ConfigParser(given, None, modification)
    candidates = [config.runs_dir / run_id] if run_id else runs.newest_first(config.runs_dir)
    for folder in candidates:
        if runs.is_locked(folder):
            warn(f"{folder} is being trained by another process; passed over.")
            continue
        found = runs.newest_checkpoint(folder, checkpoint.load, warn)
        if found is not None and not (resume == "auto" and not run_id and found[1].get("finished")):
            return found
    if resume == "latest":
        raise ConfigError(f"-r latest: no run in {config.runs_dir} has a checkpoint. Leave -r out to start one.")
    return None, None


def _folders_of(run_folder):
    """The folders a run's user modules came from, as far as a config of this checkout was given from there."""
    path = run_folder / "environment.json"
    noted = config_file.read(path).get("config_folders", []) if path.exists() else []
    return [Path(folder) for folder in noted if folder in runs.known_folders()]


def _user_folders():
    """The folders on the import path that are the user's."""
    return [Path(entry) for entry in _imported]


_imported: list[str] = []


def _import_from(folders):
    """Put folders on the import path, in front: the project's root first, then these."""
    for folder in [*reversed(folders), ROOT]:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
        if str(folder) not in _imported and folder != ROOT:
            _imported.append(str(folder))
