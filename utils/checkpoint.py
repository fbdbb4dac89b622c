"""Checkpoint files: whole or absent, checked before they are read, and never code.

A file is an ordinary torch.save zip that plain `torch.load(path)` opens. Its zip comment holds the SHA-256 of every
byte before the comment, since torch.load itself does not notice most flipped bits.
"""

import hashlib
import os
import pickle
import shutil
import struct
import threading
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch

from utils import imports, processes
from utils.errors import CheckpointError, SaveError, first_line
from utils.util import replacing

FORMAT = 1  # of the content; a reader that meets a newer one refuses it
_END_RECORD = 22  # bytes of a zip's end record, whose last two are the comment's length
_COMMENT = b"sha256:"
_COMMENT_SIZE = len(_COMMENT) + 64
_OTHERS = "Give another one with -r; one that pytorch-template or a fork of it wrote is read with --trust."


def plain(value, keep=lambda tensor, path: tensor, path=()):
    """`value` made of what a checkpoint may hold: tensors, numbers, text, None, and dicts, lists and tuples of them.

    numpy scalars become Python numbers, arrays and sets lists, a Path its text; TypeError for anything else.
    keep(tensor, path of keys): what stands in a tensor's place.
    """
    if isinstance(value, torch.Tensor):
        return keep(value, path)
    if isinstance(value, dict):
        pairs = ((plain(key), plain(item, keep, (*path, key))) for key, item in value.items())
        return OrderedDict(pairs) if isinstance(value, OrderedDict) else dict(pairs)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = (plain(item, keep, (*path, i)) for i, item in enumerate(value))
        return tuple(items) if isinstance(value, tuple) else list(items)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    where = ".".join(map(str, path)) or "it"
    raise TypeError(f"checkpoint: {where} is a {type(value).__name__}; a state holds tensors and plain values.")


class Writer:
    """Writes checkpoints in a thread; the caller waits only while the state is copied.

    An error of the thread surfaces, as SaveError, at the next `write` or at `wait`.
    """

    def __init__(self):
        self._kept = {}  # the last copy's tensors by path, so that the next one allocates nothing
        self._thread = None
        self._error = None

    def write(self, state, paths, afterwards=lambda: None):
        """Write `state` once, under the first of `paths`; the others become links to it, in this order."""
        self.wait()
        copied = self._on_host(state)
        self._thread = threading.Thread(target=self._run, args=(copied, paths, afterwards), name="checkpoint")
        self._thread.start()

    def _on_host(self, state):
        """`state` in plain values, each tensor copied, strides kept; those that share memory share the copy's, too."""
        seen, kept = {}, {}

        def copied(tensor, path):
            source = tensor.detach()
            identity = (source.device, source.data_ptr() or path, source.shape, source.stride(), source.dtype)
            if identity not in seen:
                seen[identity] = kept[path] = _buffer(self._kept.get(path), source).copy_(source)
            return seen[identity]

        made = plain(state, copied)
        self._kept = kept
        return made

    def wait(self):
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, state, paths, afterwards):
        try:
            save(state, paths[0])
            for path in paths[1:]:
                link(paths[0], path)
            afterwards()
        except Exception as error:  # nothing may be lost in a thread
            why = f"{paths[0]}: could not be saved, linked or tidied: {error}"
            self._error = error if isinstance(error, SaveError) else SaveError(why)


def _buffer(kept, source):
    """`kept`, if a copy of `source` fits into it, else new host memory."""
    if kept is None or (kept.shape, kept.dtype, kept.stride()) != (source.shape, source.dtype, source.stride()):
        return torch.empty_like(source, device="cpu")
    return kept


def save(state, path):
    """Write `state` so that `path` holds either all of it or what was there before."""
    try:
        with replacing(path) as temporary, open(temporary, "w+b") as file:
            torch.save(state, file)
            _seal(file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        raise SaveError(_why_not_saved(Path(path), error)) from error


def _seal(file):
    """Give the zip that ends here a comment with the SHA-256 of everything before it."""
    size = file.seek(-2, os.SEEK_END) + 2
    file.write(struct.pack("<H", _COMMENT_SIZE))
    digest = _digest(file, size)
    file.write(_COMMENT + digest)


def _why_not_saved(path, error):
    cause = error if isinstance(error, OSError) else error.__context__
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else error
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    why = f"{reason} ({shutil.disk_usage(folder).free:,} bytes free).\nThe checkpoint before it is intact"
    return f"{path.absolute()}: could not be saved: {why}. Make room, then continue with -r {path.parent.absolute()}"


def link(existing, path):
    """Make `path` another name of the file `existing`, replacing what is there; a copy where links don't exist."""
    with replacing(path) as temporary:
        try:
            os.link(existing, temporary)
        except OSError:
            shutil.copyfile(existing, temporary)
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())


