"""Checkpoint files: whole or absent, checked before they are read, and never code."""

import os
import resource
import threading
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from utils import checkpoint
from utils.errors import CheckpointError, SaveError


class Killed(BaseException):
    """Ends a writer as a kill would: nothing that tidies after errors sees it."""


class Payload:
    """Unpickled by plain pickle, it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def some_state():
    images = torch.arange(48.0).reshape(2, 3, 2, 4)
    return {"format": 1, "weights": images.contiguous(memory_format=torch.channels_last), "step": 7}


@pytest.fixture
def small(tmp_path):
    """A sound checkpoint of a few kilobytes."""
    path = tmp_path / "small.pth"
    checkpoint.save({"format": 1, "weights": torch.arange(4.0)}, path)
    return path


def damaged(path, content):
    other = path.with_name("damaged.pth")
    other.write_bytes(content)
    return other


def is_refused(path):
    try:
        checkpoint.load(path)
    except CheckpointError:
        return True
    return False


# --- what a file holds ---


def test_plain_torch_load_opens_a_saved_checkpoint_with_equal_tensors(tmp_path):
    checkpoint.save(some_state(), tmp_path / "a.pth")
    loaded = torch.load(tmp_path / "a.pth")
    assert torch.equal(loaded["weights"], some_state()["weights"])
    assert loaded["step"] == 7


def test_a_channels_last_tensor_keeps_its_strides_through_a_file(tmp_path):
    checkpoint.save(some_state(), tmp_path / "a.pth")
    assert checkpoint.load(tmp_path / "a.pth")["weights"].stride() == some_state()["weights"].stride()


def test_a_sound_checkpoint_is_loaded_without_a_word(small):
    lines = []
    checkpoint.load(small, lines.append)
    assert lines == []


def test_a_file_without_checksum_is_read_with_one_line_that_says_so(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "foreign.pth")
    lines = []
    content = checkpoint.load(tmp_path / "foreign.pth", lines.append)
    assert torch.equal(content["weights"], torch.ones(2))
    assert len(lines) == 1 and "checksum" in lines[0]


# --- what is refused ---


def test_one_flipped_bit_in_any_byte_is_refused(small):
    sound = small.read_bytes()
    passed = []
    for place in range(len(sound)):
        flipped = bytearray(sound)
        flipped[place] ^= 1 << place % 8
        if not is_refused(damaged(small, flipped)):
            passed.append(place)
    assert passed == []


def test_a_checkpoint_cut_short_at_any_length_is_refused(small):
    sound = small.read_bytes()
    passed = [length for length in range(len(sound)) if not is_refused(damaged(small, sound[:length]))]
    assert passed == []


def test_a_file_without_checksum_cut_short_at_any_length_is_refused(tmp_path):
    path = tmp_path / "foreign.pth"
    torch.save({"weights": torch.ones(2)}, path)
    whole = path.read_bytes()
    passed = [length for length in range(len(whole)) if not is_refused(damaged(path, whole[:length]))]
    assert passed == []


@pytest.mark.parametrize(
    "extra", [b"\0", b"x" * 100, b"PK\x05\x06" + bytes(18)], ids=["a zero", "text", "an end record"]
)
def test_bytes_behind_the_checksum_are_refused(small, extra):
    assert is_refused(damaged(small, small.read_bytes() + extra))


def test_bytes_behind_a_file_without_checksum_are_refused(tmp_path):
    torch.save({"weights": torch.ones(2)}, tmp_path / "foreign.pth")
    assert is_refused(damaged(tmp_path / "foreign.pth", (tmp_path / "foreign.pth").read_bytes() + b"\0"))


@pytest.mark.parametrize("comment", [b"hello", b"sha256:" + b"0" * 64])
def test_a_comment_that_is_not_the_checksum_is_refused(tmp_path, comment):
    path = tmp_path / "foreign.pth"
    torch.save({"weights": torch.ones(2)}, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = comment
    assert is_refused(path)


def test_compressed_entries_are_refused_though_they_are_no_smaller(tmp_path):
    noise = torch.randint(256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    torch.save({"weights": noise}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(tmp_path / "packed.pth", "w") as packed:
        for entry in plain.namelist():
            packed.writestr(entry, plain.read(entry), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="compressed"):
        checkpoint.load(tmp_path / "packed.pth")


def test_compressed_entries_are_refused_under_a_checksum_that_matches(small, tmp_path):
    with zipfile.ZipFile(small) as plain, open(tmp_path / "packed.pth", "w+b") as file:
        with zipfile.ZipFile(file, "w") as packed:
            for entry in plain.namelist():
                packed.writestr(entry, plain.read(entry), zipfile.ZIP_DEFLATED)
        checkpoint._seal(file)
    with pytest.raises(CheckpointError, match="compressed"):
        checkpoint.load(tmp_path / "packed.pth")


def test_entries_that_claim_more_than_the_file_holds_are_refused(tmp_path):
    torch.save({"weights": torch.zeros(1000)}, tmp_path / "plain.pth")
    with zipfile.ZipFile(tmp_path / "plain.pth", "a") as archive:
        biggest = max(archive.infolist(), key=lambda entry: entry.file_size)
        archive.filelist.append(biggest)  # the directory names the same bytes twice
        archive._didModify = True
    with pytest.raises(CheckpointError, match="oversized"):
        checkpoint.load(tmp_path / "plain.pth")


def test_a_pickled_module_is_refused(tmp_path):
    torch.save({"model": nn.Linear(2, 2)}, tmp_path / "module.pth")
    with pytest.raises(CheckpointError, match="read safely"):
        checkpoint.load(tmp_path / "module.pth")


@pytest.mark.parametrize("write", [torch.save, checkpoint.save], ids=["without checksum", "with checksum"])
def test_a_payload_is_refused_and_does_not_run(tmp_path, write):
    write({"weights": Payload(tmp_path / "ran")}, tmp_path / "evil.pth")
    assert is_refused(tmp_path / "evil.pth")
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        checkpoint.load(tmp_path / "none.pth")


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path):
    checkpoint.save({"format": checkpoint.FORMAT + 1}, tmp_path / "new.pth")
    with pytest.raises(CheckpointError, match="newer version"):
        checkpoint.load(tmp_path / "new.pth")


# --- whole or absent ---


def test_a_writer_killed_before_the_rename_leaves_the_old_file(small, monkeypatch):
    for module, step in ((torch, "save"), (os, "fsync"), (os, "replace")):
        with monkeypatch.context() as patch:

            def kill(*args, **kwargs):
                raise Killed

            patch.setattr(module, step, kill)
            with pytest.raises(Killed):
                checkpoint.save({"weights": torch.zeros(4)}, small)
        assert torch.equal(checkpoint.load(small)["weights"], torch.arange(4.0)), step


@pytest.fixture
def steps(monkeypatch):
    """The order in which files are forced to the disk and take their names."""
    noted = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (noted.append("fsync"), fsync(descriptor))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (noted.append("replace"), replace(*paths))[1])
    return noted


def test_a_new_file_is_on_the_disk_before_it_takes_the_old_ones_name(small, steps):
    steps.clear()
    checkpoint.save({"weights": torch.zeros(4)}, small)
    assert steps == ["fsync", "replace", "fsync"]  # the file, its name, the folder that holds the name


@pytest.fixture
def full_disk():
    """From the call on, no file of this process grows beyond 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_save_error_that_names_the_file_and_how_to_go_on(small, full_disk):
    full_disk()
    with pytest.raises(SaveError, match=r"small.pth: could not be saved: .* bytes free(.|\n)*-r "):
        checkpoint.save({"weights": torch.zeros(1 << 16)}, small)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small, full_disk):
    full_disk()
    with pytest.raises(SaveError):
        checkpoint.save({"weights": torch.zeros(1 << 16)}, small)
    assert torch.equal(checkpoint.load(small)["weights"], torch.arange(4.0))
    assert [path.name for path in small.parent.iterdir()] == ["small.pth"]


