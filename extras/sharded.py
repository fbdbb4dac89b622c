"""Checkpoints in parts, of models that no process can hold whole: `"sharded": true` in the args of `fsdp`.

Each process writes its part of every spread tensor into a folder of torch.distributed.checkpoint beside the .pth file.
That file holds all else and names the folder: once it is in place, the checkpoint is. To load, nothing is unpickled but
tensors: where each of them lies is in the .pth. The folder's own index, which is a pickle, is for torch's tools.
"""

import itertools
import mmap
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from utils import checkpoint, processes
from utils.errors import CheckpointError, SaveError
from utils.util import replacing


def written(content, folder):
    """`content` with an empty tensor in the place of each that is now in a new folder there, which its "parts" names.

    Those are all that are spread, and all of `state_dict`, so that torch's tools find it whole. Called on every
    process, and each returns when all is on the disk; SaveError on each where one could not write.
    """
    from torch.distributed import checkpoint as of_torch

    number, apart = processes.process_number(), {}

    def placeholder(tensor, path):
        if not hasattr(tensor, "full_tensor") and (number > 0 or path[0] != "state_dict"):
            return tensor
        apart.setdefault(path[0], {})[".".join(map(str, path[1:]))] = tensor.detach()
        return torch.empty(0, dtype=tensor.dtype)

    content = checkpoint.plain(content, placeholder)
    made = processes.from_main(lambda: _free_place(folder, f"parts-step{content['step']}"))
    try:
        index = of_torch.save(apart, storage_writer=of_torch.FileSystemWriter(made))
    except of_torch.api.CheckpointException as error:
        raise SaveError(checkpoint._why_not_saved(made, next(iter(error.failures.values()))[0])) from None
    own = [*made.glob(f"__{number}_*"), *(made.glob(".metadata") if number == 0 else ())]
    files = dict(pair for some in processes.gather([(path.name, _size_and_sum(path)) for path in own]) for pair in some)
    processes.from_main(lambda: _complete(made, files))
    tensors = {n: [str(one.properties.dtype), list(one.size), []] for n, one in index.state_dict_metadata.items()}
    for where, stored in index.storage_data.items():
        tensors[where.fqn][2].append([stored.relative_path, stored.offset, stored.length, list(where.offset)])
    return {**content, "parts": {"folder": made.name, "files": files, "tensors": tensors}}


def _free_place(folder, name):
    """`name`, with -2, -3 … where there is one; the folders of parts that no .pth here names are removed."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":  # the last save's .pth may still be on its way to its place
            thread.join()
    # A name stands in a .pth as it is, so that a file that is damaged or another program's needs no care.
    named = {name for path in folder.glob("*.pth") for name in re.findall(rb"parts-step[\d-]+", path.read_bytes())}
    for old in folder.glob("parts-step*"):
        if old.name.encode() not in named:
            shutil.rmtree(old, ignore_errors=True)
    places = (folder / (f"{name}-{i}" if i > 1 else name) for i in itertools.count(1))
    return next(place for place in places if not place.exists())


def _complete(folder, files):
    """Note the checksums as sha256sum does, for people; with it, the folder's entries are on the disk, too."""
    if missing := [name for name in files if not (folder / name).exists()]:
        raise SaveError(f"{folder / missing[0]}: only another process sees it. Give a trainer.save_dir that all share.")
    with replacing(folder / "SHA256SUMS") as temporary:
        temporary.write_text("".join(f"{digest}  {name}\n" for name, (_, digest) in files.items()))


def _size_and_sum(path):
    """[bytes, SHA-256] of a file."""
    with open(path, "rb") as file:
        return [size := path.stat().st_size, checkpoint._digest(file, size).decode()]


def opened(content, path):
    """`content` of the file `path`, with a Spread in the place of each tensor that is in the folder beside it.

    CheckpointError where a file there is missing or has other bytes than were written. Every process compares sizes,
    the main one checksums, too; where it refuses, all end.
    """
    try:
        parts = content["parts"]
        folder, files = path.absolute().parent / parts["folder"], parts["files"]
        tensors = {name: Spread(folder, *rest) for name, rest in parts["tensors"].items()}
        used = {file for one in tensors.values() for file, *_ in one.chunks}
        if not used <= files.keys() or any(Path(name).name != name for name in (parts["folder"], *files)):
            raise ValueError("it names files that are not its own")
        with ThreadPoolExecutor() as pool:  # a checksum lets other threads run
            sound = dict(zip(files, pool.map(lambda name: _is_sound(folder / name, *files[name]), files)))
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.absolute()}: its 'parts' are not those of a checkpoint: {error}.") from error
    if harmed := [name for name in files if not sound[name]]:
        why = f"its part {folder / harmed[0]} is missing or damaged. That folder belongs beside it, as it was written."
        raise CheckpointError(f"{path.absolute()}: {why}")
    return checkpoint.plain(content, lambda tensor, place: tensors.get(".".join(map(str, place)), tensor))


def _is_sound(path, size, digest):
    has_its_size = path.exists() and path.stat().st_size == size
    return has_its_size and (not processes.is_main() or _size_and_sum(path) == [size, digest])


class Spread:
    """A tensor of a checkpoint in parts: `shape` and `dtype` of the whole, which is not in memory."""

    def __init__(self, folder, dtype, shape, chunks):
        self.dtype, self.shape = getattr(torch, dtype.removeprefix("torch.")), torch.Size(shape)
        self.folder, self.chunks = folder, chunks

    def read(self):
        """The whole tensor, on the CPU; beside it, one process's part at a time is in memory."""
        whole = torch.empty(self.shape, dtype=self.dtype)
        for name, start, length, offsets in self.chunks:
            with open(self.folder / name, "rb") as file:
                view = mmap.mmap(file.fileno(), start + length, access=mmap.ACCESS_READ)  # which ends where this does
            view.seek(start)
            part = torch.load(view, map_location="cpu", weights_only=True)
            whole[tuple(slice(at, at + size) for at, size in zip(offsets, part.shape))] = part
        return whole
