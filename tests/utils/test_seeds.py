"""Random numbers: seeded for every example, kept, and put back."""

import contextlib
import random

import numpy as np
import pytest
import torch

from utils import checkpoint, seeds

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64_of(state):
    """Vigna's splitmix64.c, next(), on Python's whole numbers."""
    z = (state + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def draws():
    """A number of every generator, and those that they keep for later."""
    return (
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        np.random.rand(3).tolist(),
        np.random.standard_normal(),
        random.random(),
        random.gauss(0, 1),
    )


@pytest.fixture(autouse=True)
def _put_back():
    before = seeds.state()
    yield
    seeds.set_state(before)


def test_splitmix64_gives_the_published_outputs_for_seed_1234567():
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    states = np.array([(1234567 + i * GOLDEN) & MASK for i in range(5)], np.uint64)
    assert seeds.splitmix64(states).tolist() == published


def test_splitmix64_equals_a_scalar_implementation():
    states = [0, 1, MASK, 2**63, *(random.Random(0).getrandbits(64) for _ in range(100))]
    assert seeds.splitmix64(np.array(states, np.uint64)).tolist() == [splitmix64_of(state) for state in states]


def test_an_example_has_the_seed_that_its_run_pass_and_position_give():
    origin = splitmix64_of((splitmix64_of(42) + 3) & MASK)
    expected = [splitmix64_of((origin + i * GOLDEN) & MASK) for i in range(10)]
    assert seeds.example_seeds(42, 3, 10).tolist() == expected


def test_no_two_examples_of_neighbouring_seeds_and_passes_share_a_seed():
    all_seeds = [seeds.example_seeds(seed, epoch, 1000) for seed in range(5) for epoch in range(1, 6)]
    assert len(np.unique(np.concatenate(all_seeds))) == 25_000


def test_seeds_from_a_position_on_are_the_rest_of_the_pass():
    assert seeds.example_seeds(7, 2, 60, first=40).tolist() == seeds.example_seeds(7, 2, 100)[40:].tolist()


@pytest.mark.parametrize("seed", [0, 2**32, 2**63, 2**64 - 1])
def test_any_64_bit_number_seeds_the_generators(seed):
    seeds.set_host(seed)
    first = draws()
    seeds.set_host(seed)
    assert draws() == first


def test_seeding_everything_makes_the_draws_repeat():
    seeds.seed_everything(3)
    first = draws()
    seeds.seed_everything(3)
    assert draws() == first


def test_seeding_everything_gives_the_numbers_of_torch_manual_seed():
    torch.manual_seed(3)
    expected = torch.rand(3)
    seeds.seed_everything(3)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("devices", [False, True])
def test_what_an_untouched_block_draws_leaves_no_trace(devices):
    seeds.seed_everything(1)
    expected = draws()
    seeds.seed_everything(1)
    with seeds.untouched_devices() if devices else seeds.untouched():
        seeds.set_host(99)
        draws()
    assert draws() == expected


def test_an_untouched_block_that_raises_leaves_no_trace():
    seeds.seed_everything(1)
    expected = draws()
    seeds.seed_everything(1)
    with contextlib.suppress(ZeroDivisionError), seeds.untouched():
        draws()
        raise ZeroDivisionError
    assert draws() == expected


def test_the_state_goes_through_a_checkpoint_and_gives_the_same_draws(tmp_path):
    draws()  # an odd number of normal ones: each generator keeps a second for later
    checkpoint.save(seeds.state(), tmp_path / "state.pth")
    expected = draws()
    seeds.seed_everything(0)
    seeds.set_state(checkpoint.load(tmp_path / "state.pth"))
    assert draws() == expected


def test_the_state_holds_plain_values_and_tensors_only():
    def kinds(value):
        if isinstance(value, dict):
            return set().union(*map(kinds, value.values()))
        if isinstance(value, list):
            return set().union(set(), *map(kinds, value))
        return {type(value)}

    assert kinds(seeds.state()) <= {torch.Tensor, int, float, str, type(None)}
