"""Softmax, kernel and hard attention, the weights of linear attention, and multi-head decoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import MAPS, SIGNED_FEATURES, turns

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.attention import combine_heads, split_heads


def inputs(n=20, d=4, width=3, lead=(2,), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*lead, n, w)) for w in (d, d, width)]


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class TestSoftmax:
    def test_formula(self):
        q, k, v = inputs()
        expected = softmax(q @ k.mT / 2)
        out, weights = kt.softmax_attention(q, k, v, return_weights=True)
        np.testing.assert_allclose(weights, expected, rtol=1e-12)
        np.testing.assert_allclose(out, expected @ v, rtol=1e-12)

    def test_causal_mask_scale_and_temperature(self):
        q, k, v = inputs()
        keep = np.random.default_rng(1).random(20) > 0.3
        keep[0] = True
        allowed = np.tril(np.ones((20, 20), bool)) & keep
        expected = softmax(np.where(allowed, q @ k.mT * 0.7 / 3, -np.inf)) @ v
        out = kt.softmax_attention(q, k, v, causal=True, mask=keep, scale=0.7, temperature=3)
        np.testing.assert_allclose(out[:, keep], expected[:, keep], rtol=1e-12)
        assert (out[:, ~keep] == 0).all()

    def test_agrees_with_torch(self):
        torch = pytest.importorskip("torch")
        q, k, v = (torch.asarray(x) for x in inputs(lead=(2, 4)))
        for causal in (False, True):
            ours = kt.softmax_attention(q, k, v, causal=causal)
            theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            torch.testing.assert_close(ours, theirs)

    def test_query_with_no_key_follows_on_zero(self):
        q, k, v = inputs()
        hidden = np.zeros(20, bool)
        with pytest.raises(kt.VanishingNormalizerError):
            kt.softmax_attention(q, k, v, mask=hidden)
        assert np.isnan(kt.softmax_attention(q, k, v, mask=hidden, on_zero="nan")).all()

    def test_grouped_queries(self):
        q, k, v = inputs(lead=(4,))
        out = kt.softmax_attention(q, k[:2], v[:2])
        same = kt.softmax_attention(q, k[[0, 0, 1, 1]], v[[0, 0, 1, 1]])
        np.testing.assert_allclose(out, same, rtol=1e-13)

    def test_empty(self):
        x = np.ones((2, 0, 4))
        out, weights = kt.softmax_attention(x, x, x, return_weights=True)
        assert out.shape == (2, 0, 4)
        assert weights.shape == (2, 0, 0)


class TestHard:
    k = np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]])
    q = np.array([[1.0, 1, 2]])
    v = np.array([[0.0, 0, 1], [1, 4, 3], [2, 2, 2], [9, 9, 9]])

    def test_worked_example(self):
        assert (self.q @ self.k.T).tolist() == [[3, 11, 5, 2]]
        out, weights = kt.hard_attention(self.q, self.k, self.v, return_weights=True)
        assert out.tolist() == [[1, 4, 3]]
        assert weights.tolist() == [[0, 1, 0, 0]]

    def test_ties_take_the_first(self):
        out = kt.hard_attention(self.q, np.ones((3, 3)), np.arange(3.0)[:, None])
        assert out.tolist() == [[0.0]]

    def test_is_the_limit_of_softmax_at_temperature_zero(self):
        q, k, v = inputs()
        hard = kt.hard_attention(q, k, v, causal=True)
        cold = kt.softmax_attention(q, k, v, causal=True, temperature=1e-4)
        np.testing.assert_allclose(cold, hard, atol=1e-6)

    def test_masked_keys_are_never_chosen(self):
        mask = np.array([True, False, True, True])
        assert kt.hard_attention(self.q, self.k, self.v, mask=mask).tolist() == [[2, 2, 2]]

    def test_gradients(self):
        torch = pytest.importorskip("torch")
        q, k, v = (torch.asarray(x).requires_grad_() for x in (self.q, self.k, self.v))
        kt.hard_attention(q, k, v).sum().backward()
        assert q.grad is None or (q.grad == 0).all()
        assert k.grad is None or (k.grad == 0).all()
        assert v.grad.sum(-1).tolist() == [0, 3, 0, 0]
        for substitute in ("temperature", "gumbel", "straight-through"):
            a, b, c = (x.detach().clone().requires_grad_() for x in (q, k, v))
            out = kt.hard_attention(a, b, c, substitute=substitute, temperature=2.0)
            out.pow(2).sum().backward()
            assert (a.grad != 0).any()
            assert (b.grad != 0).any()
            if substitute == "straight-through":
                assert out.tolist() == [[1, 4, 3]]

    def test_straight_through_has_the_gradient_of_softmax(self):
        torch = pytest.importorskip("torch")
        grads = []
        for call in (
            lambda q, k, v: kt.hard_attention(q, k, v, substitute="straight-through"),
            lambda q, k, v: kt.softmax_attention(q, k, v),
        ):
            q, k, v = (torch.asarray(x).requires_grad_() for x in inputs())
            (call(q, k, v) * torch.arange(3.0)).sum().backward()
            grads.append((q.grad, k.grad))
        for one, two in zip(*grads, strict=True):
            torch.testing.assert_close(one, two)

    def test_gumbel_is_seeded_and_samples_the_softmax(self):
        q, k, v = np.zeros((4000, 1)), np.zeros((3, 1)), np.eye(3)
        k[0] = 0.0
        kwargs = {"substitute": "gumbel", "temperature": 1e-6}
        one = kt.hard_attention(q, k, v, seed=1, **kwargs)
        np.testing.assert_array_equal(one, kt.hard_attention(q, k, v, seed=1, **kwargs))
        assert (one != kt.hard_attention(q, k, v, seed=2, **kwargs)).any()
        assert np.abs(one.mean(0) - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 4000)


class TestKernel:
    @pytest.mark.parametrize("text", [t for t in MAPS if maps.get(t).exact])
    def test_closed_form_equals_linear_attention(self, text):
        q, k, v = inputs(lead=(4,))
        v[..., -1] = 1
        options = {
            "causal": MAPS.index(text) % 2 > 0,
            "on_zero": "nan",
            "normalize": text not in SIGNED_FEATURES,
        }
        dense = kt.kernel_attention(q, k[:2], v[:2], text, **options)
        linear = kt.linear_attention(q, k[:2], v[:2], text, **options)
        size = np.nanmax(np.abs(dense))
        np.testing.assert_allclose(dense, linear, rtol=1e-10, atol=1e-11 * size)

    def test_any_similarity(self):
        q, k, v = inputs()

        def cosine(a, b):
            norm = np.linalg.norm
            return a @ b.mT / norm(a, axis=-1, keepdims=True) / norm(b, axis=-1)[..., None, :]

        weights = np.abs(cosine(q, k)) + 1
        expected = (weights / weights.sum(-1, keepdims=True)) @ v
        out = kt.kernel_attention(q, k, v, lambda a, b: np.abs(cosine(a, b)) + 1)
        np.testing.assert_allclose(out, expected, rtol=1e-12)

    def test_sums_that_vanish_are_reported(self):
        q, k = np.ones((1, 1)), np.array([[1.0], [-1.0]])
        with pytest.raises(kt.VanishingNormalizerError):
            kt.kernel_attention(q, k, np.ones((2, 1)), lambda a, b: a @ b.mT)


class TestWeights:
    @pytest.mark.parametrize("text", MAPS)
    def test_weights_times_values_are_the_output(self, text):
        q, k, v = inputs(30, lead=(4,))
        rng = np.random.default_rng(1)
        for causal, normalize in turns(text, [False, True], [False, True]):
            options = {"causal": causal, "mask": rng.random(30) > 0.2, "on_zero": "nan"}
            if causal:
                options["log_decay"] = -rng.random((2, 30))
                options["segment_ids"] = np.sort(rng.integers(0, 3, 30))
            weights = kt.attention_weights(q, k[:2], text, normalize=normalize, **options)
            out = kt.linear_attention(q, k[:2], v[:2], text, normalize=normalize, **options)
            mixed = weights @ np.repeat(v[:2], 2, axis=0)
            np.testing.assert_allclose(mixed, out, rtol=1e-8, atol=1e-9 * np.nanmax(abs(out)))

    @given(rows=st.lists(st.integers(-40, 39), max_size=6), seed=st.integers(0, 100))
    def test_chosen_rows_are_the_rows_of_the_whole(self, rows, seed):
        q, k, _ = inputs(40, seed=seed)
        for causal in (False, True):
            whole = kt.attention_weights(q, k, "favor:features=8", causal=causal)
            some = kt.attention_weights(q, k, "favor:features=8", causal=causal, rows=rows)
            np.testing.assert_allclose(some, whole[:, rows], rtol=1e-12)

    def test_one_row_of_a_long_sequence_needs_no_square_memory(self):
        import tracemalloc

        q, k, _ = inputs(60_000, lead=())
        tracemalloc.start()
        row = kt.attention_weights(q, k, "elu", causal=True, rows=59_999)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert row.shape == (1, 60_000)
        assert abs(row.sum() - 1) < 1e-9
        assert peak < 60_000 * 8 * 100

    def test_vanishing_rows_name_their_own_number(self):
        q = np.array([[1.0, 1.0], [-1.0, -1.0]])
        k = np.ones((2, 2))
        with pytest.raises(kt.VanishingNormalizerError, match=r"\(1,\)"):
            kt.attention_weights(q, k, "relu", rows=[1])
        assert kt.attention_weights(q, k, "relu", rows=[0]).tolist() == [[0.5, 0.5]]

    def test_a_bad_key_spoils_the_rows_that_see_it(self):
        q, k, _ = inputs(10)
        k[0, 4, 0] = np.nan
        weights = kt.attention_weights(q, k, causal=True)
        assert np.isnan(weights[0, 4:]).all()
        assert not np.isnan(weights[0, :4]).any()
        assert not np.isnan(weights[1]).any()


SHAPES = {
    "multi-head": (8, 8, 6),
    "grouped": (8, 2, 6),
    "multi-query": (8, 1, 6),
    "wide values": (4, 2, 10),
}


class TestMultiHead:
    def layer(self, name):
        heads, kv_heads, value_width = SHAPES[name]
        return kt.MultiHeadAttention.random(
            48, heads, kv_heads=kv_heads, key_width=6, value_width=value_width
        )

    @pytest.mark.parametrize("name", SHAPES)
    def test_decoding_equals_the_whole(self, name):
        layer = self.layer(name)
        x = np.random.default_rng(0).standard_normal((3, 12, 48))
        whole = layer(x)
        cache = layer.empty_cache(3)
        for t in range(12):
            y, cache = layer.step(x[:, t], cache)
            np.testing.assert_allclose(y, whole[:, t], rtol=1e-10, atol=1e-12)
            assert cache.numbers == layer.cache_numbers(3, t + 1)

    @pytest.mark.parametrize("name", SHAPES)
    def test_step_does_the_multiply_adds_it_counts(self, name, monkeypatch):
        layer = self.layer(name)
        x = np.random.default_rng(0).standard_normal((3, 12, 48))
        cache = layer.empty_cache(3)
        for t in range(11):
            _, cache = layer.step(x[:, t], cache)
        counted = 0
        einsum = np.einsum

        def counting(equation, *operands):
            nonlocal counted
            inputs, _, _ = equation.partition("->")
            size = {}
            for letters, operand in zip(inputs.split(","), operands, strict=True):
                size.update(zip(letters, operand.shape, strict=True))
            counted += int(np.prod(list(size.values())))
            return einsum(equation, *operands)

        monkeypatch.setattr(np, "einsum", counting)
        layer.step(x[:, 11], cache)
        assert counted == layer.step_multiply_adds(batch=3, n=12)

    def test_counts_are_those_of_the_formulas(self):
        b, n, d, h = 5, 100, 64, 8
        k = d // h
        for g in (8, 2, 1):
            layer = kt.MultiHeadAttention.random(d, h, kv_heads=g)
            expected = b * (2 * d**2 + 2 * d * g * k + 2 * n * d)
            assert layer.step_multiply_adds(b, n) == expected
            assert layer.cache_numbers(b, n) == 2 * b * n * g * k

    def test_split_and_combine_infer_the_width(self):
        x = np.arange(2 * 5 * 12.0).reshape(2, 5, 12)
        assert split_heads(x, 4).shape == (2, 4, 5, 3)
        np.testing.assert_array_equal(combine_heads(split_heads(x, 4)), x)
        with pytest.raises(ValueError, match="12 columns among 5 heads"):
            split_heads(x, 5)

    def test_padding_mask(self):
        layer = self.layer("grouped")
        x = np.random.default_rng(0).standard_normal((2, 10, 48))
        mask = np.arange(10) < np.array([[10], [6]])
        out = layer(x, mask=mask)
        np.testing.assert_allclose(out[1, :6], layer(x[1:, :6])[0], rtol=1e-12)
        full = layer(x, causal=False, mask=mask)
        np.testing.assert_allclose(full[1, :6], layer(x[1:, :6], causal=False)[0], rtol=1e-12)

    def test_weights_that_do_not_fit_are_refused(self):
        layer = self.layer("grouped")
        with pytest.raises(ValueError, match="W_o must be"):
            kt.MultiHeadAttention(layer.W_q, layer.W_k, layer.W_v, layer.W_o[:3])
        with pytest.raises(ValueError, match="8 query heads cannot share 3"):
            kt.MultiHeadAttention.random(48, 8, kv_heads=3)
        with pytest.raises(ValueError, match="not a multiple"):
            kt.MultiHeadAttention.random(50, 8)
