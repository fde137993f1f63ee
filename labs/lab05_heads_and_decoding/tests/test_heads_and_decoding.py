"""Lab 05. Any correct solution passes: loops, einsum or @, in float32 or float64."""

import math

import heads_and_decoding as lab
import numpy as np
import pytest


def normal(*shape, seed=0):
    return np.random.default_rng([5, seed, *shape]).standard_normal(shape)


def assert_near(found, expected):
    """Equal up to float32 arithmetic: to 1e-4 of the largest entry."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    largest = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * largest)


def one_query(q, keys, values):
    """The definition, for a single query."""
    scores = [np.dot(q, k) / math.sqrt(len(q)) for k in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def attention(Q, K, V, causal=False):
    seen = [i + 1 if causal else len(K) for i in range(len(Q))]
    return np.array([one_query(q, K[:s], V[:s]) for q, s in zip(Q, seen, strict=True)])


class TestDotProductMoments:
    def test_unit_variance_coordinates(self):
        found = lab.dot_product_moments(64, 0.0, 1.0, 0.0, 1.0)
        assert tuple(map(float, found)) == pytest.approx((0, 64, 1 / 8))

    def test_a_mean_that_is_not_zero(self):
        # d(σ⁴ + 2μ²σ²) = 16·(16 + 2·0.25·4)
        mean, variance, _ = lab.dot_product_moments(16, 0.5, 2.0, 0.5, 2.0)
        assert (mean, variance) == pytest.approx((4, 288))

    def test_different_laws(self):
        # 10·(0.5²·3² + 1²·3² + 2²·0.5²)
        mean, variance, _ = lab.dot_product_moments(10, 1.0, 0.5, -2.0, 3.0)
        assert (mean, variance) == pytest.approx((-20, 122.5))

    def test_the_scale_gives_variance_one(self):
        _, variance, scale = lab.dot_product_moments(7, 0.3, 1.5, -0.4, 0.8)
        assert scale > 0
        assert scale**2 * variance == pytest.approx(1)

    def test_a_constant_query_leaves_the_variance_of_the_keys(self):
        _, variance, _ = lab.dot_product_moments(5, 3.0, 0.0, 7.0, 2.0)
        assert variance == pytest.approx(5 * 9 * 4)

    def test_simulation(self):
        law = (0.5, 1.0, -1.0, 2.0)
        mean, variance, scale = lab.dot_product_moments(20, *law)
        q, k = normal(2, 100_000, 20) * [[[law[1]]], [[law[3]]]] + [[[law[0]]], [[law[2]]]]
        products = np.sum(q * k, axis=1)
        assert np.mean(products) == pytest.approx(mean, rel=0.02)
        assert np.var(products) == pytest.approx(variance, rel=0.03)
        assert np.var(scale * products) == pytest.approx(1, rel=0.03)


class TestSoftmaxAttention:
    def test_by_hand(self):
        # d = 4, so the scores 0 and 2·log 3 become 0 and log 3: weights 1/4 and 3/4
        Q, K = np.array([[1.0, 0, 0, 0]]), np.array([[0.0, 1, 0, 0], [2 * math.log(3), 0, 0, 0]])
        assert_near(lab.softmax_attention(Q, K, np.array([[0.0], [8.0]])), [[6.0]])

    @pytest.mark.parametrize("causal", [False, True])
    def test_definition(self, causal):
        Q, K, V = normal(9, 5), normal(9, 5, seed=1), normal(9, 3)
        assert_near(lab.softmax_attention(Q, K, V, causal), attention(Q, K, V, causal))

    @pytest.mark.parametrize("causal", [False, True])
    def test_rows_are_averages(self, causal):
        found = lab.softmax_attention(normal(6, 4), normal(6, 4, seed=1), np.ones((6, 2)), causal)
        assert_near(found, np.ones((6, 2)))

    def test_batches_and_heads(self):
        Q, K, V = normal(2, 3, 6, 4), normal(2, 3, 6, 4, seed=1), normal(2, 3, 6, 5)
        found = lab.softmax_attention(Q, K, V, causal=True)
        assert np.shape(found) == (2, 3, 6, 5)
        assert_near(found[1, 2], attention(Q[1, 2], K[1, 2], V[1, 2], causal=True))

    @pytest.mark.parametrize("size", [30, 1000])
    def test_large_scores_do_not_overflow(self, size):
        Q, K, V = size * normal(6, 4), normal(6, 4, seed=1), normal(6, 2)
        assert_near(lab.softmax_attention(Q, K, V), attention(Q, K, V))

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("scores", [[0, 1, 2000, 1], [-2000, -1999, -2001, -2000]])
    def test_a_score_of_the_future_makes_no_difference_however_large(self, scores):
        Q, K, V = np.zeros((4, 4)), np.zeros((4, 4)), normal(4, 2)
        Q[:, 0], K[:, 0] = 2, scores
        found = lab.softmax_attention(Q, K, V, causal=True)
        assert_near(found, attention(Q, K, V, causal=True))

    def test_the_first_token_sees_itself_only(self):
        Q, K, V = normal(6, 4), normal(6, 4, seed=1), normal(6, 2)
        assert_near(lab.softmax_attention(Q, K, V, causal=True)[0], V[0])

    def test_the_past_does_not_depend_on_the_future(self):
        Q, K, V = normal(6, 4), normal(6, 4, seed=1), normal(6, 2)
        before = np.array(lab.softmax_attention(Q, K, V, causal=True))
        K[4:], V[4:] = 9, -9
        after = lab.softmax_attention(Q, K, V, causal=True)
        assert_near(after[:4], before[:4])

    def test_inputs_are_left_as_they_were(self):
        Q, K, V = normal(6, 4), normal(6, 4, seed=1), normal(6, 2)
        copies = Q.copy(), K.copy(), V.copy()
        lab.softmax_attention(Q, K, V, causal=True)
        assert all(np.array_equal(a, b) for a, b in zip((Q, K, V), copies, strict=True))


class TestHardAttention:
    def test_worked_example(self):
        K = np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]])  # scores 3, 11, 5, 2
        V = np.array([[7.0, 0, 0], [1, 4, 3], [0, 7, 0], [0, 0, 7]])
        assert_near(lab.hard_attention(np.array([[1.0, 1, 2]]), K, V), [[1, 4, 3]])

    def test_definition(self):
        Q, K, V = normal(8, 4), normal(11, 4), normal(11, 3)
        expected = [V[max(range(11), key=lambda j, q=q: np.dot(q, K[j]))] for q in Q]
        assert_near(lab.hard_attention(Q, K, V), expected)

    def test_a_long_key_wins_over_a_near_one(self):
        Q, K = np.array([[1.0, 0]]), np.array([[1.0, 0], [2.0, 5.0]])
        assert_near(lab.hard_attention(Q, K, np.array([[1.0], [2.0]])), [[2]])

    def test_ties_go_to_the_first(self):
        Q, K = np.array([[1.0, 0]]), np.array([[0.0, 1], [3, 2], [3, 0]])
        assert_near(lab.hard_attention(Q, K, np.eye(3)), [[0, 1, 0]])

    def test_the_best_score_may_be_negative(self):
        Q, K = np.array([[1.0, 1.0]]), np.array([[-3.0, 0.0], [-1.0, 0.0], [0.0, -2.0]])
        assert_near(lab.hard_attention(Q, K, np.eye(3)), [[0, 1, 0]])

    def test_is_softmax_attention_with_a_large_scale(self):
        Q, K, V = normal(8, 4), normal(8, 4, seed=1), normal(8, 3)
        assert_near(lab.hard_attention(Q, K, V), attention(1e4 * Q, K, V))


class TestHardAttentionGradients:
    def test_by_hand(self):
        K, V = np.array([[1.0, 0], [0, 1]]), np.array([[5.0], [6.0]])
        Q, grad = np.array([[2.0, 1], [3, 0]]), np.array([[1.0], [10.0]])
        dQ, dK, dV = lab.hard_attention_gradients(Q, K, V, grad)
        assert_near(dV, [[11], [0]])
        assert_near(dQ, np.zeros((2, 2)))
        assert_near(dK, np.zeros((2, 2)))

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_finite_differences(self, which):
        arrays = [normal(6, 3), normal(4, 3), normal(4, 2)]
        grad = normal(6, 2)

        def loss(*changed):
            Q, K, V = changed
            return np.sum(grad * V[np.argmax(Q @ K.T, axis=1)])

        found = lab.hard_attention_gradients(*arrays, grad)[which]
        expected = np.zeros_like(arrays[which])
        for at in np.ndindex(expected.shape):
            moved = [x.copy() for x in arrays]
            moved[which][at] += 1e-6
            expected[at] = (loss(*moved) - loss(*arrays)) / 1e-6
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_what_nobody_selects_receives_nothing(self):
        K, V = np.array([[1.0, 0], [0, 1], [0.1, 0.1]]), normal(3, 2)
        *_, dV = lab.hard_attention_gradients(np.array([[1.0, 2]]), K, V, np.ones((1, 2)))
        assert_near(dV, [[0, 0], [1, 1], [0, 0]])

    def test_all_gradients_of_values_add_up_to_that_of_the_output(self):
        grad = normal(9, 2)
        *_, dV = lab.hard_attention_gradients(normal(9, 3), normal(2, 3), normal(2, 2), grad)
        assert_near(np.sum(dV, axis=0), grad.sum(axis=0))


class TestHeads:
    def test_split_by_hand(self):
        found = lab.split_heads(np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), 2)
        assert_near(found, [[[1, 2], [5, 6]], [[3, 4], [7, 8]]])

    @pytest.mark.parametrize("heads", [1, 2, 3, 4, 12])
    def test_a_head_is_a_block_of_columns(self, heads):
        X, width = normal(5, 12), 12 // heads
        found = lab.split_heads(X, heads)
        for head in range(heads):
            assert_near(found[head], X[:, head * width : (head + 1) * width])

    def test_split_a_batch(self):
        X = normal(2, 5, 12)
        found = lab.split_heads(X, 3)
        assert np.shape(found) == (2, 3, 5, 4)
        assert_near(found[1, 2], X[1, :, 8:])

    def test_combine_by_hand(self):
        found = lab.combine_heads(np.array([[[1.0, 2], [5, 6]], [[3, 4], [7, 8]]]))
        assert_near(found, [[1, 2, 3, 4], [5, 6, 7, 8]])

    @pytest.mark.parametrize("shape", [(3, 5, 4), (1, 5, 4), (2, 3, 5, 4)])
    def test_heads_stand_side_by_side(self, shape):
        X = normal(*shape)
        blocks = [X[..., head, :, :] for head in range(shape[-3])]
        assert_near(lab.combine_heads(X), np.concatenate(blocks, axis=-1))

    @pytest.mark.parametrize("heads", [1, 2, 6])
    def test_combining_undoes_splitting(self, heads):
        X = normal(2, 7, 12)
        assert_near(lab.combine_heads(lab.split_heads(X, heads)), X)


class TestMultiHeadAttention:
    @staticmethod
    def layer(d, heads, k, v):
        shapes = (d, heads * k), (d, heads * k), (d, heads * v), (heads * v, d)
        return [normal(*shape, seed=i) / math.sqrt(d) for i, shape in enumerate(shapes)]

    @pytest.mark.parametrize(("k", "v"), [(4, 4), (4, 7), (4, 1), (3, 5)])
    @pytest.mark.parametrize("causal", [False, True])
    def test_each_head_attends_by_itself(self, k, v, causal):
        X, heads = normal(6, 8), 2
        W_q, W_k, W_v, W_o = self.layer(8, heads, k, v)
        expected = np.zeros((6, 8))
        for i in range(heads):
            keys, values = slice(i * k, (i + 1) * k), slice(i * v, (i + 1) * v)
            head = attention(X @ W_q[:, keys], X @ W_k[:, keys], X @ W_v[:, values], causal)
            expected += head @ W_o[values]
        assert_near(lab.multi_head_attention(X, W_q, W_k, W_v, W_o, heads, causal), expected)

    def test_one_head_is_plain_attention(self):
        X = normal(6, 8)
        W_q, W_k, W_v, W_o = self.layer(8, 1, 5, 6)
        expected = attention(X @ W_q, X @ W_k, X @ W_v) @ W_o
        assert_near(lab.multi_head_attention(X, W_q, W_k, W_v, W_o, 1), expected)

    def test_a_batch_is_a_batch(self):
        X, weights = normal(3, 6, 8), self.layer(8, 4, 2, 3)
        each = [lab.multi_head_attention(x, *weights, 4, causal=True) for x in X]
        assert_near(lab.multi_head_attention(X, *weights, 4, causal=True), each)

    def test_the_past_does_not_depend_on_the_future(self):
        X, weights = normal(6, 8), self.layer(8, 2, 4, 4)
        before = np.array(lab.multi_head_attention(X, *weights, 2, causal=True))
        X[3:] += 1
        assert_near(lab.multi_head_attention(X, *weights, 2, causal=True)[:3], before[:3])


class TestMultiQueryAttention:
    @pytest.mark.parametrize(("h", "k", "v"), [(1, 4, 4), (4, 3, 5), (3, 5, 2)])
    def test_heads_share_keys_and_values(self, h, k, v):
        X, d = normal(2, 6, 8), 8
        W_q, W_k = normal(h, d, k) / 3, normal(d, k) / 3
        W_v, W_o = normal(d, v, seed=1), normal(h, v, d)
        expected = np.zeros((2, 6, 8))
        for i, x in enumerate(X):
            for head in range(h):
                output = attention(x @ W_q[head], x @ W_k, x @ W_v, causal=True)
                expected[i] += output @ W_o[head]
        assert_near(lab.multi_query_attention(X, W_q, W_k, W_v, W_o), expected)

    def test_the_first_token_sees_itself_only(self):
        X, W_q, W_k, W_v = normal(1, 5, 4), normal(2, 4, 3), normal(4, 3), normal(4, 6)
        W_o = normal(2, 6, 4)
        found = lab.multi_query_attention(X, W_q, W_k, W_v, W_o)
        assert_near(found[0, 0], X[0, 0] @ W_v @ (W_o[0] + W_o[1]))

    @pytest.mark.filterwarnings("ignore")
    def test_large_scores_do_not_overflow(self):
        X, one = np.array([[[1.0], [40.0], [-40.0]]]), np.ones((1, 1, 1))
        found = lab.multi_query_attention(X, one, one[0], one[0], one)
        assert_near(found[0], attention(X[0], X[0], X[0], causal=True))


class TestDecodingStep:
    @pytest.mark.parametrize(("h", "g"), [(4, 4), (4, 2), (4, 1), (6, 2), (1, 1)])
    def test_neighbouring_heads_share(self, h, g):
        b, n, d, k, v = 2, 5, 8, 3, 4
        x, (W_q, W_k, W_v, W_o) = normal(b, d), lab.random_layer(d, h, g, k, v)
        keys, values = normal(b, g, n, k), normal(b, g, n, v)
        output, new_keys, new_values = lab.decoding_step(x, W_q, W_k, W_v, W_o, keys, values)
        for i in range(b):
            expected = np.zeros(d)
            for head in range(h):
                j = head // (h // g)
                K = np.concatenate([keys[i, j], [x[i] @ W_k[j]]])
                V = np.concatenate([values[i, j], [x[i] @ W_v[j]]])
                assert_near(new_keys[i][j], K)
                assert_near(new_values[i][j], V)
                expected += one_query(x[i] @ W_q[head], K, V) @ W_o[head]
            assert_near(output[i], expected)

    @pytest.mark.parametrize("g", [4, 2, 1])
    def test_step_by_step_is_causal_attention(self, g):
        X, (W_q, W_k, W_v, W_o) = normal(2, 6, 8), lab.random_layer(8, 4, g, 3, 5)
        keys, values = np.zeros((2, g, 0, 3)), np.zeros((2, g, 0, 5))
        rows = []
        for t in range(6):
            y, keys, values = lab.decoding_step(X[:, t], W_q, W_k, W_v, W_o, keys, values)
            rows.append(y)
        expected = np.zeros((2, 6, 8))
        for i, x in enumerate(X):
            for head in range(4):
                j = head // (4 // g)
                output = attention(x @ W_q[head], x @ W_k[j], x @ W_v[j], causal=True)
                expected[i] += output @ W_o[head]
        assert_near(np.stack(rows, axis=1), expected)

    @pytest.mark.filterwarnings("ignore")
    def test_large_scores_do_not_overflow(self):
        one, keys, values = np.ones((1, 1, 1)), normal(1, 1, 3, 1), normal(1, 1, 3, 1, seed=1)
        x = np.array([[100.0]])
        output, _, _ = lab.decoding_step(x, one, one, one, one, keys, values)
        assert_near(output, x)  # the score of the new token is 10,000

    def test_the_cache_given_is_left_as_it_was(self):
        keys, values = normal(2, 1, 3, 4), normal(2, 1, 3, 4, seed=1)
        copies = keys.copy(), values.copy()
        lab.decoding_step(normal(2, 8), *lab.random_layer(8, 2, 1, 4, 4), keys, values)
        assert np.array_equal(keys, copies[0])
        assert np.array_equal(values, copies[1])


class TestDecodingMultiplyAdds:
    def test_by_hand(self):
        # d = 6, h = 3, k = 2, g = 1: q 36, k 12, v 12, scores 3·10·2, values as many, output 36
        assert lab.decoding_multiply_adds(1, 10, 6, 3, 1) == 36 + 12 + 12 + 60 + 60 + 36

    def test_worked_example(self):
        assert lab.decoding_multiply_adds(b=3, n=4096, d=512, h=8, g=1) == 14_352_384

    def test_sequences_are_independent(self):
        assert lab.decoding_multiply_adds(7, 50, 64, 8, 2) == 7 * lab.decoding_multiply_adds(
            1, 50, 64, 8, 2
        )

    @pytest.mark.parametrize("g", [1, 2, 4, 8])
    def test_another_cached_token_costs_the_same_however_heads_share(self, g):
        more, less = (lab.decoding_multiply_adds(1, n, 64, 8, g) for n in (101, 100))
        assert more - less == 2 * 64

    def test_sharing_saves_projections_only(self):
        all_heads, one = (lab.decoding_multiply_adds(1, 100, 64, 8, g) for g in (8, 1))
        assert all_heads - one == 2 * 64 * 7 * 8


class TestKeptBytes:
    def test_cache_by_hand(self):
        # 2 sequences, 3 tokens, 4 heads, 5 + 6 numbers each
        assert lab.kept_bytes(2, 3, 4, 5, 6) == 2 * 3 * 4 * 11 * 4

    def test_state_by_hand(self):
        # 2 sequences, 4 heads, U 7×6 and Z 7
        assert lab.kept_bytes(2, 3, 4, 5, 6, m=7) == 2 * 4 * (42 + 7) * 4

    @pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float64", 8)])
    def test_dtype(self, dtype, size):
        assert lab.kept_bytes(1, 10, 2, 3, 4, dtype=dtype) == 10 * 2 * 7 * size
        assert lab.kept_bytes(1, 10, 2, 3, 4, m=5, dtype=dtype) == 2 * 25 * size

    def test_multi_query_divides_the_cache_by_the_heads(self):
        multi_head, multi_query = (lab.kept_bytes(1, 4096, g, 64, 64) for g in (8, 1))
        assert multi_head == 8 * multi_query == 16_777_216

    def test_the_state_does_not_grow(self):
        assert lab.kept_bytes(1, 10, 8, 64, 64, m=64) == lab.kept_bytes(1, 10**6, 8, 64, 64, m=64)

    def test_the_cache_passes_the_state_of_64_features_at_33_tokens(self):
        state = lab.kept_bytes(1, 1, 8, 64, 64, m=64)
        assert lab.kept_bytes(1, 32, 8, 64, 64) < state < lab.kept_bytes(1, 33, 8, 64, 64)
