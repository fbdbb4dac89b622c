"""What is wrong with a config's objects, found out with their modules at hand and before anything is made."""

import importlib.util
import inspect
import os

from extras import arguments
from utils import objects
from utils.description import homes
from utils.errors import ConfigError, near, shown
from utils.metrics import RESERVED
from utils.nested import at, leaves, origin_of

UNMADE = object()  # stands for what will be made
BASES = {  # of the classes of a home
    "model.model": "torch.nn.Module",
    "data_loader.data_loaders": "base.BaseDataLoader",
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "trainer.trainer": "base.BaseTrainer",
}


class Examiner(objects.Maker):
    """Goes the maker's way and makes nothing: what it finds is in `found` by path, what is wrong in `problems`."""

    def __init__(self, place, judge):
        super().__init__(place, judge)
        self.found, self.problems = {}, []

    def examine(self, config):
        """Look at every object of the config, in the order of making; return the problems, a line each."""
        self.trainer = objects.locate("Trainer", homes()["trainer"], "trainer")
        for section in homes():
            if config.get(section) is not None:
                self.make(config[section], None, section)
                self.built[section] = UNMADE
        self.problems += [f"{self.place(path)}: {why}" for path, why in self._together(config)]
        return self.problems

    def read_off(self, source, path):
        """Whether the object will be there by then; its attributes are not known yet."""
        is_there = source.partition(".")[0] in self.built and "._" not in source
        return UNMADE if is_there else super().read_off(source, path)

    def make(self, spec, home, path, args=(), kwargs=None):
        try:
            return super().make(spec, home, path, args, kwargs)
        except ConfigError as error:
            self.problems.append(str(error))
            return UNMADE

    def finish(self, found, args, kwargs, path, name):
        """Look at one object whose arguments were looked at."""
        section = path.partition(".")[0]
        if "args" in path.split("."):  # inside another object; a function there is bound, and called later
            arguments.check(found, (), kwargs, path, self.place, partly=not inspect.isclass(found))
            return UNMADE
        if inspect.isclass(found) and (why := _not_fit(found, section)):
            raise ConfigError(f"{self.place(path)}.type: {why}")
        args, given = self._given(found, section, kwargs)
        arguments.check(found, args, kwargs, path, self.place, given=given)
        self.found[path] = found
        return UNMADE

    def _given(self, found, section, kwargs):
        """What the code itself gives to an object of this section: (arguments by position, names of more)."""
        if section in objects.FUNCTIONS and not inspect.isclass(found):
            return (UNMADE, UNMADE), ()  # output, target
        if section == "trainer":
            return (UNMADE,) * 5, ("device", "data_loader", "valid_data_loader", "lr_scheduler")  # see train.py
        if section == "parallel":
            return (UNMADE, UNMADE), ()  # the model, the device
        if section == "lr_scheduler":
            from utils.optim import planned_arguments

            return (UNMADE,), planned_arguments(found, kwargs, 1, 1, [1.0], "min")
        return ((UNMADE,) if section == "optimizer" else ()), ()

    def _together(self, config):
        """What is wrong between the objects found: (path, why)."""
        settings = config["trainer"]
        monitored = (*settings["monitor"].split(), "")[1]
        kind, loops = self.found.get("trainer"), ("_train_epoch", "_run_epoch", "_valid_epoch")
        ours = all(getattr(kind, name, None) is getattr(self.trainer, name) for name in loops)  # another may differ
        for path, found in self.found.items():
            if path.startswith("lr_scheduler") and objects.name_of(found) == "ReduceLROnPlateau":
                if not monitored:
                    yield "trainer.monitor", "is off, but ReduceLROnPlateau waits for a number, as 'min val_loss'."
                if at(config, path).get("interval") == "step":
                    yield f"{path}.interval", "ReduceLROnPlateau waits for validations; leave it out."
            for period in ("step_size", "T_max") if path.startswith("lr_scheduler") else ():
                if at(config, path)["args"].get(period) == 0:
                    yield f"{path}.args.{period}", "0; a schedule divides by it, so it has to be >= 1."
            closure = objects.parameters_of(getattr(found, "step", None)).get("closure")
            if ours and path.startswith("optimizer") and closure and closure.default is closure.empty:
                yield f"{path}.type", f"{found.__name__} asks for the loss again, our loop gives it once; take another."
        if config["parallel"]["type"].endswith("pipeline") and settings["amp"] == "fp16":
            yield "trainer.amp", "fp16: the stages of a pipeline can't agree on the loss's scale; take bf16 or off."
        if "weight" in config["loss"]:
            yield "loss.weight", "there is one loss; a weight is for one of several by name."
        for name in ("folds", "validation_split") if config["valid_data_loader"] is not None else ():
            if config["data_loader"]["args"].get(name):
                why = "sets examples apart that none validates on; leave out valid_data_loader."
                yield f"data_loader.args.{name}", why
        measured = self._measured(config) if ours else []
        names = [*RESERVED[1:], *measured]
        if twice := [name for name in names if names.count(name) > 1]:
            yield "metrics", f"two numbers would be called '{twice[0]}'; give one of them another 'name'."
        if monitored and measured and monitored not in measured:
            advice = near(monitored, measured) or f"There is {', '.join(measured)}."
            if monitored.startswith("val_") and not any(name.startswith("val_") for name in measured):
                advice = "It has no validation: give valid_data_loader, or data_loader.args.validation_split."
            yield "trainer.monitor", f"this run does not measure '{monitored}'. {advice}"
        if settings["tensorboard"] and not importlib.util.find_spec("tensorboard"):
            yield "trainer.tensorboard", "it isn't installed: pip install tensorboard, or set this to false."

    def _measured(self, config):
        """The names of the numbers of an epoch; none where a part of one's own may measure anything."""
        loader, metrics = self.found.get("data_loader"), config["metrics"]
        found = [self.found.get(f"metrics.{i}") for i in range(len(metrics))]
        if loader is None or None in found:
            return []
        losses = config["loss"] if "type" not in config["loss"] else ()
        names = ["loss", *losses, *(spec.get("name") or objects.name_of(kind) for spec, kind in zip(metrics, found))]
        sets = config["valid_data_loader"]
        split = config["trainer"]["overfit"] or _may_split(loader, config["data_loader"]["args"])
        one = "type" in sets if sets else split
        prefixes = ["", "val_"] if one else ["", *(f"val_{name}_" for name in sets or ())]
        return [prefix + name for prefix in prefixes for name in names]


