"""TensorBoard, or nothing: a writer that is off has the same methods, so callers never ask."""

import inspect


class TensorboardWriter:
    """A SummaryWriter that fills in step and mode, opened at its first use.

    log_dir: a folder, or a function that returns it. `set_step(step, mode)` comes before the `add_*` calls of a step; a
    tag is written as "tag/mode", but for histograms and embeddings. `numbers` writes names as they are. `purge_step`:
    of a resumed run, the first step whose old points are to be dropped.
    """

    def __init__(self, log_dir, logger, enabled):
        self.log_dir = log_dir
        self.logger = logger
        self.enabled = enabled
        self.purge_step = None
        self.step = 0
        self.mode = "train"
        self._writer = None

    def open(self):
        """torch's SummaryWriter; None where TensorBoard is off or missing."""
        if self._writer is None and self.enabled:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self.logger.warning("trainer.tensorboard: pip install tensorboard, or set it to false.")
                self.enabled = False
                return None
            folder = self.log_dir() if callable(self.log_dir) else self.log_dir
            self._writer = SummaryWriter(str(folder), purge_step=self.purge_step)
        return self._writer

    writer = property(open)

    def set_step(self, step, mode="train"):
        """What follows belongs to this step."""
        self.mode, self.step = mode, step

    def numbers(self, values, step):
        """Write {name: number} at a step, under their names as they are."""
        for name, value in values.items() if self.writer is not None else ():
            self.writer.add_scalar(name, value, step)

    def close(self):
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getattr__(self, name):
        if not name.startswith(("add_", "get_", "flush")):
            raise AttributeError(f"TensorboardWriter has no '{name}'")

        def call(*args, **kwargs):
            if self.writer is None:
                return None
            method = getattr(self.writer, name)
            signature = inspect.signature(method)
            if "global_step" in signature.parameters:
                if args and isinstance(args[0], str) and name not in ("add_histogram", "add_embedding"):
                    args = (f"{args[0]}/{self.mode}", *args[1:])
                if "global_step" not in signature.bind_partial(*args, **kwargs).arguments:
                    kwargs["global_step"] = self.step
            return method(*args, **kwargs)

        return call
