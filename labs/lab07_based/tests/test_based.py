"""Lab 07. Any correct solution passes: loops, einsum or @, in float32 or float64."""

import math
import tracemalloc

import based as lab
import numpy as np
import pytest


def data(n, d, width, seed=0, dtype=np.float64):
    rng = np.random.default_rng([7, seed])
    Q, K = rng.standard_normal((2, n, d)).astype(dtype)
    return Q, K, rng.standard_normal((n, width)).astype(dtype)


def features(n, m, width, seed=0):
    """Positive features of queries and keys, and values."""
    phi_q, phi_k, V = data(n, m, width, seed)
    return np.abs(phi_q) + 0.1, np.abs(phi_k) + 0.1, V


def assert_near(found, expected):
    """Equal up to float32 arithmetic: to 1e-4 of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.max(np.abs(expected)))


def taylor(t):
    return 1 + t + t**2 / 2


def products(phi, x):
    """All inner products φ(xᵢ)·φ(xⱼ)."""
    rows = np.asarray(phi(x), dtype=np.float64)
    return np.array([[np.dot(a, b) for b in rows] for a in rows])


def scores(q, K):
    return np.array([math.fsum(q * k) / math.sqrt(len(q)) for k in K])


def weighted(weights, V):
    return sum(w * v for w, v in zip(weights, V, strict=True)) / math.fsum(weights)


class TestTaylorFeatureMap:
    def test_by_hand(self):
        x = np.array([[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])  # √d = 2
        found = products(lab.taylor_feature_map, x)
        assert_near(found, [[taylor(2), taylor(1)], [taylor(1), taylor(2)]])

    def test_of_orthogonal_vectors_is_the_constant_1(self):
        found = products(lab.taylor_feature_map, np.array([[3.0, 0.0], [0.0, 5.0]]))
        assert found[0, 1] == pytest.approx(1, rel=1e-5)

    @pytest.mark.parametrize("d", [1, 2, 3, 7, 16])
    def test_inner_products_are_the_taylor_polynomial(self, d):
        x = data(8, d, 1)[0]
        expected = [[taylor(np.dot(a, b) / math.sqrt(d)) for b in x] for a in x]
        assert_near(products(lab.taylor_feature_map, x), expected)

    def test_cross_terms_count_twice(self):
        q, k = np.array([[1.0, 1.0]]), np.array([[1.0, -1.0]])  # q·k = 0, Σq²k² = 2
        found = np.asarray(lab.taylor_feature_map(q)) @ np.asarray(lab.taylor_feature_map(k)).T
        assert_near(found, [[1.0]])

    def test_is_never_below_a_half(self):
        assert np.min(products(lab.taylor_feature_map, 3 * data(40, 3, 1)[0])) > 0.499

    @pytest.mark.parametrize("d", [2, 5])
    def test_number_of_features(self, d):
        m = np.shape(lab.taylor_feature_map(data(4, d, 1)[0]))[1]
        assert m in ((d + 1) * (d + 2) // 2, 1 + d + d * d)

    def test_batches(self):
        x = data(6, 4, 1)[0].reshape(2, 3, 4)
        whole = np.asarray(lab.taylor_feature_map(x))
        assert whole.shape[:2] == (2, 3)
        assert_near(whole[1], lab.taylor_feature_map(x[1]))

    def test_input_is_left_as_it_was(self):
        x = data(6, 4, 1)[0]
        copy = x.copy()
        lab.taylor_feature_map(x)
        np.testing.assert_array_equal(x, copy)


class TestBasedWeights:
    def test_by_hand(self):
        x, W = np.array([[1.0, 5.0], [2.0, 6.0]]), np.array([[1.0], [0.0]])
        found = lab.based_weights(x, W, -W)  # second row: t = −2 and t = −4, so 1 and 5
        assert_near(found, [[1, 0], [1 / 6, 5 / 6]])

    def test_against_the_definition(self):
        x, rng = data(7, 9, 1)[0], np.random.default_rng(1)
        W_q, W_k = rng.standard_normal((2, 9, 4)) / 3
        found = np.asarray(lab.based_weights(x, W_q, W_k))
        for i in range(7):
            row = taylor(scores(x[i] @ W_q, x[: i + 1] @ W_k))
            assert_near(found[i, : i + 1], row / np.sum(row))

    def test_rows_add_up_to_one(self):
        x, W_q, W_k = data(12, 12, 3)[0], *data(12, 5, 1)[:2]
        assert_near(np.sum(lab.based_weights(x, W_q, W_k), axis=1), np.ones(12))

    def test_the_future_has_no_weight(self):
        x, W_q, W_k = data(12, 12, 3)[0], *data(12, 5, 1)[:2]
        found = np.asarray(lab.based_weights(x, W_q, W_k))
        assert np.all(found[np.triu_indices(12, 1)] == 0)

    def test_the_past_does_not_know_the_future(self):
        x, W_q, W_k = data(12, 12, 3)[0], *data(12, 5, 1)[:2]
        short = lab.based_weights(x[:8], W_q, W_k)
        assert_near(np.asarray(lab.based_weights(x, W_q, W_k))[:8, :8], short)

    def test_a_rotation_of_queries_and_keys_changes_nothing(self):
        x, W_q, W_k = data(9, 6, 3)[0], *data(6, 4, 1)[:2]
        rotation = np.linalg.qr(data(4, 4, 1)[0])[0]
        turned = lab.based_weights(x, W_q @ rotation, W_k @ rotation)
        assert_near(turned, lab.based_weights(x, W_q, W_k))


class TestStateSize:
    def test_of_the_paper(self):
        assert lab.state_size(16, 64) == 153 * 64 + 153

    def test_of_the_full_map(self):
        assert lab.state_size(16, 64, compact=False) == 273 * 64 + 273

    @pytest.mark.parametrize(("d", "m"), [(1, 3), (2, 6), (3, 10), (64, 2145)])
    def test_counts_each_product_once(self, d, m):
        assert lab.state_size(d, 1) == 2 * m

    def test_fits_the_feature_map(self):
        m = np.shape(lab.taylor_feature_map(np.ones((1, 6))))[1]
        assert m * 11 in (lab.state_size(6, 10), lab.state_size(6, 10, compact=False))


class TestRecurrentAttention:
    def test_by_hand(self):
        phi_q, phi_k = np.array([[1.0, 1.0], [2.0, 0.0]]), np.array([[1.0, 3.0], [1.0, 0.0]])
        output, (U, Z) = lab.recurrent_attention(phi_q, phi_k, np.array([[10.0], [20.0]]))
        assert_near(output, [[10], [15]])  # second: (2·10 + 2·20)/(2 + 2)
        assert_near(U, [[30], [30]])
        assert_near(Z, [2, 3])

    def test_against_the_definition(self):
        phi_q, phi_k, V = features(15, 5, 3)
        output, _ = lab.recurrent_attention(phi_q, phi_k, V)
        for i in range(15):
            weights = [np.dot(phi_q[i], phi_k[j]) for j in range(i + 1)]
            assert_near(output[i], weighted(weights, V[: i + 1]))

    @pytest.mark.parametrize("factor", [-1.0, 1e-8])
    def test_a_factor_of_the_query_cancels_whatever_its_sign_and_size(self, factor):
        phi_q, phi_k, V = features(6, 5, 3)
        output, _ = lab.recurrent_attention(phi_q, phi_k, V)
        assert_near(lab.recurrent_attention(factor * phi_q, phi_k, V)[0], output)

    def test_first_output_is_the_first_value(self):
        phi_q, phi_k, V = features(4, 5, 3)
        assert_near(lab.recurrent_attention(phi_q, phi_k, V)[0][0], V[0])

    def test_state_is_the_sum_over_all_tokens(self):
        phi_q, phi_k, V = features(15, 5, 3)
        _, (U, Z) = lab.recurrent_attention(phi_q, phi_k, V)
        assert_near(U, sum(np.outer(k, v) for k, v in zip(phi_k, V, strict=True)))
        assert_near(Z, np.sum(phi_k, axis=0))

    @pytest.mark.parametrize("cut", [1, 7, 14])
    def test_two_halves_are_the_whole(self, cut):
        phi_q, phi_k, V = features(15, 5, 3)
        whole, (U, Z) = lab.recurrent_attention(phi_q, phi_k, V)
        left, state = lab.recurrent_attention(phi_q[:cut], phi_k[:cut], V[:cut])
        right, last = lab.recurrent_attention(phi_q[cut:], phi_k[cut:], V[cut:], state)
        assert_near(np.concatenate([left, right]), whole)
        assert_near(last[0], U)
        assert_near(last[1], Z)

    def test_given_state_is_left_as_it_was(self):
        phi_q, phi_k, V = features(6, 4, 2)
        state = np.ones((4, 2)), np.ones(4)
        lab.recurrent_attention(phi_q, phi_k, V, state)
        assert np.all(state[0] == 1)
        assert np.all(state[1] == 1)

    def test_memory_does_not_grow_as_the_square(self):
        n = 3000
        phi_q, phi_k, V = features(n, 3, 2)
        lab.recurrent_attention(phi_q[:10], phi_k[:10], V[:10])
        tracemalloc.start()
        try:
            lab.recurrent_attention(phi_q, phi_k, V)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < n * n, f"{peak / 1e6:.0f} MB were used; (n, n) takes {8 * n * n / 1e6:.0f}"

    def test_taylor_features_give_the_weights_of_the_layer(self):
        x, W_q, W_k = data(10, 6, 3)[0], *data(6, 4, 1)[:2]
        V = data(10, 4, 3, seed=1)[2]
        phi_q, phi_k = lab.taylor_feature_map(x @ W_q), lab.taylor_feature_map(x @ W_k)
        output, _ = lab.recurrent_attention(np.asarray(phi_q), np.asarray(phi_k), V)
        assert_near(output, np.asarray(lab.based_weights(x, W_q, W_k)) @ V)


class TestSlidingWindow:
    @pytest.mark.parametrize("window", [1, 2, 5, 12, 50])
    def test_against_the_definition(self, window):
        Q, K, V = data(12, 4, 3)
        found = lab.sliding_window_attention(Q, K, V, window)
        for i in range(12):
            first = max(0, i - window + 1)
            weights = [math.exp(t) for t in scores(Q[i], K[first : i + 1])]
            assert_near(found[i], weighted(weights, V[first : i + 1]))

    def test_window_of_one_returns_the_values(self):
        Q, K, V = data(9, 4, 3)
        assert_near(lab.sliding_window_attention(Q, K, V, 1), V)

    def test_equal_scores_give_averages(self):
        Q, V = np.zeros((6, 2)), np.arange(6.0)[:, None]
        found = lab.sliding_window_attention(Q, data(6, 2, 1)[1], V, window=3)
        assert_near(np.ravel(found), [0, 0.5, 1, 2, 3, 4])

    def test_what_left_the_window_makes_no_difference(self):
        Q, K, V = data(10, 4, 3)
        moved, other = K.copy(), V.copy()
        moved[:4] += 5
        other[:4] -= 5
        found = lab.sliding_window_attention(Q, moved, other, window=3)
        assert_near(found[6:], lab.sliding_window_attention(Q, K, V, window=3)[6:])

    def test_the_future_makes_no_difference(self):
        Q, K, V = data(10, 4, 3)
        short = lab.sliding_window_attention(Q[:6], K[:6], V[:6], window=3)
        assert_near(lab.sliding_window_attention(Q, K, V, window=3)[:6], short)

    @pytest.mark.filterwarnings("ignore")
    def test_large_scores(self):
        Q, K, V = data(10, 4, 3)
        found = lab.sliding_window_attention(1e4 * Q, K, V, window=4)
        for i in range(10):
            first = max(0, i - 3)
            best = first + int(np.argmax(scores(Q[i], K[first : i + 1])))
            assert_near(found[i], V[best])

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("hidden", [[2000, 0, 1, 0, 2000], [-2000, -1999, -2001, -2000, -1999]])
    def test_scores_outside_the_window_make_no_difference_however_large(self, hidden):
        Q, K, (_, _, V) = np.zeros((5, 4)), np.zeros((5, 4)), data(5, 4, 3)
        Q[:, 0], K[:, 0] = 2, hidden
        found = lab.sliding_window_attention(Q, K, V, window=2)
        for i in range(5):
            t = np.array(hidden[max(0, i - 1) : i + 1])
            assert_near(found[i], weighted(np.exp(t - max(t)), V[max(0, i - 1) : i + 1]))


class TestWindowedTaylor:
    @pytest.mark.parametrize("window", [1, 3, 7])
    def test_against_the_definition(self, window):
        Q, K, V = data(12, 4, 3)
        found = lab.windowed_taylor_attention(Q, K, V, window)
        for i in range(12):
            t = scores(Q[i], K[: i + 1])
            weights = [
                math.exp(s) if j > i - window else taylor(s) for j, s in enumerate(t.tolist())
            ]
            assert_near(found[i], weighted(weights, V[: i + 1]))

    def test_long_window_is_softmax(self):
        Q, K, V = data(9, 4, 3)
        found = lab.windowed_taylor_attention(Q, K, V, 9)
        assert_near(found, lab.sliding_window_attention(Q, K, V, 9))

    def test_constant_values_stay_constant(self):
        Q, K, _ = data(9, 4, 3)
        assert_near(lab.windowed_taylor_attention(Q, K, np.ones((9, 2)), 3), np.ones((9, 2)))

    @pytest.mark.filterwarnings("ignore")
    def test_large_scores_do_not_overflow(self):
        Q, K, (_, _, V) = np.zeros((6, 4)), np.zeros((6, 4)), data(6, 4, 3)
        Q[:, 0], K[:, 0] = 2, [1000, 1001, 999, 1002, 1000, 1001]
        found = lab.windowed_taylor_attention(Q, K, V, 3)  # beside e^1000, what is before is 0
        assert_near(found, lab.sliding_window_attention(Q, K, V, 3))

    def test_is_what_a_window_and_a_state_give(self):
        Q, K, V = data(9, 4, 3)
        i, window = 8, 3
        phi_q, phi_k = (np.asarray(lab.taylor_feature_map(x)) for x in (Q, K))
        _, (U, Z) = lab.recurrent_attention(phi_q[:6], phi_k[:6], V[:6])
        near = np.exp(scores(Q[i], K[6:]))
        expected = (near @ V[6:] + phi_q[i] @ U) / (np.sum(near) + phi_q[i] @ Z)
        assert_near(lab.windowed_taylor_attention(Q, K, V, window)[i], expected)


class TestRecallAccuracy:
    def test_is_a_share(self):
        found = lab.recall_accuracy(np.exp, 4, pairs=10, seeds=2)
        assert 0 <= float(found) <= 1

    def test_one_pair_is_always_recalled(self):
        assert lab.recall_accuracy(np.exp, 3, pairs=1, seeds=3) == pytest.approx(1)

    def test_softmax_recalls_all_from_few_coordinates(self):
        assert lab.recall_accuracy(None, 16, seeds=3) == pytest.approx(1)

    def test_a_map_that_looks_at_nothing_recalls_one_pair(self):
        def blind(x):
            return np.ones((*x.shape[:-1], 1))

        assert lab.recall_accuracy(blind, 4, pairs=16, seeds=4) == pytest.approx(1 / 16)

    def test_wide_values_do_not_interfere(self):
        found = lab.recall_accuracy(lab.identity, 16, pairs=16, value_width=2000, seeds=2)
        assert found == pytest.approx(1)

    def test_the_memory_is_read_not_the_keys(self):
        found = lab.recall_accuracy(lab.identity, 4, pairs=64, value_width=8, seeds=4)
        assert float(found) < 0.5, "nearest keys are always found; the values must be read from U"

    @pytest.mark.parametrize("width", [4, 16])
    def test_against_the_definition(self, width):
        right = 0
        for seed in range(3):
            keys, values, order = lab.recall_task(20, 6, width, 8.0, seed)
            memory = sum(np.outer(np.exp(k), v) for k, v in zip(keys, values, strict=True))
            for number in order:
                read = np.exp(keys[number]) @ memory
                right += int(np.argmax([np.dot(read, v) for v in values])) == number
        found = lab.recall_accuracy(np.exp, 6, pairs=20, value_width=width, seeds=3)
        assert float(found) == pytest.approx(right / 60)

    def test_softmax_against_the_definition(self):
        right = 0
        for seed in range(4):
            keys, values, order = lab.recall_task(40, 3, 6, 5.0, seed)
            for number in order:
                weights = np.exp(scores(keys[number], keys))
                read = weights @ values / np.sum(weights)
                right += int(np.argmax(values @ read)) == number
        found = lab.recall_accuracy(None, 3, pairs=40, value_width=6, sharpness=5.0, seeds=4)
        assert float(found) == pytest.approx(right / 160)

    def test_wider_keys_recall_more(self):
        found = [lab.recall_accuracy(lab.taylor_feature_map, d, seeds=4) for d in (4, 8, 16)]
        assert found[0] < found[1] < found[2]

    def test_sharpness_matters_to_softmax(self):
        assert lab.recall_accuracy(None, 8, sharpness=1.0, seeds=4) < 0.2
        assert lab.recall_accuracy(None, 8, sharpness=16.0, seeds=4) == pytest.approx(1)

    def test_curves_of_every_map(self):
        curves = lab.recall_curves(widths=(4, 8), pairs=16, value_width=4, seeds=2)
        assert [held for _, held, _ in curves["identity"]] == [4 * 5, 8 * 5]
        assert [held for _, held, _ in curves["softmax"]] == [16 * 8, 16 * 12]
        assert len(curves) == 6
