"""The trainer that every trainer inherits: it walks the epochs, and everything that must survive a kill is here."""

import functools
import math
import time
from abc import abstractmethod

import torch

from base.base_data_loader import BaseDataLoader
from base.trainer_state import TrainerState
from logger import History, TensorboardWriter
from utils import checkpoint, description, inf_loop, processes, runs, signals
from utils.errors import Diverged, Stopped


class EndOfRun(Exception):
    """The run has what it was to have, inside an epoch."""


class BaseTrainer(TrainerState):
    """Epochs, the best one, patience, checkpoints, resume and the log; a subclass has `_train_epoch`.

    model: on its device. criterion, metric_ftns: as the subclass uses them. optimizer: one, or {name: one}. config: a
    ConfigParser; further arguments are kept in `extra_arguments`. What a subclass sets on itself and has a state_dict
    (schedules, more optimizers, models, trackers, an inf_loop) is saved and restored without being named.
    """

    def __init__(self, model, criterion, metric_ftns, optimizer, config, *extra, **more):
        self.config = config
        settings = {**description.trainer_defaults(), "keep_last": 0, **config["trainer"]}
        self.settings = settings
        self.logger = config.get_logger("trainer", settings["verbosity"])
        self.model = model
        self.criterion = criterion
        self.metric_ftns = metric_ftns
        self.optimizer = optimizer
        self.extra_arguments = (*extra, *more.values())
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

        self.epochs = settings["epochs"] or math.inf
        self.max_steps = settings["max_steps"] or math.inf
        self.save_period = settings["save_period"]
        self.monitor = settings["monitor"]
        self.mnt_mode, self.mnt_metric = ("off", None) if self.monitor == "off" else self.monitor.split()
        self.mnt_best = -math.inf if self.mnt_mode == "max" else math.inf
        self.early_stop = settings["early_stop"] or math.inf
        self.not_improved = 0  # validations in a row without improvement
        self.best_log = {}
        self.start_epoch = 1
        self.epoch = 0  # the last one that is complete
        self.step = 0  # optimizer updates so far
        self.position = None  # batches of the epoch under way; None where a subclass doesn't count them
        self._saved_step = self._judged_step = 0
        self.writer = TensorboardWriter(lambda: config.log_dir, self.logger, settings["tensorboard"])
        self._checkpoints = checkpoint.Writer()
        self._restored = None  # a checkpoint's content, until `train` has put the rest of it back
        if config.resume is not None:
            self._resume_checkpoint(config.resume)

    @functools.cached_property
    def checkpoint_dir(self):
        return self.config.save_dir

    @functools.cached_property
    def history(self):
        return History(self.checkpoint_dir / "metrics.jsonl")

    @abstractmethod
    def _train_epoch(self, epoch):
        """Train for one epoch and return {name: number}, validation included where the trainer has it."""
        raise NotImplementedError

    def _run_epoch(self, epoch):
        """Everything of an epoch that is measured: {name: number}."""
        return self._train_epoch(epoch)

    def on_epoch_end(self, epoch, log):
        """Called after an epoch is saved, with its numbers; for a subclass."""

    def train(self):
        """Train until epochs, steps or patience are used up; return the best epoch's numbers (the last's, unmonitored)."""
        self.epoch = self.start_epoch - 1
        self._tell_loaders(self.start_epoch)
        self._restore_rest()
        if reason := self._finished():
            self.logger.info(f"Nothing left to do: {reason}.")
            return self.best_log
        self._begin()
        try:
            with signals.watched():
                self._walk_epochs()
        finally:
            self.writer.close()
            self._checkpoints.wait()
            processes.wait_for_all()
            runs.unlock(self.checkpoint_dir)
        self._say_goodbye()
        return self.best_log

    def _walk_epochs(self):
        try:
            while not self._finished():
                epoch, started = self.epoch + 1, time.perf_counter()
                self._tell_loaders(epoch)
                log = {"epoch": epoch, "step": self.step, **self._run_epoch(epoch)}
                self._end_of_epoch(epoch, log, started)
        except Stopped as stop:
            self._save_position()
            self._checkpoints.wait()
            stop.args = (f"{stop} Continue with -r {self._newest_name()}",)
            raise
        except EndOfRun:
            self._end_inside_epoch()

    def _end_of_epoch(self, epoch, log, started):
        log["step"] = self.step
        log["seconds"] = round(time.perf_counter() - started, 3)
        self.epoch, self.position = epoch, None if self.position is None else 0
        improved = self._judge(log)
        if improved or self.mnt_mode == "off":
            self.best_log = dict(log)
        self._report(log, "best so far" if improved else "")
        self._save_checkpoint(epoch, save_best=improved)
        self.on_epoch_end(epoch, log)

    def _end_inside_epoch(self):
        """max_steps or patience ended the run between two updates: save the position, then measure what there is."""
        self._save_position()
        log = {"epoch": self.epoch + 1, "step": self.step, **self._measure_so_far(), "partial": True}
        if not self.best_log:
            self.best_log = dict(log)
        self._report(log, "(a part of the epoch)")

    def _measure_so_far(self):
        """The numbers of an epoch that ends early."""
        return {}

    def _judge(self, log):
        """Whether these numbers are the best so far; counts the patience. A number that is not finite never is best."""
        if self.mnt_metric not in log:
            if self.mnt_metric is not None and self.settings["valid_period"] == 1:
                self.logger.warning(
                    f"trainer.monitor names '{self.mnt_metric}', but this epoch measured {', '.join(log)}."
                )
            return False
        if self._judged_step == self.step:  # a validation inside the epoch fell on its end
            return False
        self._judged_step = self.step
        value = float(log[self.mnt_metric])
        if not math.isfinite(value):
            self.logger.warning(f"{self.mnt_metric} is {value} in epoch {log['epoch']}; it can't be the best.")
        gain = value - self.mnt_best if self.mnt_mode == "max" else self.mnt_best - value
        improved = math.isfinite(value) and gain > self.settings["min_delta"]
        self.mnt_best, self.not_improved = (value, 0) if improved else (self.mnt_best, self.not_improved + 1)
        return improved

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
        if processes.is_main():
            runs.lock(self.checkpoint_dir)
            if self.config.resume is not None:
                self._inherit_history()
            for loader in self._loaders().values():
                loader.write_split(self.checkpoint_dir / "split.json")
        self.writer.purge_step = self.step + 1 if self.step else None
        self.writer.enabled = self.writer.enabled and processes.is_main()
        self._summary()

    def _report(self, log, remark):
        """An epoch's numbers to the files and to people."""
        if not processes.is_main():
            return
        self.history.append(log)
        self.writer.numbers({k: v for k, v in log.items() if isinstance(v, float)}, self.step)
        self.writer.flush()
        self.logger.info(f"{_line_of(log, self.epochs)}  {remark}".rstrip())

    def _save_checkpoint(self, epoch, save_best=False):
        """Save the latest, a kept one where it is due, and the best one where it is: one file under several names."""
        names = ["model_best.pth"] if save_best else []
        if epoch % self.save_period == 0:  # the best first and the latest last, so that a kill between loses no best
            names.append(f"checkpoint-epoch{epoch}.pth")
        self._save([*names, "latest.pth"])

    def _save_position(self):
        """Save the latest inside an epoch; a subclass that does not count batches keeps its last epoch's."""
        if self.position is not None:
            self._save(["latest.pth"])

    def _save(self, names):
        self._check_loss()
        self._saved_step = self.step
        state = self._state()
        if processes.is_main():
            self._checkpoints.write(state, [self.checkpoint_dir / name for name in names], self._drop_old)

    def _drop_old(self):
        """Remove the kept checkpoints beyond trainer.keep_last, oldest first."""
        keep = self.settings["keep_last"]
        for _, path in runs.kept_checkpoints(self.checkpoint_dir)[: -keep or None] if keep else []:
            path.unlink()

    def _check_loss(self):
        """Raise Diverged where the training loss is no number: such weights are never saved."""

    def _diverged(self, loss):
        """The error that says so, for a subclass's `_check_loss`."""
        self._checkpoints.wait()
        return Diverged(
            f"The training loss is {loss} in epoch {self.epoch + 1}, step {self.step}; stopped before saving it.\n"
            f"The last good checkpoint is {self._newest_name()}. Lower optimizer.args.lr, or set trainer.clip_grad_norm."
        )

    def _newest_name(self):
        """The checkpoint that a resume takes, as text."""
        return str(next(iter(runs.checkpoints(self.checkpoint_dir)), "none; nothing was saved yet"))

    def _loaders(self):
        """{attribute: loader} of every loader on this trainer, those inside an inf_loop too."""
        found = {}
        for name, value in vars(self).items():
            value = value.data_loader if isinstance(value, inf_loop) else value
            inner = value.items() if isinstance(value, dict) else [("", value)]
            found |= {
                f"{name}.{key}".rstrip("."): loader for key, loader in inner if isinstance(loader, BaseDataLoader)
            }
        return found

    def _tell_loaders(self, epoch):
        for loader in self._loaders().values():
            loader.seed = self.config.get("seed", 0) or 0
            loader.set_epoch(epoch)

    def _summary(self):
        """What runs, on what, where it writes."""
        model = checkpoint.unwrapped(self.model)
        count = sum(parameter.numel() for parameter in model.parameters())
        trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        sizes = ", ".join(f"{loader.n_samples or 'a stream of'} {name}" for name, loader in self._loaders().items())
        self.logger.info(f"model    {type(model).__name__}, {count:,} parameters, {trainable:,} of them learn")
        self.logger.info(
            f"device   {self.device}" + (f", {processes.size()} processes" if processes.size() > 1 else "")
        )
        self.logger.info(f"data     {sizes.replace('_', ' ')}")
        self.logger.info(f"run      {self.checkpoint_dir}")

    def _say_goodbye(self):
        best = self.checkpoint_dir / "model_best.pth"
        path = best if best.exists() else self.checkpoint_dir / "latest.pth"
        if self.mnt_metric in self.best_log:
            kept = f"best     epoch {self.best_log['epoch']}, {self.mnt_metric} {self.best_log[self.mnt_metric]:.4f}"
        else:
            kept = f"last     epoch {self.epoch}, step {self.step}"
        self.logger.info(f"{self._finished()}.".capitalize())
        self.logger.info(f"{kept}: {path}\ntest it  python test.py -r {path}")


def _line_of(log, epochs):
    """One line that aligns with the next epoch's."""
    width = len(str(epochs)) if math.isfinite(epochs) else 3
    words = [f"epoch {log['epoch']:>{width}}"]
    for name, value in log.items():
        if name in ("epoch", "step", "partial", "data_wait"):
            continue
        if name == "seconds":
            words.append(f"{value:.1f} s")
        elif name == "samples_per_second":
            words.append(f"{value:,.0f} samples/s")
        else:
            words.append(f"{name} {value:<8.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(words)
