"""The training loop: `_train_epoch`, five steps. How weights move: stepper.py. When things fall due: `batches`."""

import copy
import itertools
import math
import time

from base import BaseTrainer
from base.base_trainer import EndOfRun
from trainer.evaluate import evaluate
from trainer.stepper import Stepper
from utils import devices, imports, processes, seeds, signals
from utils.errors import ConfigError, Diverged
from utils.metrics import Metrics
from utils.util import named


class Trainer(BaseTrainer):
    """Trains a model that maps inputs to outputs on batches of (inputs, target).

    criterion: (output, target) → mean over the batch's examples, or (sum, count). metric_ftns: see
    utils.metrics.Metrics. data_loader, valid_data_loader: BaseDataLoader; the second may be {name: loader} or None.
    len_epoch: batches in an epoch.
    """

    COUNTERS = (*BaseTrainer.COUNTERS, "cursor", "validated", "logged")

    def __init__(
        self,
        model,
        criterion,
        metric_ftns,
        optimizer,
        config,
        device,
        data_loader,
        valid_data_loader=None,
        lr_scheduler=None,
        len_epoch=None,
    ):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        settings = self.settings
        self.device = device
        self.data_loader = data_loader
        self.valid_data_loader = valid_data_loader
        self.lr_scheduler = lr_scheduler
        self.len_epoch = len_epoch or settings["len_epoch"]
        self.memory_format = devices.memory_format(settings["channels_last"])
        how = {name: settings[name] for name in ("amp", "clip_grad_norm", "ema_decay")}
        self.stepper = Stepper(model, optimizer, lr_scheduler, device=device, **how)
        self.train_metrics = Metrics(metric_ftns, device=device)
        self.valid_metrics = {  # metric objects of their own: a validation may come in the midst of an epoch
            name: Metrics(copy.deepcopy(metric_ftns), f"val_{name}_" if name else "val_", device)
            for name in named(valid_data_loader)
        }
        self.cursor = [1, 0]  # the pass over the data, its batches that are done, where a stream stands behind them
        self.validated = 0  # the step of the last validation inside an epoch
        self.logged = [0.0, 0.0]  # the loss's sum and count when training values were last logged
        self.batch = None  # the last one, as inputs and target
        self._waited, self._examples = 0.0, 0  # seconds the epoch waited for data, examples it has trained on

    def _train_epoch(self, epoch):
        self.model.train()
        for inputs, target in self.batches(epoch):
            with self.stepper.update():
                self.stepper.zero_grad()  # 1. reset (at the start of an update)
                with self.stepper.autocast():
                    output = self.predict(self.model, inputs)  # 2. predict
                    loss = self.criterion(output, target)  # 3. compare
                self.stepper.backward(loss)  # 4. gradients
                self.train_metrics.update(output, target, loss)
                self.stepper.step()  # 5. update (at its end)
        return self.train_metrics.result()

    def _run_epoch(self, epoch):
        started = time.perf_counter()
        log = self._train_epoch(epoch)
        seconds = time.perf_counter() - started
        self._check_loss()
        if named(self.valid_data_loader) and epoch % self.settings["valid_period"] == 0:
            log |= self._valid_epoch(epoch)
        log |= {"lr": self.stepper.learning_rates()[0], "samples_per_second": round(self._examples / seconds, 1)}
        log |= {"data_wait": round(self._waited / seconds, 4)}
        self.stepper.end_epoch(log.get(self.mnt_metric))
        self.train_metrics.reset()
        return log

    def batches(self, epoch):
        """Yield the epoch's batches on the device; plan each update before it, do what falls due after it."""
        if self.position == 0:
            self.train_metrics.reset()
            self.logged = [0.0, 0.0]
        self._waited, self._examples = 0.0, 0
        row = self._row(epoch)
        if self.step == 0 and self.device.type == "cuda":  # which does not say what is wrong with a label
            imports.extra("explain", "watch_labels")(self)
        with self._progress(epoch) as bar:
            while window := list(itertools.islice(row, self.settings["accumulate"])):
                self._between_updates(epoch)
                total = sum(planned.everywhere for planned, _ in window)
                for i, (planned, _) in enumerate(window):
                    self.stepper.expect(planned.here, total, first=i == 0, last=i == len(window) - 1)
                    self.train_metrics.expect(planned.here)
                    yield self._load(planned)
                self.step += 1
                self.position += len(window)
                self.cursor = window[-1][1]
                self._examples += total
                bar.update(total)
                if self.step == self.first_step:
                    imports.extra("together", "check_alike")(self.model, "After the first step")
                if self._is_due("log_step"):
                    self._log_step(epoch, bar)
        self.batch = None

    def _row(self, epoch):
        """Yield (planned batch, cursor after it) from where the epoch stands to its end.

        An epoch is one pass over the data, or with len_epoch so many batches of an endless row of passes.
        """
        if self.len_epoch is None and self.position == 0:
            self.cursor = [epoch, 0]
        left = math.inf if self.len_epoch is None else self.len_epoch - self.position
        number, done, *state = self.cursor
        while left > 0:
            for planned in self.data_loader.planned(number, done, *state):
                done, left = done + 1, left - 1
                yield planned, [number, done, planned.state]
                if left == 0:
                    return
            if done == 0:
                raise ConfigError(f"{self._parsed.place('data_loader')}: no batch. Is the set empty, drop_last true?")
            if self.len_epoch is None:
                return
            number, done, state = number + 1, 0, []

    def _load(self, planned):
        asked = time.perf_counter()
        batch = next(planned.source)
        self._waited += time.perf_counter() - asked
        self.batch = self.inputs_and_target(devices.move(batch, self.device, self.memory_format))
        return self.batch

    @staticmethod
    def inputs_and_target(batch):
        """(what the model gets, what the criterion compares with) of a batch: the one place that knows; override it."""
        return batch

    @staticmethod
    def predict(model, inputs):
        """The model's output; a dict of inputs goes in by name."""
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    def _between_updates(self, epoch):
        """Before an update validate, save, leave, where due; in this order, so that a save has all behind it."""
        inside = self.position > 0
        if inside and self._is_due("valid_steps") and self.validated != self.step:
            self._validate_inside(epoch)
        if inside and self._is_due("save_steps") and self.saved_step != self.step:
            self._save_position()
        signals.check(together=True)
        if inside and self._finished():
            raise EndOfRun

    def _is_due(self, name):
        every = self.settings[name]
        return bool(every) and self.step % every == 0

    def _valid_epoch(self, epoch):
        """{name: number} of every validation set."""
        numbers: dict[str, float] = {}
        how = {"device": self.device, "memory_format": self.memory_format, "autocast": self.stepper.autocast()}
        with seeds.untouched_devices(), self.stepper.averaged():
            for name, loader in named(self.valid_data_loader).items():
                metrics = self.valid_metrics[name]
                numbers |= evaluate(self, self.model, loader, self.criterion, metrics, epoch=epoch, **how)
        return numbers

    def _validate_inside(self, epoch):
        """A validation between two updates counts as any other: for the best, the patience and the log."""
        self._check_loss()
        log = {"epoch": epoch, "step": self.step, **self._valid_epoch(epoch)}
        improved = self.mnt_metric in log and self._judge(log)
        self.validated = self.step
        self._report(log, "best so far" if improved else "")
        if improved:
            self._save(["model_best.pth", "latest.pth"])

    def _measure_so_far(self):
        log = super()._measure_so_far() | self.train_metrics.result() | self._valid_epoch(self.epoch + 1)
        return log | {"lr": self.stepper.learning_rates()[0]}

    def _log_step(self, epoch, bar):
        """The training values since the last time; the loop's only wait for the device."""
        total, count = self._check_loss()
        loss = (total - self.logged[0]) / max(count - self.logged[1], 1)
        self.logged = [total, count]
        numbers = {"loss": loss} | {f"lr_{i}": lr for i, lr in enumerate(self.stepper.learning_rates())}
        self.writer.numbers({f"step/{name}": value for name, value in numbers.items()}, self.step)
        bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        if bar.disable:
            self.logger.debug(f"epoch {epoch}  step {self.step}  loss {loss:.4f}")

    def _progress(self, epoch):
        from tqdm import tqdm

        size = self.data_loader.batch_size or 1
        bar = {"desc": f"epoch {epoch}", "unit": " samples", "unit_scale": True, "leave": False}
        bar["disable"] = None if processes.is_main() else True  # None: off a terminal
        total = self.len_epoch * size if self.len_epoch else self.data_loader.n_samples
        return tqdm(total=total, initial=self.position * size, **bar)

    def _check_loss(self):
        total, count = self.train_metrics.loss_so_far()
        if bad := [one for one in processes.gather(total) if not math.isfinite(one)]:
            self._checkpoints.wait()
            where = f"in epoch {self.epoch + 1}, step {self.step}; stopped before saving it."
            last = f"The last good one: {processes.from_main(self._newest_name)}. Lower optimizer.args.lr, or set"
            raise Diverged(f"The training loss is {bad[0]} {where}\n{last} trainer.clip_grad_norm.")
        return total, count

    def _averages(self):
        return self.stepper.averages()