# --- links ---


def test_a_link_is_the_same_file_under_another_name(small):
    checkpoint.link(small, small.with_name("best.pth"))
    assert small.samefile(small.with_name("best.pth"))


def test_a_link_replaces_what_had_its_name(small):
    best = small.with_name("best.pth")
    best.write_text("older")
    checkpoint.link(small, best)
    assert best.samefile(small)


def test_a_link_made_twice_leaves_no_temporary_name(small):
    best = small.with_name("best.pth")
    checkpoint.link(small, best)
    checkpoint.link(small, best)
    assert sorted(path.name for path in small.parent.iterdir()) == ["best.pth", "small.pth"]


def no_links(*paths):
    raise OSError("this file system has no links")


def test_where_links_do_not_exist_a_link_is_a_copy(small, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    best = small.with_name("best.pth")
    checkpoint.link(small, best)
    assert best.read_bytes() == small.read_bytes() and not best.samefile(small)


def test_a_copy_is_on_the_disk_before_it_takes_the_old_ones_name(small, monkeypatch, steps):
    monkeypatch.setattr(os, "link", no_links)
    steps.clear()
    checkpoint.link(small, small.with_name("best.pth"))
    assert steps == ["fsync", "replace", "fsync"]


def test_a_copy_that_does_not_fit_on_the_disk_leaves_nothing_behind(small, monkeypatch, full_disk):
    monkeypatch.setattr(os, "link", no_links)
    checkpoint.save({"weights": torch.zeros(1 << 16)}, small)
    full_disk()
    with pytest.raises((OSError, SaveError)):
        checkpoint.link(small, small.with_name("best.pth"))
    assert [path.name for path in small.parent.iterdir()] == ["small.pth"]


# --- the writer ---


@pytest.fixture
def writer():
    made = checkpoint.Writer()
    yield made
    made.wait()


def held_back(monkeypatch, written=None):
    """Let nothing be written before the event is set; what is written is noted in `written`."""
    release, save = threading.Event(), checkpoint.save

    def late(state, path):
        if written is not None:
            written.append(state)
        assert release.wait(60)
        save(state, path)

    monkeypatch.setattr(checkpoint, "save", late)
    return release


def test_a_write_returns_before_the_file_is_there(tmp_path, monkeypatch, writer):
    release = held_back(monkeypatch)
    writer.write(some_state(), [tmp_path / "a.pth"])
    there = (tmp_path / "a.pth").exists()
    release.set()
    writer.wait()
    assert not there and (tmp_path / "a.pth").exists()


def test_what_changes_after_a_write_does_not_reach_the_file(tmp_path, monkeypatch, writer):
    release, state = held_back(monkeypatch), some_state()
    writer.write(state, [tmp_path / "a.pth"])
    state["weights"].zero_()
    release.set()
    writer.wait()
    assert torch.equal(checkpoint.load(tmp_path / "a.pth")["weights"], some_state()["weights"])


def test_a_second_write_copies_into_the_memory_of_the_first(tmp_path, monkeypatch, writer):
    written = []
    held_back(monkeypatch, written).set()
    for _ in range(2):
        writer.write(some_state(), [tmp_path / "a.pth"])
    writer.wait()
    first, second = (state["weights"].data_ptr() for state in written)
    assert first == second


def test_a_tensor_that_changed_its_shape_is_written_as_it_is_now(tmp_path, writer):
    for weights in (torch.ones(3), torch.arange(5.0)):
        writer.write({"weights": weights}, [tmp_path / "a.pth"])
    writer.wait()
    assert torch.equal(checkpoint.load(tmp_path / "a.pth")["weights"], torch.arange(5.0))


def test_an_error_of_the_thread_surfaces_at_the_next_write(tmp_path):
    writer = checkpoint.Writer()
    writer.write(some_state(), [tmp_path / "no folder" / "a.pth"])
    with pytest.raises(SaveError, match="could not be saved"):
        writer.write(some_state(), [tmp_path / "a.pth"])


def test_an_error_of_the_thread_surfaces_once_at_wait(tmp_path):
    writer = checkpoint.Writer()
    writer.write(some_state(), [tmp_path / "no folder" / "a.pth"])
    with pytest.raises(SaveError, match="could not be saved"):
        writer.wait()
    writer.wait()


def test_an_error_while_tidying_afterwards_is_not_lost(tmp_path):
    writer = checkpoint.Writer()
    writer.write(some_state(), [tmp_path / "a.pth"], lambda: (tmp_path / "gone").unlink())
    with pytest.raises(SaveError, match="tidied"):
        writer.wait()


def test_several_names_of_one_write_are_one_file(tmp_path, writer):
    paths = [tmp_path / name for name in ("best.pth", "kept.pth", "latest.pth")]
    writer.write(some_state(), paths)
    writer.wait()
    assert all(path.samefile(paths[0]) for path in paths)


def test_tensors_that_share_their_memory_still_share_it_in_the_file(tmp_path, writer):
    tied = torch.ones(1000)
    writer.write({"encoder": tied, "decoder": tied}, [tmp_path / "a.pth"])
    writer.wait()
    loaded = checkpoint.load(tmp_path / "a.pth")
    assert loaded["encoder"].data_ptr() == loaded["decoder"].data_ptr()


def test_a_part_of_a_tensor_is_written_without_the_rest_of_its_memory(tmp_path, writer):
    writer.write({"part": torch.zeros(1 << 20)[:4]}, [tmp_path / "a.pth"])
    writer.wait()
    assert (tmp_path / "a.pth").stat().st_size < 10_000


# --- plain values ---


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        (np.array([[1.5, 2.5]]), [[1.5, 2.5]]),
        (Path("saved/run"), str(Path("saved/run"))),
        ({3}, [3]),
        (torch.Size([2, 3]), (2, 3)),
        ({"path": [Path("a")]}, {"path": ["a"]}),
        (OrderedDict(b=np.int32(1), a=2), OrderedDict(b=1, a=2)),
        (None, None),
    ],
    ids=str,
)
def test_a_value_of_another_library_becomes_a_plain_one(tmp_path, value, expected):
    checkpoint.save(checkpoint.plain({"value": value}), tmp_path / "a.pth")
    loaded = checkpoint.load(tmp_path / "a.pth")["value"]
    assert loaded == expected and type(loaded) is type(expected)


