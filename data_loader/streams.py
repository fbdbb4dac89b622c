"""Rows of files that are larger than memory, one after the other, from wherever a run was stopped."""

import csv
import gzip
import random
import zlib
from pathlib import Path

from torch.utils.data import IterableDataset

from utils.errors import ArgumentError, Failure


class CsvRows(IterableDataset):
    """The rows of CSV files, .csv or .csv.gz in UTF-8, in the order of `paths`.

    parse: makes an example of a row, a list of texts. shuffle_buffer: so many rows are held back, and each example is
    one of them, drawn by `random`, which BaseDataLoader seeds for every example; 0 keeps the order.
    """

    def __init__(self, paths, parse, shuffle_buffer=0):
        self.paths = [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]
        self.parse = parse
        self.shuffle_buffer = shuffle_buffer
        if missing := [path for path in self.paths if not path.is_file()]:
            raise ArgumentError(f"paths: there is no file {missing[0].absolute()}.")

    def __iter__(self):
        return Pass(self)


class Pass:
    """A pass over CsvRows, and where it stands: the file, the bytes of it that are read, and the rows held back.

    One that was given another's state goes on behind the last example of that one, provided that `random` is seeded for
    each. No row is read twice, but what lies before it in a .gz is unpacked again.
    """

    def __init__(self, stream):
        self.stream = stream
        self.file, self.offset = 0, 0  # bytes as they are unpacked
        self.held: list[list[str]] = []
        self._rows = self._read()

    def state_dict(self):
        return {"file": self.file, "offset": self.offset, "held": list(self.held)}

    def load_state_dict(self, state):
        self.file, self.offset, self.held = state["file"], state["offset"], list(state["held"])
        self._rows = self._read()

    def __iter__(self):
        return self

    def __next__(self):
        for row in self._rows:
            self.held.append(row)
            if len(self.held) > self.stream.shuffle_buffer:
                break
        if not self.held:
            raise StopIteration
        place = random.randrange(len(self.held))
        self.held[place], self.held[-1] = self.held[-1], self.held[place]
        row = self.held.pop()
        try:
            return self.stream.parse(row)
        except ValueError as error:
            raise Failure(f"{', '.join(map(str, self.stream.paths))}: {error}") from error

    def _read(self):
        """Yield the rows from here on; `offset` is behind each."""
        for path in self.stream.paths[self.file :]:
            try:
                with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
                    file.seek(self.offset)
                    for row in csv.reader(line.decode("utf-8") for line in file):
                        self.offset = file.tell()
                        if row:
                            yield row
            except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:
                raise Failure(f"{path.absolute()}, behind byte {self.offset}: {error}") from error
            self.file, self.offset = self.file + 1, 0
