"""The trainer that every trainer inherits: it walks the epochs and keeps what must survive a kill."""

import functools
import math
import shlex
import time
from abc import abstractmethod
from contextlib import nullcontext
from pathlib import Path

import torch

from base import trainer_state
from base.base_data_loader import BaseDataLoader
from logger import TensorboardWriter, append_numbers, close_log, cut_numbers, line_of
from utils import checkpoint, description, imports, inf_loop, optim, processes, runs, signals
from utils.errors import Failure, Stopped, is_first_to_say
from utils.objects import name_of
from utils.util import as_plain

HISTORY = "metrics.jsonl"
# Names of 2018 and 2019.
OLDER_NAMES = {"loss": "criterion", "metrics": "metric_ftns", "metric_fns": "metric_ftns", "log_dir": "checkpoint_dir"}


class EndOfRun(Exception):
    """The run has what it was to have, inside an epoch."""


class BaseTrainer:
    """Epochs, the best one, patience, checkpoints, resume and the log; a subclass has `_train_epoch`.

    model: on its device. criterion, metric_ftns: as the subclass uses them. optimizer: one, or {name: one}. config: a
    ConfigParser; further arguments are kept in `extra_arguments`. What a subclass sets on itself and has a state_dict
    (schedules, more optimizers, models, trackers, an inf_loop) is saved and restored without being named.
    """

    # Attributes of plain values that a checkpoint keeps, too.
    COUNTERS: tuple[str, ...] = ("position", "lines", "not_improved", "best_log")

    def __init__(self, model, criterion, metric_ftns, optimizer, config, *extra, **more):
        self.config = config
        if not hasattr(config, "place"):  # a dict, as in 2018, or the object of a fork's own parser
            config = imports.optional("extras.older_configs", "this config").adapted(self, config, extra, more)
        self._parsed, own = config, config["trainer"]
        older = {"keep_last": 0, "save_period": own.get("save_freq", 1)}  # what forks expect
        self.settings = settings = {**description.with_defaults({})["trainer"], **older, **own}
        self.verbosity = settings["verbosity"]
        self.logger = config.get_logger("trainer", self.verbosity)
        self.model, self.criterion, self.metric_ftns, self.optimizer = model, criterion, metric_ftns, optimizer
        self.extra_arguments = (*extra, *more.values())
        self.device_ids = getattr(model, "device_ids", [])
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

        self.epochs = settings["epochs"] or math.inf
        self.max_steps = settings["max_steps"] or math.inf
        self.save_period = settings["save_period"]
        self.early_stop = settings["early_stop"] if (settings["early_stop"] or 0) > 0 else math.inf
        self.monitor = settings["monitor"]
        self.mnt_mode, self.mnt_metric = (*self.monitor.split(), "")[:2]
        self.mnt_best = -math.inf if self.mnt_mode == "max" else math.inf
        self.not_improved = 0  # validations in a row without improvement
        self.best_log = {}
        self.start_epoch = 1
        self.epoch = 0  # the last one that is complete
        self.step = self.first_step = 0  # optimizer updates so far; this process's first
        self.position = 0  # batches of the epoch under way, where a subclass counts them
        self.lines = 0  # of metrics.jsonl
        self.writer = TensorboardWriter(lambda: config.log_dir, self.logger, settings["tensorboard"])
        self._checkpoints = checkpoint.Writer()
        self._restored = None  # a checkpoint's content, until `train` has put the rest of it back
        if config.resume is not None:
            self._resume_checkpoint(config.resume)

    def __getattr__(self, name):
        if name in OLDER_NAMES:
            return getattr(self, OLDER_NAMES[name])
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")

    @functools.cached_property
    def checkpoint_dir(self):
        return self._parsed.save_dir

    @abstractmethod
    def _train_epoch(self, epoch):
        """Train for one epoch and return {name: number}, validation included where the trainer has it."""
        raise NotImplementedError

    def _run_epoch(self, epoch):
        """Everything of an epoch that is measured: {name: number}."""
        return self._train_epoch(epoch)

    def _averages(self):
        """{name: tensor} of weights that are evaluated, and saved as `state_dict`, in place of the model's own."""
        return {}

    def on_epoch_end(self, epoch, log):
        """Called after an epoch is saved, with its numbers; for a subclass. What it changes is not in that save."""

    def train(self):
        """Train until epochs, steps or patience are used up; return the best epoch's log (unmonitored: the last's)."""
        self.epoch = self.start_epoch - 1
        self._tell_loaders(self.start_epoch)
        if self._restored is not None:
            trainer_state.restore_rest(self, self._restored, self._parsed.resume)
        trainer_state.set_random(self, (self._restored or {}).get("random", []))
        self.saved_step, self.first_step = self.step, self.step + 1
        if reason := self._finished():
            self.logger.info(f"Nothing left to do: {reason}.")
            return self.best_log
        self._begin()
        self._restored = self._parsed.checkpoint = None  # memory that nobody needs any more
        try:
            with signals.watched(), imports.extra("together", "told", nullcontext)(self):
                self._walk_epochs()
                self._checkpoints.wait()
                processes.wait_for_all()
            self._say_goodbye()
        except Exception as error:  # a traceback says where in the code; this says with what
            if not isinstance(error, Failure) and is_first_to_say(f"with what {self.checkpoint_dir} was at work"):
                said = f"{type(error).__name__} in epoch {self.epoch + 1}, step {self.step + 1}, "
                self.logger.error(said + imports.extra("explain", "explained", lambda *args: "told below")(error, self))
            raise
        finally:
            self.writer.close()
            for loader in self._loaders().values():
                loader.close()
            self._checkpoints.wait()
            runs.unlock(self.checkpoint_dir)
            close_log()
        return self.best_log

    def _walk_epochs(self):
        try:
            while not self._finished():
                signals.check(together=True)
                try:
                    self._walk_epoch(self.epoch + 1)
                except EndOfRun:  # between two updates: the position first, then what there is to measure
                    self._save_position()
                    log = self._measure_so_far() | {"partial": True}
                    self._report(log, "(a part of the epoch)")
                    self.best_log = self.best_log or log
        except Stopped as stop:
            self._save_position()
            self._checkpoints.wait()
            newest = processes.from_main(self._newest_name)
            stop.args = (f"{stop} Go on with -r {newest}" if "/" in newest else f"{stop} Nothing was saved yet.",)
            raise

    def _walk_epoch(self, epoch):
        started = time.perf_counter()
        self._tell_loaders(epoch)
        log = {"epoch": epoch, "step": self.step} | self._run_epoch(epoch)
        log = processes.from_main(lambda: dict(as_plain(log)))  # a loop of one's own may measure its own rows alone
        for prefix in ("", "val_"):  # in 2018 a list, in the order of the metrics
            if isinstance(log.get(f"{prefix}metrics"), list):
                log |= {prefix + name_of(m): value for m, value in zip(self.metric_ftns, log.pop(f"{prefix}metrics"))}
        log |= {"step": self.step, "seconds": round(time.perf_counter() - started, 3)}
        self.epoch, self.position = epoch, 0
        improved = self._judge(log)
        self._report(log, "best so far" if improved else "")
        self._save_checkpoint(epoch, save_best=improved)
        self.on_epoch_end(epoch, log)

    def _measure_so_far(self):
        """The log of an epoch that ends early."""
        return {"epoch": self.epoch + 1, "step": self.step}

    def _judge(self, log):
        """Whether these numbers are the best so far; counts the patience. A number that is not finite never is best."""
        if self.mnt_mode == "off":
            self.best_log = dict(log)
        if self.mnt_metric not in log:
            if self.mnt_metric and self.settings["valid_period"] == 1 and self.lines == 0:
                self.logger.warning(f"trainer.monitor names '{self.mnt_metric}', but there is {', '.join(log)}.")
            return False
        value = float(log[self.mnt_metric])
        if not math.isfinite(value):
            self.logger.warning(f"{self.mnt_metric} is {value} in epoch {log['epoch']}; it can't be the best.")
        gain = value - self.mnt_best if self.mnt_mode == "max" else self.mnt_best - value
        if not (math.isfinite(value) and gain > self.settings["min_delta"]):
            self.not_improved += 1
            return False
        self.mnt_best, self.not_improved, self.best_log = value, 0, dict(log)
        return True

    def _finished(self):
        """Why there is nothing left to train, or None."""
        if self.epoch >= self.epochs:
            return f"all {self.epochs} epochs are trained"
        if self.step >= self.max_steps:
            return f"all {self.max_steps} steps are trained"
        if self.not_improved >= self.early_stop:
            return f"{self.mnt_metric} has not improved in {self.not_improved} validations (trainer.early_stop)"
        return None

    def _begin(self):
        """From here on there is a run: its folder, locked, its log and its history up to where it starts."""
        folder, loaders = self.checkpoint_dir, self._loaders()
        if processes.is_main():
            for wreckage in folder.glob("*.pth.*.tmp"):  # of a write that a kill cut short
                wreckage.unlink()
            resumed = self._parsed.resume
            cut_numbers(folder / HISTORY, self.lines, resumed and Path(resumed).parent / HISTORY)
            for loader in loaders.values():
                loader.write_split(folder / "split.json")
        self.writer.purge_step = self.step + 1 if self.step else None
        self.writer.enabled = self.writer.enabled and processes.is_main()
        sizes = [f"{loader.n_samples or 'a stream of'} {name}" for name, loader in loaders.items()]
        together = "" if processes.is_alone() else f", {processes.process_count()} processes"
        if self._parsed.get("n_gpu") and self.device.type == "cpu" and torch.cuda.is_available():
            self.logger.warning("n_gpu: the model is on the CPU. Add model = model.to(device) before the optimizer.")
        self.logger.info(f"model    {checkpoint.class_name(self.model)}, {optim.counts(self.model)}")
        self.logger.info(f"device   {self.device}{together}")
        self.logger.info(f"data     {', '.join(sizes).replace('_', ' ')}")
        self.logger.info(f"run      {folder}")

    def _report(self, log, remark):
        """An epoch's numbers to the files and to people."""
        self.lines += 1
        if processes.is_main():
            append_numbers(self.checkpoint_dir / HISTORY, log)
            numbers = {name: value for name, value in log.items() if isinstance(value, float)}
            self.writer.numbers(numbers, self.step or log["epoch"])
            self.writer.flush()
            self.logger.info(f"{line_of(log, self.epochs)}  {remark}".rstrip())

    def _save_checkpoint(self, epoch, save_best=False):
        """Save the latest, a kept one where it is due, and the best one where it is: one file under several names.

        The best comes first and the latest last, so that a kill between them loses no best.
        """
        kept = [f"checkpoint-epoch{epoch}.pth"] if epoch % self.save_period == 0 else []
        self._save([*(["model_best.pth"] if save_best else []), *kept, "latest.pth"])

    def _resume_checkpoint(self, path):
        """Put the weights and the epoch back; `train` does the rest, once the subclass is complete."""
        self._parsed.resume = Path(path)
        self._restored = self._parsed.checkpoint or checkpoint.load(path, self.logger.warning)
        trainer_state.restore(self, self._restored, path)

    def _save_position(self):
        """Save the latest inside an epoch; where no batch of it was counted, the last epoch's stands."""
        if self.position:
            self._save(["latest.pth"])

    def _save(self, names):
        self._check_loss()
        imports.extra("together", "check_alike")(self.model, f"At step {self.step}")
        self.saved_step = self.step
        state = trainer_state.state_of(self)
        if processes.is_main():
            self._checkpoints.write(state, [self.checkpoint_dir / name for name in names], self._drop_old)

    def _drop_old(self):
        """Remove the kept checkpoints beyond trainer.keep_last, oldest first."""
        if keep := self.settings["keep_last"]:
            for _, path in runs.kept_checkpoints(self.checkpoint_dir)[:-keep]:
                path.unlink()

    def _check_loss(self):
        """Raise Diverged where the training loss is no number: such weights are never saved."""

    def _newest_name(self):
        """The checkpoint that a resume takes, as text."""
        return str(next(iter(runs.checkpoints(self.checkpoint_dir)), "none; nothing was saved yet"))

    def _loaders(self):
        """{attribute: loader} of every loader on this trainer, those inside an inf_loop too."""
        found: dict[str, BaseDataLoader] = {}
        for name, value in vars(self).items():
            value = value.data_loader if isinstance(value, inf_loop) else value
            inner = value.items() if isinstance(value, dict) else [("", value)]
            found |= {f"{name} {key}".rstrip(): loader for key, loader in inner if isinstance(loader, BaseDataLoader)}
        return found

    def _tell_loaders(self, epoch):
        for loader in self._loaders().values():
            loader.seed = self._parsed.get("seed") or 0
            loader.set_epoch(epoch)

    def _say_goodbye(self):
        word, name, what = "last", "latest.pth", f"step {self.step}"
        if self.mnt_metric in self.best_log and (self.checkpoint_dir / "model_best.pth").exists():
            word, name, what = "best", "model_best.pth", f"{self.mnt_metric} {self.best_log[self.mnt_metric]:.4f}"
        path = self.checkpoint_dir / name
        self.logger.info(f"done     {self._finished()}")
        self.logger.info(f"{word}     epoch {self.best_log.get('epoch', self.epoch)}, {what}: {path}")
        self.logger.info(f"test it  python test.py -r {shlex.quote(str(path))}")
