"""Philox4x64-10 against published vectors and against NumPy's generator."""

from __future__ import annotations

import numpy as np
import pytest

from nuvec.core.ops import philox

ALL_ONES = 2**64 - 1

# The known-answer vectors of the Random123 distribution (kat_vectors, philox4x64, 10 rounds).
VECTORS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (ALL_ONES,) * 4,
        (ALL_ONES,) * 2,
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter, key, expected):
    block = philox.philox(
        [np.array([c], np.uint64) for c in counter], [np.array([k], np.uint64) for k in key]
    )
    assert block.tolist() == [list(expected)]


def _numpy(key, purpose, count, salt=0):
    counter = np.array([0, salt, 0, purpose], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


@pytest.fixture(scope="module")
def keys():
    return np.random.Generator(np.random.PCG64(0)).integers(0, ALL_ONES, (700, 2), np.uint64, True)


@pytest.mark.parametrize("purpose", [philox.BITS, philox.SPLIT, philox.FOLD_IN])
@pytest.mark.parametrize(("n", "count"), [(1, 1), (3, 9), (199, 4), (200, 4), (700, 63), (700, 0)])
def test_words_are_those_of_numpy(keys, purpose, n, count):
    salts = keys[::-1, 0][:n].copy()
    found = philox.words(keys[:n], purpose, count, salts)
    assert found.shape == (n, count)
    for i in range(0, n, 37):
        assert found[i].tolist() == _numpy(keys[i], purpose, count, salts[i]).tolist()


def test_chunks_of_many_keys_join(keys):
    many = np.resize(keys, (philox._CHUNK + 5, 2))
    found = philox.words(many, philox.BITS, 4)
    for i in (0, philox._CHUNK - 1, philox._CHUNK, len(many) - 1):
        assert found[i].tolist() == _numpy(many[i], 0, 4).tolist()


def test_narrow_numbers_take_the_low_part_of_a_word_first():
    stream = np.array([[0x0807060504030201]], np.uint64)
    assert philox.as_unsigned(stream, np.dtype(np.uint8), 5).tolist() == [[1, 2, 3, 4, 5]]
    assert philox.as_unsigned(stream, np.dtype(np.uint32), 2).tolist() == [[0x04030201, 0x08070605]]
