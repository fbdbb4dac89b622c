"""Arrays that are read where they lie on the disk."""

import pickle

import numpy as np
import pytest
import torch

from base import BaseDataLoader
from data_loader.arrays import MemoryMappedArrays
from utils.errors import ConfigError

INPUTS = np.random.RandomState(0).randint(0, 256, (50, 2, 3)).astype(np.uint8)
TARGETS = np.arange(50, dtype=np.int32)


@pytest.fixture
def put(tmp_path):
    """A function: the paths of two arrays, saved."""

    def save(inputs=INPUTS, targets=TARGETS):
        for name, array in (("inputs", inputs), ("targets", targets)):
            np.save(tmp_path / f"{name}.npy", array)
        return tmp_path / "inputs.npy", tmp_path / "targets.npy"

    return save


def test_a_batch_holds_the_rows_in_the_order_asked_for(put):
    indices = np.array([7, 3, 49, 3, 0])
    inputs, targets = MemoryMappedArrays(*put()).__getitems__(indices, None)
    assert inputs.dtype == torch.uint8 and np.array_equal(inputs.numpy(), INPUTS[indices])
    assert targets.dtype == torch.int64 and targets.tolist() == [7, 3, 49, 3, 0]


def test_an_item_is_a_batchs_row(put):
    dataset = MemoryMappedArrays(*put(), scale=0.5)
    inputs, target = dataset[7]
    assert torch.equal(inputs, torch.from_numpy(INPUTS[7] * np.float32(0.5))) and target.item() == 7


def test_inputs_are_scaled_and_shifted_to_float32(put):
    inputs, _ = MemoryMappedArrays(*put(), scale=1 / 255, shift=-0.5).__getitems__(np.arange(50), None)
    assert inputs.dtype == torch.float32
    torch.testing.assert_close(inputs, torch.from_numpy((INPUTS / 255 - 0.5).astype(np.float32)))


def test_targets_that_are_no_whole_numbers_keep_their_type(put):
    _, targets = MemoryMappedArrays(*put(targets=np.ones((50, 4), np.float32))).__getitems__(np.arange(2), None)
    assert targets.dtype == torch.float32 and targets.shape == (2, 4)


def test_what_is_done_to_a_batch_changes_no_file(put):
    dataset = MemoryMappedArrays(*put())
    dataset.__getitems__(np.arange(50), None)[0].zero_()
    assert np.array_equal(np.load(dataset.paths["inputs"]), INPUTS)


def test_what_is_sent_to_a_worker_is_not_the_data(put):
    large = np.zeros((50, 100_000), np.uint8)
    large[:, 0] = TARGETS
    sent = pickle.dumps(MemoryMappedArrays(*put(inputs=large)))
    assert len(sent) < 1000
    assert pickle.loads(sent).__getitems__(np.array([9, 4]), None)[0][:, 0].tolist() == [9, 4]


@pytest.mark.parametrize("start", ["fork", *(pytest.param(s, marks=pytest.mark.slow) for s in ("forkserver", "spawn"))])
def test_a_worker_reads_what_the_main_process_reads(put, start):
    dataset = MemoryMappedArrays(*put(), scale=2)
    loaders = [BaseDataLoader(dataset, 8, shuffle=True)]
    loaders.append(BaseDataLoader(dataset, 8, shuffle=True, num_workers=1, multiprocessing_context=start))
    alone, other = ([torch.cat(column) for column in zip(*loader.batches_of(3))] for loader in loaders)
    assert torch.equal(alone[0], other[0]) and torch.equal(alone[1], other[1])
    assert sorted(alone[1].tolist()) == list(range(50))


def test_reading_takes_no_memory_of_its_own(put):
    paths = put(inputs=np.zeros((50, 2**20), np.uint8))
    dataset = MemoryMappedArrays(*paths)
    assert isinstance(dataset.inputs, np.memmap) and not dataset.inputs.flags.writeable
    inputs, _ = dataset.__getitems__(np.array([4]), None)
    assert inputs.untyped_storage().nbytes() == 2**20


def test_files_that_do_not_belong_together_are_a_config_error(put):
    with pytest.raises(ConfigError, match=r"^targets: .*targets\.npy has 49 rows, and .*inputs\.npy has 50"):
        MemoryMappedArrays(*put(targets=TARGETS[1:]))


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([{}] * 50, object), "Python objects"),
        (np.array(["a"] * 50), "of type <U1"),
        (np.ones(50, np.complex64), "of type <c8"),
        (np.ones(50, ">f4"), "of type >f4"),
        (np.ones(50, "datetime64[s]"), "of type"),
        (np.zeros(50, [("a", "i4")]), "of type"),
        (np.array(3.0), r"of shape \(\)"),
        (np.asfortranarray(np.ones((50, 2))), "column by column"),
    ],
    ids=["objects", "text", "complex", "other byte order", "dates", "records", "no rows", "columns"],
)
def test_an_array_that_can_not_be_read_by_the_row_is_a_config_error(put, array, why):
    with pytest.raises(ConfigError, match=rf"^inputs: .*inputs\.npy.*{why}"):
        MemoryMappedArrays(*put(inputs=array))


def test_a_file_that_is_no_array_is_a_config_error(put):
    inputs, targets = put()
    inputs.write_bytes(inputs.read_bytes()[:200])
    with pytest.raises(ConfigError, match=r"^inputs: .*inputs\.npy: "):
        MemoryMappedArrays(inputs, targets)
    inputs.write_bytes(pickle.dumps(INPUTS))
    with pytest.raises(ConfigError, match=r"^inputs: .*inputs\.npy: "):
        MemoryMappedArrays(inputs, targets)
    np.savez(inputs.with_suffix(".npz"), INPUTS)
    with pytest.raises(ConfigError, match=r"^inputs: .*inputs\.npz holds several arrays"):
        MemoryMappedArrays(inputs.with_suffix(".npz"), targets)
    with pytest.raises(ConfigError, match=r"^inputs: .*absent\.npy: .*No such file"):
        MemoryMappedArrays(inputs.with_name("absent.npy"), targets)