# --- weights ---


class HasModule(nn.Module):
    """A model that calls a layer of its own `module`, as wrappers do."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 3)


def with_weights_of(model, weights):
    checkpoint.load_weights(model, weights, "some.pth")
    return model.state_dict()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_prefix_of_another_programs_wrapper_is_dropped(prefix):
    weights = nn.Linear(2, 3).state_dict()
    loaded = with_weights_of(nn.Linear(2, 3), {prefix + name: value for name, value in weights.items()})
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_a_models_own_submodule_called_module_is_kept():
    weights = HasModule().state_dict()
    loaded = with_weights_of(HasModule(), weights)
    assert torch.equal(loaded["module.weight"], weights["module.weight"])


def test_a_wrapped_model_whose_own_submodule_is_called_module_is_loaded():
    weights = HasModule().state_dict()
    loaded = with_weights_of(HasModule(), {"module." + name: value for name, value in weights.items()})
    assert torch.equal(loaded["module.weight"], weights["module.weight"])


def test_a_layer_of_another_shape_is_named_with_both_shapes():
    with pytest.raises(CheckpointError, match=r"layer 'weight' is \(10, 84\) there and \(100, 84\) here"):
        checkpoint.load_weights(nn.Linear(84, 100), nn.Linear(84, 10).state_dict(), "some.pth")


def test_a_layer_that_is_missing_or_unexpected_is_named():
    theirs = nn.Linear(2, 2, bias=False).state_dict() | {"head": torch.ones(1)}
    with pytest.raises(CheckpointError, match=r"some.pth.*'bias' is not in it; layer 'head' is only there"):
        checkpoint.load_weights(nn.Linear(2, 2), theirs, "some.pth")


def test_weights_that_do_not_fit_leave_the_model_as_it_was():
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(CheckpointError):
        checkpoint.load_weights(model, {"weight": torch.zeros(2, 2)}, "some.pth")
    assert torch.equal(model.weight, before)


def test_a_data_parallel_model_is_unwrapped_to_the_users_own():
    model = nn.Linear(2, 2)
    assert checkpoint.unwrapped(nn.DataParallel(model)) is model


def test_a_compiled_model_is_unwrapped_to_the_users_own():
    model = nn.Linear(2, 2)
    assert checkpoint.unwrapped(nn.DataParallel(torch.compile(model, backend="eager"))) is model


def test_a_models_own_submodule_called_module_is_not_taken_for_a_wrapper():
    model = HasModule()
    assert checkpoint.unwrapped(model) is model
