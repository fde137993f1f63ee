"""Lab 01. Any correct solution passes: formulas, loops, whole numbers or floats that hold them."""

import complexity as lab
import numpy as np
import pytest

SIZES = [(1, 1, 1), (2, 3, 5), (5, 4, 4), (10, 7, 2)]


class TestSoftmaxMultiplyAdds:
    def test_by_hand(self):
        # 2 queries, 2 keys: 4 scores of 3 multiply-adds, 4 values of 5
        assert lab.softmax_multiply_adds(2, 3, 5) == 12 + 20

    def test_worked_example(self):
        assert lab.softmax_multiply_adds(1000, D=32, M=80) == 112_000_000

    @pytest.mark.parametrize(("n", "D", "M"), SIZES)
    def test_every_pair_counts(self, n, D, M):
        count = sum(D + M for _ in range(n) for _ in range(n))
        assert lab.softmax_multiply_adds(n, D, M) == count

    @pytest.mark.parametrize(("n", "D", "M"), SIZES)
    def test_causal_pairs_are_those_of_the_past_and_the_token_itself(self, n, D, M):
        count = sum(D + M for i in range(n) for j in range(n) if j <= i)
        assert lab.softmax_multiply_adds(n, D, M, causal=True) == count

    def test_doubling_n_makes_it_four_times_as_much(self):
        twice, once = (lab.softmax_multiply_adds(n, 64, 64) for n in (2048, 1024))
        assert twice == 4 * once

    def test_one_token_costs_the_same_causal_or_not(self):
        causal = lab.softmax_multiply_adds(1, 8, 9, causal=True)
        assert causal == lab.softmax_multiply_adds(1, 8, 9) == 17


class TestLinearMultiplyAdds:
    def test_by_hand(self):
        # 1 token: U takes 3·5 and Z 3, reading them as much again
        assert lab.linear_multiply_adds(1, 3, 5) == 15 + 3 + 15 + 3

    def test_quadratic_features(self):
        count = lab.linear_multiply_adds(1000, lab.quadratic_features(32), 80)
        assert count == 89_760_000 + 2 * 1000 * 561

    def test_doubling_n_makes_it_twice_as_much(self):
        twice, once = (lab.linear_multiply_adds(n, 64, 64) for n in (2048, 1024))
        assert twice == 2 * once

    @pytest.mark.parametrize(("n", "m", "M"), SIZES)
    def test_causal_takes_as_many(self, n, m, M):
        causal = lab.linear_multiply_adds(n, m, M, causal=True)
        assert causal == lab.linear_multiply_adds(n, m, M) == n * (2 * m * M + 2 * m)

    def test_ratio_to_softmax_with_the_normaliser(self):
        ratio = lab.softmax_multiply_adds(4096, 64, 64) / lab.linear_multiply_adds(4096, 64, 64)
        assert ratio == pytest.approx(4096 / 65)


class TestWeightsBytes:
    def test_by_hand(self):
        assert lab.weights_bytes(3) == 9 * 4

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_is_the_size_of_the_array(self, dtype):
        assert lab.weights_bytes(50, dtype=dtype) == np.zeros((50, 50), dtype).nbytes

    def test_every_head_has_its_own(self):
        assert lab.weights_bytes(50, heads=12) == np.zeros((12, 50, 50), np.float32).nbytes

    def test_67_megabytes_for_4096_tokens(self):
        assert lab.weights_bytes(4096) == 67_108_864


class TestStateBytes:
    def test_by_hand(self):
        # U is 3×5, Z has 3 entries
        assert lab.state_bytes(3, 5) == (15 + 3) * 4

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_is_the_size_of_the_arrays(self, dtype):
        arrays = np.zeros((20, 7), dtype), np.zeros(20, dtype)
        assert lab.state_bytes(20, 7, dtype=dtype) == sum(x.nbytes for x in arrays)

    def test_every_head_has_its_own(self):
        assert lab.state_bytes(20, 7, heads=8) == 8 * (20 * 7 + 20) * 4

    def test_m_and_the_value_width_are_told_apart(self):
        assert lab.state_bytes(7, 20) != lab.state_bytes(20, 7)