def show(config):
    """Check a ConfigParser, then print every value, a line each: its dotted path, it, what set it."""
    config.check()
    rows = [(path, shown(value)) for path, value in leaves(config.config)]
    wide, most = max(len(path) for path, _ in rows), max(len(value) for _, value in rows)
    for path, value in rows if os.environ.get("RANK", "0") == "0" else ():
        print(f"{path:<{wide}}  {value:<{min(most, 24)}}  {origin_of(config.origins, path) or 'default'}")


def _not_fit(found, section):
    """Why a class can't be what its section wants, or nothing."""
    base = BASES.get(homes()[section])
    if base and not issubclass(found, objects.locate(base, "builtins", section)):
        return f"{found.__name__} is no {base}. Derive it from that, or name another."
    has = {name for owner in found.__mro__[:-1] for name in vars(owner)}
    wanted = {"loss": ["__call__"], "metrics": ["update", "compute", "reset"]}.get(section, [])
    lacks = [name for name in wanted if name not in has and "__call__" not in has]
    return f"{found.__name__} has no {', '.join(lacks)}. Add it, or name another." if lacks else ""


def _may_split(loader, args):
    """Whether a loader may set examples apart for validation."""
    parameter = objects.known_to(loader).get("validation_split")
    methods = [getattr(loader, name, None) for name in ("split_validation", "_split_sampler")]
    own = any(getattr(method, "__module__", "") != "base.base_data_loader" for method in methods)
    return own or parameter is None or args.get("validation_split", parameter.default) or args.get("folds")
