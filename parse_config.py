"""ConfigParser: a file and what the command line changes of it → a checked config → the objects it names.

Nothing here loads torch before an object is asked for, so a config that is wrong by itself is reported at once.
"""

import argparse
import copy
import functools
import os
from collections import OrderedDict, UserDict
from contextlib import suppress
from pathlib import Path

from logger import get_logger, open_log
from utils import config_file, description, imports, nested, objects, runs, write_json
from utils.errors import ConfigError
from utils.util import as_plain


class ConfigParser(UserDict):
    """A mapping of sections that can make the objects they name.

    config: the sections, a dict. resume: path of the checkpoint to go on from. modification: {"a;b;c" or "a.b.c":
    value}, None values left out. run_id: the name of the run's folder in `trainer.save_dir/name`, else the time.
    """

    def __init__(self, config, resume=None, modification=None, run_id=None):
        self.data = copy.deepcopy(getattr(config, "config", config))
        self.resume = Path(resume) if resume is not None else None
        self.run_id = run_id
        self.source = "config"  # the file's name, for messages
        self.given = None  # with a checkpoint that is not trusted: the sections that the user gave
        self.checkpoint = None  # the content of `resume`, once it was read
        self.changes = []  # [(dotted path, saved, now)] of a resumed run
        self.asked = None  # the parsed command line
        self.folders = []  # of the file given with -c and of those it extends
        self._maker = objects.Maker(self.place, self._judge)
        self._set_all({p.replace(";", "."): value for p, value in (modification or {}).items() if value is not None})

    @classmethod
    def from_args(cls, args, options=""):
        """The config that a command line asks for.

        args: an argparse parser with -c/--config, -r/--resume and -d/--device; overrides, run_id and trust are used
        where it has them. options: (flags, type, target) of more flags, the target a path of keys: "optimizer;args;lr"
        or a tuple of names.
        """
        targets = {}
        for flags, kind, target in options:
            path = target.replace(";", ".") if isinstance(target, str) else ".".join(target)
            targets[args.add_argument(*flags, default=None, type=kind, help=f"short for {path}=").dest] = path
        with suppress(argparse.ArgumentError, AttributeError):  # a parser of one's own, or its result
            args.add_argument("--trust", action="store_true", help="read a checkpoint of pytorch-template's own")
        # Intermixed: KEY=VALUE may stand between the flags.
        parsed = args.parse_intermixed_args() if hasattr(args, "add_argument") else args
        if getattr(parsed, "device", None) is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = parsed.device
        changed = {path: getattr(parsed, name) for name, path in targets.items() if getattr(parsed, name) is not None}
        changed |= dict(map(config_file.key_and_value, getattr(parsed, "overrides", ())))
        file = Path(parsed.config).absolute() if getattr(parsed, "config", None) else None
        given, origins, folders = config_file.resolve(file) if file else ({}, {}, [])
        run_id, resume = getattr(parsed, "run_id", None), parsed.resume
        if run_id is not None and (run_id in ("", ".", "..") or Path(run_id).name != run_id):
            raise ConfigError(f"--run-id '{run_id}' can't be a folder's name; leave slashes out.")
        if resume not in (None, "latest", "auto"):
            resume = Path(resume).absolute()
        elif file is None:
            raise ConfigError("Say which config: add -c config.json, or -r CHECKPOINT to go on with a run.")
        imports.add([*folders, Path.cwd()])
        os.chdir(imports.ROOT)
        config = cls._resumed(resume, given, origins, changed, run_id, getattr(parsed, "trust", False))
        config.source = file.name if file else config.resume.name
        config.asked, config.folders = parsed, folders
        if not hasattr(parsed, "check"):  # a script of one's own, whose config may hold anything
            imports.extra("older_configs", "warn_of_misspelt")(config)
        return config

    @classmethod
    def _resumed(cls, resume, given, origins, changed, run_id, trust):
        """The saved config of the checkpoint that -r names, with the given sections in the place of the saved ones."""
        complete = description.with_defaults
        path, content = None, {}
        if resume is not None:
            runs_dir = None if isinstance(resume, Path) else cls(given)._set_all(changed, origins).runs_dir
            path, content = runs.agreed_checkpoint(resume, runs_dir, run_id, get_logger("config").warning, trust)
        saved = content.get("config", {})
        if path is not None:
            if not (saved or given):
                raise ConfigError(f"{path}: the checkpoint holds no config; give one with -c FILE.")
            imports.add(runs.config_folders(path.parent, imports.known()))
            origins = dict.fromkeys(saved.keys() - given.keys(), path.name) | origins
        config = cls({**saved, **given}, path, None, run_id)._set_all(changed, origins)
        config.checkpoint = content or None
        config.given = None if path is None or trust else frozenset(given)
        config.changes = nested.differences(complete(saved), complete(config.config)) if saved else []
        return config

    def _set_all(self, values, origins=()):
        """Set keys by their dotted paths; ConfigError with the nearest name where there is no such key."""
        self.origins = dict(origins)  # dotted path of a value → what set it
        wrong = []
        for path, value in values.items():
            try:
                nested.set_value(self.data, path, value)
            except ConfigError as error:
                wrong.append(str(error))
            outside = {leaf: origin for leaf, origin in self.origins.items() if not nested.is_in(leaf, path)}
            self.origins = {**outside, path: "command line"}
        if wrong:
            raise ConfigError("\n".join(wrong))
        return self

    def check(self):
        """Find the mistakes in the config before there is any work: those it has by itself, then those of its objects.

        Each of the two lists all it finds in one ConfigError. Fills in the defaults of what is left out.
        """
        found = [f"{self.place(path)}: {why}" for path, why in description.problems(self.data)]
        if not found:
            self.data = OrderedDict(description.with_defaults(self.data))
            try:
                examiner = imports.optional("extras.doctor", "the check of objects").Examiner(self.place, self._judge)
                found = examiner.examine(self.data)
            except imports.Missing as error:  # their makers check them, too, each when it comes to that
                get_logger("config").warning(error)
        if found:
            raise ConfigError("\n".join(found))

    def place(self, path):
        """Where a dotted path stands, for messages: in which file, or on the command line."""
        return f"{nested.origin_of(self.origins, path) or self.source}: {path}"

    def init_obj(self, name, module=None, *args, **kwargs):
        """Make the object or objects that section `name` describes; `name` may also be the dotted path of one of them.

        module: where bare names are looked for, else the section's own home (model.model for arch, …). args and kwargs
        come before and beside the section's args, which may not repeat one. A class is constructed; a function is
        called, but for loss and metrics, where it is bound to its args. A list gives a list, names → objects a dict.
        """
        return self.remember(name, self._maker.make(nested.at(self.data, name), module, name, args, kwargs))

    initialize = init_obj

    def init_ftn(self, name, module=None, *args, **kwargs):
        """The function of section `name`, bound to its args and to these."""
        given = {**nested.at(self.data, name).get("args", {}), **kwargs}
        return objects.make(self.find(name, module), args, given, name, self.place, call=False)

    def find(self, name, module=None):
        """The class or function that section `name` names."""
        return self._maker.locate(nested.at(self.data, name), module, name)

    def remember(self, name, made):
        """Let {"from": "name.attribute"} read off `made`, which is returned."""
        self._maker.built[name] = made
        return made

    def _judge(self, path, found, named):
        """Refuse what came with a checkpoint, at a dotted path, and is not to be run; what the user gave, never."""
        if self.given is not None and path.partition(".")[0] not in self.given:
            objects.refuse_stranger(self.place(path), imports.users_folders(), found, named)

    get_logger = staticmethod(get_logger)

    @functools.cached_property
    def continues(self):
        """Whether a resumed run goes on in the checkpoint's folder; behind an older one a new run begins."""
        from utils import checkpoint

        return runs.is_newest(self.resume, self.checkpoint or checkpoint.load(self.resume))

    @property
    def runs_dir(self):
        """Where the runs of this name go."""
        for path, why in description.problems(self.data):
            if path in ("name", "trainer", "trainer.save_dir") or "name" not in self.data:
                raise ConfigError(f"{self.place(path)}: {why}")
        settings = description.with_defaults(self.data)["trainer"]
        apart = "-overfit" if settings["overfit"] else ""  # so that no run goes on from one on a few batches
        return Path(settings["save_dir"]).absolute() / (self.data["name"] + apart)

    @functools.cached_property
    def save_dir(self):
        """The run's folder, made when it is first asked for; of several processes the first makes it."""
        from utils import processes

        return processes.from_main(self._begin_folder)

    log_dir = _save_dir = _log_dir = property(lambda self: self.save_dir)

    def _begin_folder(self):
        resumed_from = str(self.resume) if self.resume is not None else None
        if self.resume is not None and self.continues:
            folder = self.resume.parent
        elif self.run_id and getattr(self.asked, "resume", "") == "auto" and (self.runs_dir / self.run_id).exists():
            # Begun before, and stopped before there was a checkpoint.
            folder = self.runs_dir / self.run_id
        else:
            folder = runs.create(self.runs_dir, self.run_id)
        runs.lock(folder)
        for used in self.folders:
            imports.remember(used)
        write_json(as_plain(self.data), folder / "config.json")
        users = imports.users_folders()
        runs.write_environment(folder, config_folders=users, changes=self.changes, resumed_from=resumed_from)
        open_log(folder / "train.log")
        return folder

    _config = config = property(lambda self: self.data)

    def __reduce__(self):
        return OrderedDict, (list(as_plain(self.data).items()),)
