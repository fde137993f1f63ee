"""Lab 08. Any correct solution passes: loops, einsum or @, in float32 or float64."""

import tracemalloc

import delta_rule as lab
import numpy as np
import pytest


def data(n, d, width, seed=0):
    """Q, K, V, beta and decay; the keys are not of length 1."""
    rng = np.random.default_rng([88, seed])
    Q, K = rng.standard_normal((2, n, d))
    K /= np.linalg.norm(K, axis=1, keepdims=True) * rng.uniform(0.8, 1.4, (n, 1))
    V = rng.standard_normal((n, width))
    return Q, K, V, rng.uniform(0.2, 1.8, n), rng.uniform(0.5, 0.95, n)


def assert_near(found, expected):
    """Equal up to float32 arithmetic: to 1e-4 of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.max(np.abs(expected)))


def slow(Q, K, V, beta, decay, state=None, correct=True):
    """The recurrences, entry by entry."""
    d, width = K.shape[1], V.shape[1]
    S = [[0.0 if state is None else state[i][j] for j in range(width)] for i in range(d)]
    outputs = []
    for q, k, v, b, a in zip(Q, K, V, beta, decay, strict=True):
        S = [[a * S[i][j] for j in range(width)] for i in range(d)]
        given = [sum(k[i] * S[i][j] for i in range(d)) for j in range(width)]
        new = [b * (v[j] - given[j]) if correct else v[j] for j in range(width)]
        S = [[S[i][j] + k[i] * new[j] for j in range(width)] for i in range(d)]
        outputs.append([sum(q[i] * S[i][j] for i in range(d)) for j in range(width)])
    return outputs, S


def assert_same(found, expected):
    output, S = found
    assert_near(output, expected[0])
    assert_near(S, expected[1])


class TestRecurrentAttention:
    def test_by_hand(self):
        K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
        assert_same(lab.recurrent_attention(K, K, V), ([[1], [6]], [[6], [0]]))

    @pytest.mark.parametrize(("n", "d", "width"), [(1, 2, 3), (7, 4, 4), (9, 3, 5)])
    def test_against_the_sums(self, n, d, width):
        Q, K, V, _, _ = data(n, d, width)
        expected = slow(Q, K, V, np.ones(n), np.ones(n), correct=False)
        assert_same(lab.recurrent_attention(Q, K, V), expected)


class TestDecayedAttention:
    def test_by_hand(self):
        K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
        found = lab.decayed_attention(K, K, V, np.array([0.5, 0.25]))
        assert_same(found, ([[1], [5.25]], [[5.25], [0]]))

    @pytest.mark.parametrize(("n", "d", "width"), [(7, 4, 4), (9, 3, 5)])
    def test_against_the_sums(self, n, d, width):
        Q, K, V, _, decay = data(n, d, width)
        expected = slow(Q, K, V, np.ones(n), decay, correct=False)
        assert_same(lab.decayed_attention(Q, K, V, decay), expected)


class TestDeltaRule:
    def test_a_key_that_comes_again_is_corrected(self):
        K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
        assert_same(lab.delta_rule(K, K, V, np.ones(2)), ([[1], [5]], [[5], [0]]))

    @pytest.mark.parametrize(("n", "d", "width"), [(1, 2, 3), (8, 4, 4), (9, 3, 5)])
    def test_against_the_definition(self, n, d, width):
        Q, K, V, beta, _ = data(n, d, width)
        assert_same(lab.delta_rule(Q, K, V, beta), slow(Q, K, V, beta, np.ones(n)))

    def test_goes_on_from_a_state_and_leaves_it_alone(self):
        Q, K, V, beta, _ = data(8, 3, 4)
        _, state = lab.delta_rule(Q[:5], K[:5], V[:5], beta[:5])
        before = np.array(state)
        output, S = lab.delta_rule(Q[5:], K[5:], V[5:], beta[5:], state)
        assert_near(state, before)
        whole, last = slow(Q, K, V, beta, np.ones(8))
        assert_same((output, S), (whole[5:], last))


class TestGatedDeltaRule:
    def test_by_hand(self):
        K, V, half = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]]), np.full(2, 0.5)
        assert_near(lab.gated_delta_rule(K, K, V, half, half)[0], [[0.5], [2.625]])

    @pytest.mark.parametrize(("n", "d", "width"), [(8, 4, 4), (9, 3, 5)])
    def test_against_the_definition(self, n, d, width):
        Q, K, V, beta, decay = data(n, d, width)
        assert_same(lab.gated_delta_rule(Q, K, V, beta, decay), slow(Q, K, V, beta, decay))


class TestWrittenValues:
    def test_by_hand(self):
        K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
        assert_near(lab.written_values(K, V, np.ones(2)), [[1], [4]])

    @pytest.mark.parametrize(("n", "d", "width"), [(1, 2, 3), (8, 4, 4), (20, 3, 5)])
    def test_makes_the_state(self, n, d, width):
        Q, K, V, beta, _ = data(n, d, width)
        W = np.asarray(lab.written_values(K, V, beta))
        assert W.shape == (n, width)
        for t in range(1, n + 1):
            assert_near(K[:t].T @ W[:t], slow(Q[:t], K[:t], V[:t], beta[:t], np.ones(t))[1])


class TestChunkedDeltaRule:
    @pytest.mark.parametrize("chunk", [1, 3, 4, 12, 50])
    def test_agrees_with_the_definition(self, chunk):
        Q, K, V, beta, _ = data(12, 3, 5)
        found = lab.chunked_delta_rule(Q, K, V, beta, chunk)
        assert_same(found, slow(Q, K, V, beta, np.ones(12)))

    def test_a_last_chunk_that_is_shorter(self):
        Q, K, V, beta, _ = data(11, 4, 2)
        found = lab.chunked_delta_rule(Q, K, V, beta, chunk=4)
        assert_same(found, slow(Q, K, V, beta, np.ones(11)))

    def test_forms_no_n_by_n_array(self):
        n = 3000
        Q, K, V, beta, _ = data(n, 4, 3)
        lab.chunked_delta_rule(Q[:10], K[:10], V[:10], beta[:10], chunk=5)
        tracemalloc.start()
        try:
            lab.chunked_delta_rule(Q, K, V, beta, chunk=50)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < n * n, f"{peak / 1e6:.0f} MB were used; (n, n) takes {8 * n * n / 1e6:.0f}"


class TestDeltaAttention:
    @pytest.mark.parametrize(("n", "d"), [(1, 2), (8, 3), (6, 5)])
    def test_its_product_with_the_values_is_the_delta_rule(self, n, d):
        Q, K, V, beta, _ = data(n, d, n)
        A = np.asarray(lab.delta_attention(Q, K, beta))
        assert A.shape == (n, n)
        assert_near(A @ V, slow(Q, K, V, beta, np.ones(n))[0])

    def test_is_causal(self):
        Q, K, _, beta, _ = data(7, 3, 1)
        A = np.asarray(lab.delta_attention(Q, K, beta))
        assert np.max(np.abs(np.triu(A, 1))) < 1e-9


class TestParity:
    def test_by_hand(self):
        assert_near(lab.parity(np.array([1, 0, 1, 1])), [1, 1, 0, 1])

    def test_of_many_bits(self):
        bits = np.random.default_rng(8).integers(0, 2, 101)
        assert_near(lab.parity(bits), np.cumsum(bits) % 2)