def load(path, warn=lambda line: None):
    """The content of a checkpoint, its tensors on the CPU.

    warn: told once where the file is sound but carries no checksum. Raises CheckpointError where the file is missing
    bytes, has others than were written, or holds anything but tensors and plain values.
    """
    path = Path(path)
    try:
        if not _verify(path):
            warn(f"{path}: carries no checksum, so flipped bytes in it would go unnoticed.")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # an unpickler's errors are of every kind
        more = isinstance(error, pickle.UnpicklingError)
        reason = "it holds more than tensors and plain values." if more else first_line(error)
        why = f"not a checkpoint that can be read safely: {reason}\n{_OTHERS}"
        raise CheckpointError(f"{path.absolute()}: {why}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.absolute()}: holds a {type(content).__name__}; a checkpoint is a dict.")
    if content.get("format", 0) > FORMAT:
        raise CheckpointError(f"{path.absolute()}: written by a newer version (format {content['format']}).")
    if "parts" in content:
        return imports.optional("extras.sharded", f"{path}, a checkpoint in parts,").opened(content, path)
    return content


def _verify(path):
    """Whether the file carries its checksum; CheckpointError where it does not match or the zip is not plain."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        content = size - _COMMENT_SIZE  # bytes before the comment, if there is one
        file.seek(max(content, 0))
        comment = file.read()
        sealed = content > 0 and comment.startswith(_COMMENT)
        if sealed and comment != _COMMENT + _digest(file, content):
            raise CheckpointError(f"{path.absolute()}: its checksum does not match; the file is damaged.")
        file.seek(max(size - _END_RECORD, 0))
        end = file.read()
        if not sealed and (end[:4] != b"PK\x05\x06" or end[-2:] != b"\x00\x00"):
            raise CheckpointError(f"{path.absolute()}: incomplete, or not a checkpoint. {_OTHERS}")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(e.compress_type != zipfile.ZIP_STORED for e in entries) or sum(e.file_size for e in entries) > size:
            raise CheckpointError(f"{path.absolute()}: refused: it has compressed or oversized entries.")
    return sealed


def _digest(file, size):
    """The SHA-256 of the first `size` bytes, as text."""
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0:
        block = file.read(min(1 << 20, size))
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


def unwrapped(model):
    """The user's own module, whatever wraps it, so that a checkpoint never says 'module.' or '_orig_mod.'."""
    while True:
        if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            model = model.module
        elif "_orig_mod" in model._modules and type(model).__name__ == "OptimizedModule":
            model = model._modules["_orig_mod"]
        elif hasattr(type(model), "wraps"):  # a wrapper of our own
            model = model.wraps
        else:
            return model


def class_name(model):
    """The name of the user's own class, of which fully_shard makes one of its own."""
    return next(c.__name__ for c in type(unwrapped(model)).__mro__ if not c.__module__.startswith("torch.distributed"))


def load_weights(model, weights, path):
    """Put `weights` into the user's own module; what does not fit is a CheckpointError that names tensor and shapes."""
    module = unwrapped(model)
    own = module.state_dict()
    weights = _without_wrapper(weights, own)
    clashes = [
        f"layer '{name}' is {tuple(weights[name].shape)} there and {tuple(tensor.shape)} here"
        for name, tensor in own.items()
        if name in weights and isinstance(tensor, torch.Tensor) and weights[name].shape != tensor.shape
    ]
    missing = [f"layer '{name}' is not in it" for name in own if name not in weights]
    unexpected = [f"layer '{name}' is only there" for name in weights if name not in own]
    problems = clashes + missing + unexpected
    if problems:
        rest = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        why = f"{'; '.join(problems[:3])}{rest}.\nGive the arch that it was trained with."
        raise CheckpointError(f"{Path(path).absolute()}: does not fit this model: {why}")
    module.load_state_dict({name: processes.laid_out(weights[name], tensor) for name, tensor in own.items()})


def _without_wrapper(weights, own):
    """Keys without the prefix that another program's wrapper left; a model's own submodule of that name is kept."""
    readings = [weights]
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        if all(key.startswith(prefix) for key in weights):
            readings.append(OrderedDict((key[len(prefix) :], value) for key, value in weights.items()))
    return max(readings, key=lambda reading: len(own.keys() & reading.keys()))
