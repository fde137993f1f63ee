"""The short check after each function of a notebook, by lab and function.

Each check is a few lines that fail with a message if the function is wrong in a common way. The
tests of the lab, which the last cell runs, check more.
"""

from __future__ import annotations

CHECKS = {
    "01": {
        "softmax_multiply_adds": """\
assert softmax_multiply_adds(1000, 32, 80) == 112_000_000, "n² pairs, D + M multiply-adds each"
assert softmax_multiply_adds(2, 3, 5, causal=True) == 24, "causal: n(n+1)/2 pairs"
""",
        "linear_multiply_adds": """\
assert linear_multiply_adds(1000, 561, 80) == 90_882_000, "U and Z are written and read"
assert linear_multiply_adds(10, 7, 3, causal=True) == linear_multiply_adds(10, 7, 3)
""",
        "weights_bytes": """\
assert weights_bytes(4096) == 4 * 4096**2, "float32 takes 4 bytes"
assert weights_bytes(10, heads=3, dtype="float16") == 600, "3 heads, 100 weights, 2 bytes"
""",
        "state_bytes": """\
assert state_bytes(64, 64) == 4 * (64 * 64 + 64), "U is m×M, Z has m entries"
assert state_bytes(5, 2, heads=2, dtype="float64") == 240
""",
        "crossover_length": """\
assert crossover_length(64, 64, 64) == 66, "at n = 65 both take the same"
assert crossover_length(64, 64, 64, causal=True) == 130
""",
        "growth_exponent": """\
assert abs(growth_exponent([100, 200, 400], [3e4, 12e4, 48e4]) - 2) < 1e-9
uneven = growth_exponent([1, 2, 8], [1.0, 3.0, 8.0])
assert abs(uneven - 0.9582) < 1e-4, "least squares uses all points, not only the ends"
""",
        "longest_context": """\
assert longest_context(64 * 2**20) == 4096, "a budget that is filled exactly fits"
assert longest_context(64 * 2**20 - 1) == 4095, "round down"
assert longest_context(4 * 8, heads=2) == 2, "every head has its own weights"
""",
    },
    "02": {
        "simple_feature_map": """\
x = np.array([[-1.0, 2.0]])
assert np.array_equal(simple_feature_map(x), x), "φ(x) = x changes nothing"
""",
        "elu_feature_map": """\
x = np.array([[2.0, 0.0, -1.0]])
assert np.allclose(elu_feature_map(x), [[3, 1, np.exp(-1)]]), "x + 1 above 0, eˣ below"
far = np.array([[-20.0]], dtype=np.float32)
assert elu_feature_map(far) > 0, "(eˣ − 1) + 1 is 0 here: write the branch below 0 as eˣ"
""",
        "standard_attention_order": """\
Q, K, V = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [10.0]])
output, weights = standard_attention_order(Q, K, V)
assert np.allclose(weights, [[1, 3], [2, 4]]), "the weights are QKᵀ, without softmax or scale"
assert np.allclose(output, [[31], [42]]), "the output is QKᵀ times V"
""",
        "linear_attention_order": """\
Q, K, V = (x.astype(np.float64) for x in random_tensors(seq_len=30, d_model=4))
found = linear_attention_order(Q, K, V, identity)
assert found.shape == (30, 4), f"expected one row per query, got shape {found.shape}"
assert np.allclose(found, Q @ K.T @ V), "with φ(x) = x the output is (QKᵀ)V"
found = linear_attention_order(Q, K, V, np.exp)
assert np.allclose(found, np.exp(Q) @ np.exp(K).T @ V), "apply φ to Q and K, not to V"
found = linear_attention_order(Q, K, np.ones((30, 4)), np.exp, normalize=True)
assert np.allclose(found, 1), "the average of values that are all 1 is 1"
""",
        "verify_associativity": """\
Q, K, V = np.random.default_rng(0).standard_normal((3, 100, 64))
assert verify_associativity(Q, K, V), "the two orders round differently: allow a tolerance"
big, small = np.full((2, 2), 1e200), np.full((2, 2), 1e-300)
with np.errstate(all="ignore"):
    assert not verify_associativity(big, big, small), "here QKᵀ is inf and KᵀV is not"
""",
    },
    "03": {
        "elu_plus_one": """\
x = np.array([[2.0, 0.0, -1.0]])
assert np.allclose(elu_plus_one(x), [[3, 1, np.exp(-1)]]), "x + 1 above 0, eˣ below"
far = np.array([[-20.0]], dtype=np.float32)
assert elu_plus_one(far) > 0, "(eˣ − 1) + 1 is 0 here: write the branch below 0 as eˣ"
""",
        "relu_feature_map": """\
x = np.array([[-2.0, 3.0]])
assert np.allclose(relu_feature_map(x), [[0, 3]]), "max(0, x)"
assert relu_feature_map(x)[0, 0] == 0, "exactly 0 below 0, not a small number"
assert x[0, 0] == -2, "the function changed its argument"
""",
        "squared_relu_feature_map": """\
x = np.array([[-2.0, 3.0]])
assert np.allclose(squared_relu_feature_map(x), [[0, 9]]), "0 where x < 0, x² where x > 0"
assert x[0, 0] == -2, "the function changed its argument"
""",
        "exp_feature_map": """\
x = np.array([[0.0, 1.0]])
assert np.allclose(exp_feature_map(x), [[1, np.e]]), "eˣ of each coordinate"
""",
        "softmax_kernel_feature_map": """\
zero = softmax_kernel_feature_map(np.zeros((1, 2)), np.ones((4, 2)))
assert np.allclose(zero, 0.5), "at x = 0 every feature is 1/√m"
x = np.array([[2.0, 0.0, 0.0, 2.0]])
w = np.array([[1.0, 0.5, 0.0, -1.0]])
scaled = x[0] / 4**0.25
expected = np.exp(w[0] @ scaled - scaled @ scaled / 2)
assert np.allclose(softmax_kernel_feature_map(x, w), expected), "x′ = x·d^(−1/4) in both terms"
""",
        "compute_implicit_attention": """\
Q, K = np.random.default_rng(0).standard_normal((2, 20, 4))
A = compute_implicit_attention(Q, K, np.exp)
assert A.shape == (20, 20), f"expected a row per query and a column per key, got {A.shape}"
assert np.allclose(A.sum(axis=1), 1), "every row adds up to 1"
assert np.allclose(A[0] * (np.exp(Q[0]) @ np.exp(K).sum(axis=0)), np.exp(Q[0]) @ np.exp(K).T)
try:
    compute_implicit_attention(np.ones((1, 2)), np.ones((3, 2)), np.zeros_like)
except ZeroDivisionError:
    pass
else:
    raise AssertionError("a row that adds up to 0 must raise ZeroDivisionError")
""",
        "show_attention": """\
show_attention(np.eye(4))
show_attention(np.array([[1.5, -0.5, 0.0], [0.2, 0.3, 0.5]]))
""",
        "compare_to_softmax": """\
Q, K = np.random.default_rng(0).standard_normal((2, 20, 4))
found = compare_to_softmax(Q, K, np.exp)
assert set(found) == {"mse", "max_diff", "correlation"}, f"unexpected keys: {sorted(found)}"
assert 0 < found["mse"] <= 2 / 20, "the mse of rows that add up to 1 is at most 2/n"
assert found["mse"] <= found["max_diff"] ** 2, "a mean cannot exceed the largest value"
other = compare_to_softmax(Q, K, np.exp, scale=1)
assert other["mse"] != found["mse"], "scale changes the softmax"
""",
        "analyze_feature_map_quality": """\
Q, K, V = np.random.default_rng(0).standard_normal((3, 20, 4))
found = analyze_feature_map_quality(np.exp, Q, K, V)
assert len(found) == 8, f"expected eight numbers, got {sorted(found)}"
assert np.isclose(found["condition_number"], 1), "positive features cannot cancel"
assert found["negative_fraction"] == 0, "positive features give no negative weights"
assert found["mse"] == compare_to_softmax(Q, K, np.exp)["mse"]
assert analyze_feature_map_quality(lambda x: x, Q, K, V)["negative_fraction"] > 0
""",
    },
    "04": {
        "similarity_conditions": """\
found = similarity_conditions(np.array([[2.0, -1.0], [-1.0, 2.0]]))
assert found["positive_semidefinite"], "eigenvalues 1 and 3: the signs of the entries do not matter"
assert not found["non_negative"]
found = similarity_conditions(np.array([[1.0, -1.0], [-1.0, 1.0]]))
assert not found["finite_output"], "these rows add up to 0"
assert found["positive_semidefinite"], "an eigenvalue 0 is allowed"
""",
        "factorises": """\
phi_Q, phi_K = np.array([[0.1, 0.2, -0.3], [1.0, 1.0, 1.0]]), np.ones((2, 3))
assert factorises(np.array([[0.0, 0.0], [3.0, 3.0]]), phi_Q, phi_K), "allow for rounding"
assert not factorises(np.array([[0.0, 0.0], [3.0, 3.1]]), phi_Q, phi_K)
assert not factorises(1e-12 * np.eye(2), np.zeros((2, 3)), phi_K), "1e-6 of the largest entry of S"
""",
        "quadratic_kernel": """\
found = quadratic_kernel(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
assert np.allclose(found, [[144, 1]]), "(q·k + 1)²"
""",
        "square_map": """\
phi = square_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
assert phi.shape == (2, 3), "d(d+1)/2 features: each product once"
assert np.isclose(phi[0] @ phi[1], 121), "φ(q)·φ(k) = (1·3 + 2·4)²"
""",
        "quadratic_map": """\
phi = quadratic_map(np.array([[1.0, 2.0], [3.0, 4.0]]))
assert phi.shape == (2, 6), "(d+1)(d+2)/2 features"
assert np.isclose(phi[0] @ phi[1], 144), "φ(q)·φ(k) = (1·3 + 2·4 + 1)²"
""",
        "attention_by_kernel": """\
found = attention_by_kernel(np.ones((1, 1)), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]]))
assert np.allclose(found, 18), "the weights are 1/5 and 4/5"
try:
    attention_by_kernel(np.ones((1, 1)), -np.ones((2, 1)), np.ones((2, 1)))
except ZeroDivisionError:
    pass
else:
    raise AssertionError("a query whose similarities are all 0 must raise ZeroDivisionError")
""",
        "attention_by_features": """\
Q, K, V = random_inputs(n=20, d=3, width=2)
S = (Q @ K.T + 1) ** 2
expected = S @ V / S.sum(axis=1, keepdims=True)
assert np.allclose(attention_by_features(Q, K, V), expected), "the output of the kernel itself"
""",
        "causal_attention_by_features": """\
Q, K, V = np.ones((2, 1)), np.array([[0.0], [1.0]]), np.array([[10.0], [20.0]])
found = causal_attention_by_features(Q, K, V)
assert np.allclose(found[0], 10), "the first token sees only itself"
assert np.allclose(found[1], 18), "the second one sees both"
""",
        "quadratic_multiply_adds": """\
assert quadratic_multiply_adds(1000, 32, 80) == 89_760_000, "two products of n·m·M each"
""",
        "crossover": """\
assert crossover(32, 80) == 802
assert crossover(16, 16) == 154, "at equal counts nothing is gained yet"
""",
    },
    "05": {
        "dot_product_moments": """\
assert np.allclose(dot_product_moments(64, 0.0, 1.0, 0.0, 1.0), (0, 64, 1 / 8))
assert np.allclose(dot_product_moments(16, 0.5, 2.0, 0.5, 2.0)[:2], (4, 288)), "the means count"
""",
        "softmax_attention": """\
Q, K, V = np.eye(2), np.zeros((2, 2)), np.array([[1.0], [3.0]])
assert np.allclose(softmax_attention(Q, K, V), 2), "equal scores give the mean of the values"
assert np.allclose(softmax_attention(Q, K, V, causal=True), [[1], [2]]), "query 0 sees key 0 only"
K = np.array([[0.0, 0.0], [0.0, 3000.0]])
found = softmax_attention(np.ones((2, 2)), K, V, causal=True)
assert np.allclose(found, [[1], [3]]), "mask first, then subtract the largest score that is left"
""",
        "hard_attention": """\
K, V = np.array([[1.0, 0], [0, 3]]), np.array([[5.0], [6.0]])
assert np.allclose(hard_attention(np.array([[1.0, 1], [-1, -1]]), K, V), [[6], [5]])
""",
        "hard_attention_gradients": """\
K, V = np.array([[1.0, 0], [0, 1]]), np.array([[5.0], [6.0]])
Q, grad = np.array([[2.0, 1], [3, 0]]), np.array([[1.0], [10.0]])
dQ, dK, dV = hard_attention_gradients(Q, K, V, grad)
assert not np.any(dQ) and not np.any(dK), "a small change of Q or K selects the same values"
assert np.allclose(dV, [[11], [0]]), "both queries select value 0: their gradients add up"
""",
        "split_heads": """\
found = split_heads(np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]]), heads=2)
assert np.allclose(found[0], [[1, 2], [5, 6]]), "head 0 has the first two columns of every token"
""",
        "combine_heads": """\
found = combine_heads(np.array([[[1.0, 2], [5, 6]], [[3, 4], [7, 8]]]))
assert np.allclose(found, [[1, 2, 3, 4], [5, 6, 7, 8]]), "the heads stand side by side"
""",
        "multi_head_attention": """\
X, W = np.eye(2), np.eye(2)
found = multi_head_attention(X, 0 * W, 0 * W, 4 * W, W, heads=2)
assert np.allclose(found, 2), "equal weights: the mean of the values"
rng = np.random.default_rng(0)
X, W_v, W_o = rng.standard_normal((5, 4)), rng.standard_normal((4, 6)), rng.standard_normal((6, 4))
assert multi_head_attention(X, np.eye(4), np.eye(4), W_v, W_o, heads=2).shape == (5, 4)
""",
        "multi_query_attention": """\
X, ones = np.array([[[1.0], [3.0]]]), np.ones((2, 1, 1))
found = multi_query_attention(X, 0 * ones, ones[0], ones[0], ones)
assert np.allclose(found, [[[2], [4]]]), "causal, and the two heads add up"
""",
        "decoding_step": """\
x, ones, empty = np.array([[3.0]]), np.ones((1, 1, 1)), np.ones((1, 1, 0, 1))
output, keys, values = decoding_step(x, ones, ones, ones, ones, empty, empty)
assert np.allclose(output, 3), "the new token sees itself"
assert keys.shape == values.shape == (1, 1, 1, 1), "the cache has one more token"
""",
        "decoding_multiply_adds": """\
assert decoding_multiply_adds(b=3, n=4096, d=512, h=8, g=1) == 14_352_384
""",
        "kept_bytes": """\
assert kept_bytes(b=1, n=4096, g=8, k=64, v=64) == 16_777_216, "a key and a value per token"
assert kept_bytes(b=1, n=4096, g=8, k=64, v=64, m=64) == 133_120, "U and Z, without n"
""",
    },
    "06": {
        "polynomial_gram": """\
found = polynomial_gram(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, -1.0]]))
assert np.allclose(found, [[144, 1]]), "(x·y + c)ᵖ"
""",
        "rbf_gram": """\
found = rbf_gram(np.array([[0.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 0.0]]), length=2.0)
assert np.allclose(found, [[1, np.exp(-0.5)]]), "exp(−‖x − y‖² / 2ℓ²)"
""",
        "is_gram_matrix": """\
assert is_gram_matrix(np.array([[1.0, -1.0], [-1.0, 1.0]])), "eigenvalues 2 and 0 are allowed"
assert not is_gram_matrix(np.array([[1.0, 2.0], [2.0, 1.0]])), "eigenvalues 3 and −1 are not"
assert not is_gram_matrix(np.array([[2.0, 1.0], [0.0, 2.0]])), "it must be symmetric"
""",
        "negative_direction": """\
K = np.array([[1.0, 2.0], [2.0, 1.0]])
c = negative_direction(K)
assert c.shape == (2,) and c @ K @ c < 0, "cᵀKc must be below 0"
""",
        "rkhs_norm": """\
assert np.isclose(rkhs_norm(np.array([3.0, 2.0]), np.diag([1.0, 4.0])), 5), "√(αᵀKα)"
""",
        "representer": """\
found = representer(np.array([1.0]), np.array([[2.0], [3.0]]), np.diag([1.0, 2.0]))
assert np.allclose(found, [2, 1.5]), "solve K_XX α = K_XZ γ"
""",
        "ridge_dual": """\
found = ridge_dual(np.eye(2), np.array([4.0, 8.0]), penalty=0.5)
assert np.allclose(found, [2, 4]), "(K + nλI)α = y"
""",
        "ridge_primal": """\
found = ridge_primal(np.ones((2, 1)), np.array([4.0, 8.0]), penalty=1.0)
assert np.allclose(found, [3]), "(ΦᵀΦ + nλI)w = Φᵀy"
""",
        "rkhs_descent": """\
found = rkhs_descent(np.eye(2), np.array([4.0, 8.0]), penalty=0.5, rate=0.5, steps=1)
assert np.allclose(found, [2, 4]), "one step from 0 is 2η/n times y"
K, y = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, -1.0])
found = rkhs_descent(K, y, penalty=0.1, rate=0.3, steps=2)
assert np.allclose(found, [0.492, -0.492]), "the step has no further K in front"
""",
        "svm_dual": """\
K, y = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, -1.0])
beta = svm_dual(K, y, C=0.5)
assert np.all((beta >= 0) & (beta <= 0.5)), "0 ≤ β ≤ C"
dual, loss = svm_objectives(beta, K, y, 0.5)
assert loss - dual <= 1e-3 * loss, "the duality gap must be at most 1e-3 of the loss"
""",
    },
    "07": {
        "taylor_feature_map": """\
q, k = np.array([[1.0, 2.0, 0.0, 1.0]]), np.array([[1.0, 1.0, 5.0, 1.0]])
found = taylor_feature_map(q) @ taylor_feature_map(k).T
assert np.allclose(found, 5), "t = 4/√4 = 2, and 1 + t + t²/2 = 5"
""",
        "based_weights": """\
x, W = np.array([[0.0, 0.0, 1.0], [2.0, 1.0, 0.0]]), np.array([[1.0], [0.0], [0.0]])
found = based_weights(x, W, W)
assert np.allclose(found, [[1, 0], [1 / 14, 13 / 14]]), "second row: t is 0 and 4"
""",
        "state_size": """\
assert state_size(16, 64) == 9945, "m = (d+1)(d+2)/2; U is m×64 and Z has m numbers"
assert state_size(16, 64, compact=False) == 17745, "m = 1 + d + d²"
""",
        "recurrent_attention": """\
phi = np.array([[1.0, 0.0], [1.0, 1.0]])
output, (U, Z) = recurrent_attention(phi, phi, np.array([[3.0], [6.0]]))
assert np.allclose(output, [[3], [5]]), "write first, then read"
assert np.allclose(Z, [2, 1]) and np.allclose(U, [[9], [6]])
""",
        "sliding_window_attention": """\
zero, V = np.zeros((4, 2)), np.array([[1.0], [2.0], [3.0], [4.0]])
found = sliding_window_attention(zero, zero, V, window=2)
assert np.allclose(found.ravel(), [1, 1.5, 2.5, 3.5]), "averages of the last two values"
""",
        "windowed_taylor_attention": """\
zero, V = np.zeros((3, 2)), np.array([[1.0], [2.0], [6.0]])
found = windowed_taylor_attention(zero, zero, V, window=1)
assert np.allclose(found.ravel(), [1, 1.5, 3]), "at t = 0 both kinds of weights are 1"
large = windowed_taylor_attention(np.full((3, 1), 30.0), np.full((3, 1), 30.0), V, window=2)
assert np.allclose(large.ravel(), [1, 1.5, 4]), "e^900 overflows: subtract the largest score"
""",
        "recall_accuracy": """\
assert recall_accuracy(None, 16) == 1, "softmax attention recalls everything"
assert recall_accuracy(elu_plus_one, 16) < 0.1
""",
    },
    "08": {
        "recurrent_attention": """\
K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
output, S = recurrent_attention(K, K, V)
assert np.allclose(output.ravel(), [1, 6]), "write first, then read: the second output is 1 + 5"
assert S.shape == (2, 1), "S is d×M"
""",
        "decayed_attention": """\
K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
output, S = decayed_attention(K, K, V, decay=np.array([0.5, 0.25]))
assert np.allclose(output.ravel(), [1, 5.25]), "the old state fades, the new token does not"
""",
        "delta_rule": """\
K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
output, S = delta_rule(K, K, V, beta=np.ones(2))
assert np.allclose(output.ravel(), [1, 5]), "write only what is missing: 5 − 1 = 4"
output, S = delta_rule(K, K, V, beta=np.ones(2), state=np.full((2, 1), 3.0))
assert np.allclose(S.ravel(), [5, 3]), "start from the given state"
""",
        "gated_delta_rule": """\
K, V, half = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]]), np.full(2, 0.5)
output, S = gated_delta_rule(K, K, V, beta=half, decay=half)
assert np.allclose(output.ravel(), [0.5, 2.625]), "decay first: 0.25 + ½(5 − 0.25)"
""",
        "written_values": """\
K, V = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0], [5.0]])
assert np.allclose(written_values(K, V, beta=np.ones(2)).ravel(), [1, 4]), "4 is missing to 5"
""",
        "chunked_delta_rule": """\
Q, K, V, beta = random_tokens(n=50, d=4, width=3)
found, S = chunked_delta_rule(Q, K, V, beta, chunk=16)
assert np.allclose(found, delta_rule(Q, K, V, beta)[0]), "the same outputs as token by token"
assert np.allclose(S, delta_rule(Q, K, V, beta)[1]), "the same state"
""",
        "delta_attention": """\
Q, K, V, beta = random_tokens(n=50, d=4, width=3)
found = delta_attention(Q, K, beta) @ V
assert np.allclose(found, delta_rule(Q, K, V, beta)[0]), "AV is the output of the delta rule"
""",
        "parity": """\
found = parity(np.array([1, 0, 1, 1]))
assert np.allclose(found, [1, 1, 0, 1]), "β = 2 flips the sign of a state that starts at 1"
""",
    },
}