class TestCrossover:
    def test_tie_at_65_is_not_cheaper_yet(self):
        assert 65**2 * 128 == 2 * 65 * 64 * 65
        assert lab.crossover_length(64, 64, 64) == 66

    def test_quadratic_features(self):
        # 2·561·81 = 90,882 for each token, 112 for each pair: 811.4 keys
        assert lab.crossover_length(32, 561, 80) == 812

    @pytest.mark.parametrize(("D", "m", "M"), [(1, 1, 1), (8, 8, 8), (3, 10, 5), (16, 4, 2)])
    def test_is_the_first_length_that_is_cheaper(self, D, m, M):
        cheaper = [n for n in range(1, 200) if 2 * n * m * (M + 1) < n * n * (D + M)]
        assert lab.crossover_length(D, m, M) == cheaper[0]

    @pytest.mark.parametrize(("D", "m", "M"), [(1, 1, 1), (8, 8, 8), (3, 10, 5), (16, 1, 2)])
    def test_causal(self, D, m, M):
        pairs = {n: n * (n + 1) // 2 for n in range(1, 200)}
        cheaper = [n for n in pairs if 2 * n * m * (M + 1) < pairs[n] * (D + M)]
        assert lab.crossover_length(D, m, M, causal=True) == cheaper[0]

    def test_more_features_pay_later(self):
        lengths = [lab.crossover_length(64, m, 64) for m in (64, 256, 2145)]
        assert lengths == sorted(set(lengths))

    def test_is_never_below_one(self):
        assert lab.crossover_length(500, 1, 1) == 1


class TestGrowthExponent:
    @pytest.mark.parametrize("power", [0.5, 1, 2, 3])
    def test_of_a_power_of_n(self, power):
        lengths = [64, 128, 256, 512]
        found = lab.growth_exponent(lengths, [7 * n**power for n in lengths])
        assert found == pytest.approx(power)

    def test_the_unit_of_the_costs_does_not_matter(self):
        lengths, costs = [10, 30, 50, 90], [3.0, 8.0, 31.0, 85.0]
        seconds = lab.growth_exponent(lengths, costs)
        assert seconds == pytest.approx(lab.growth_exponent(lengths, [1000 * c for c in costs]))

    def test_two_lengths(self):
        # Twice the length, eight times the cost
        assert lab.growth_exponent([100, 200], [5, 40]) == pytest.approx(3)

    def test_points_off_the_line(self):
        # In powers of two: (0, 0), (1, 3), (2, 0), (3, 3) have the slope 0.6
        assert lab.growth_exponent([1, 2, 4, 8], [1, 8, 1, 8]) == pytest.approx(0.6)

    def test_of_the_exact_counts(self):
        lengths, costs = lab.doubling(lambda n: n * n * 128, 256, 5)
        assert lab.growth_exponent(lengths, costs) == pytest.approx(2)
        lengths, costs = lab.doubling(lambda n: 2 * n * 64 * 65, 256, 5)
        assert lab.growth_exponent(lengths, costs) == pytest.approx(1)

    def test_causal_counts_grow_a_little_slower_than_n_squared(self):
        lengths = [4, 8, 16, 32]
        found = lab.growth_exponent(lengths, [n * (n + 1) / 2 for n in lengths])
        assert 1.8 < found < 2


class TestLongestContext:
    def test_a_budget_that_is_filled_exactly(self):
        assert lab.longest_context(3 * 3 * 4) == 3

    def test_one_byte_less(self):
        assert lab.longest_context(3 * 3 * 4 - 1) == 2

    @pytest.mark.parametrize("budget", [4, 5, 15, 16, 10_000, 123_456])
    @pytest.mark.parametrize(("heads", "dtype"), [(1, "float32"), (3, "float16"), (2, "float64")])
    def test_fits_and_is_the_largest_that_does(self, budget, heads, dtype):
        size = heads * np.dtype(dtype).itemsize
        n = lab.longest_context(budget, heads, dtype)
        assert n * n * size <= budget < (n + 1) ** 2 * size

    def test_four_times_the_memory_is_twice_the_length(self):
        assert lab.longest_context(4 * 2**30) == 2 * lab.longest_context(2**30) == 2 * 16_384
