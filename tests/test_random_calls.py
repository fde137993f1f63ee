"""Random calls of every operator, with every option and values of any size, give what they must.

`python tests/random_calls.py --cases 20000` draws more of them; a failure names its seed.
"""

import numpy as np
import pytest
import random_calls

from kerneltrick.engines import core, set_num_threads

BATCHES = [
    pytest.param(i, marks=[pytest.mark.slow] if i >= 8 else [], id=f"seeds {40 * i}–{40 * i + 39}")
    for i in range(60)
]


@pytest.mark.parametrize("batch", BATCHES)
def test_outputs_are_those_of_extended_precision(batch, monkeypatch):
    isas = core().isas() if core() is not None else [""]
    try:
        for seed in range(40 * batch, 40 * batch + 40):
            monkeypatch.setenv("KERNELTRICK_ISA", isas[seed % len(isas)])
            set_num_threads(1 + seed % 3)
            random_calls.check(seed)
    finally:
        set_num_threads(None)


@pytest.mark.parametrize("batch", BATCHES[4:12])
def test_gradients_are_those_of_another_engine(batch):
    pytest.importorskip("torch")
    for seed in range(20 * batch, 20 * batch + 20):
        random_calls.check_gradient(seed)


@pytest.mark.parametrize("batch", BATCHES[6:10])
def test_steps_of_decoders_are_those_of_extended_precision(batch):
    for seed in range(20 * batch, 20 * batch + 20):
        random_calls.check_steps(seed)


@pytest.mark.parametrize("operator", random_calls.DRAWS)
def test_a_wrong_output_is_found(operator, monkeypatch):
    """A thousandth is more than rounding, in float16 a hundredth."""
    right = random_calls.OPERATORS[operator]

    def wrong(**options):
        out = np.array(right(**options))
        return out * out.dtype.type(1.01 if out.dtype == np.float16 else 1.001)

    monkeypatch.setitem(random_calls.OPERATORS, operator, wrong)
    told = []
    for seed in range(16):
        try:
            random_calls.check(seed, "compiled", operator)
        except AssertionError as error:
            told.append(str(error))
    assert len(told) >= 8  # the others have no tokens, or add up numbers that cancel
    assert all(text.startswith("seed ") and " are wrong; " in text for text in told)
