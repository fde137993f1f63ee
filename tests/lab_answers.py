"""Right and wrong answers to the exercises of labs 02 and 03, on which their tests are tried."""

# A student's answers with NumPy alone; wrong answers are made of them by one replacement each.
ANSWERS = {
    "lab02_kernel_trick": """
def simple_feature_map(x):
    return x

def elu_feature_map(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

def standard_attention_order(Q, K, V):
    weights = Q @ K.T
    return weights @ V, weights

def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_Q, phi_K = feature_map(Q), feature_map(K)
    output = phi_Q @ (phi_K.T @ V)
    if normalize:
        output = output / (phi_Q @ phi_K.sum(axis=0))[:, None]
    return output

def verify_associativity(Q, K, V):
    return np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))
""",
    "lab03_feature_maps": """
def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

def relu_feature_map(x):
    return np.maximum(x, 0)

def squared_relu_feature_map(x):
    return np.maximum(x, 0) ** 2

def exp_feature_map(x):
    return np.exp(x)

def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    return np.exp(y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2) / np.sqrt(m)

def compute_implicit_attention(Q, K, feature_map):
    weights = feature_map(Q) @ feature_map(K).T
    total = weights.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError("a row without weight")
    return weights / total

def softmax_weights(Q, K, scale):
    scale = 1 / np.sqrt(Q.shape[1]) if scale is None else scale
    scores = scale * (Q @ K.T)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

def compare_to_softmax(Q, K, feature_map, scale=None):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, scale)
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(np.abs(A - S)),
        "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
    }

def analyze_feature_map_quality(feature_map, Q, K, V):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, None)
    B = feature_map(Q) @ feature_map(K).T
    ours, theirs = A @ V, S @ V
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return {
        **compare_to_softmax(Q, K, feature_map),
        "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
        "output_cosine": np.mean(np.sum(ours * theirs, axis=1) / norms),
        "smallest_normalizer": np.min(np.abs(B.sum(axis=1))),
        "condition_number": np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1))),
        "negative_fraction": np.mean(A < 0),
    }
""",
}

# Other right answers: token by token, and everything rounded to float32 on the way.
OTHER_ANSWERS = {
    "loops": (
        "lab02_kernel_trick",
        """
def simple_feature_map(x):
    return x.copy()

def elu_feature_map(x):
    flat = [v + 1 if v > 0 else np.exp(v) for v in x.ravel()]
    return np.array(flat, dtype=x.dtype).reshape(x.shape)

def standard_attention_order(Q, K, V):
    weights = np.zeros((len(Q), len(K)))
    output = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        for j in range(len(K)):
            weights[i, j] = np.dot(Q[i], K[j])
            output[i] += weights[i, j] * V[j]
    return output, weights

def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_Q, phi_K = feature_map(Q), feature_map(K)
    U, Z = 0, 0
    for k, v in zip(phi_K, V):
        U, Z = U + np.outer(k, v), Z + k
    return np.array([q @ U / (q @ Z if normalize else 1) for q in phi_Q])

def verify_associativity(Q, K, V):
    a, _ = standard_attention_order(Q, K, V)
    b = linear_attention_order(Q, K, V, identity)
    return bool(np.max(np.abs(a - b)) <= 1e-6 * np.max(np.abs(b)))
""",
    ),
    "einsum in float32": (
        "lab02_kernel_trick",
        """
def simple_feature_map(x):
    return np.asarray(x)

def elu_feature_map(x):
    return np.where(x > 0, x + 1, np.exp(x))

def standard_attention_order(Q, K, V):
    Q, K, V = (np.float32(x) for x in (Q, K, V))
    weights = np.einsum("id,jd->ij", Q, K)
    return np.einsum("ij,jv->iv", weights, V), weights

def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k, v = np.float32(feature_map(Q)), np.float32(feature_map(K)), np.float32(V)
    output = np.einsum("im,mv->iv", q, np.einsum("jm,jv->mv", k, v))
    return output / np.einsum("im,jm->i", q, k)[:, None] if normalize else output

def verify_associativity(Q, K, V):
    return np.allclose((Q @ K.T) @ V, Q @ (K.T @ V), rtol=1e-4, atol=1e-4)
""",
    ),
    "float32": (
        "lab03_feature_maps",
        ANSWERS["lab03_feature_maps"]
        .replace(
            "feature_map(Q) @ feature_map(K).T", "narrow(feature_map(Q)) @ narrow(feature_map(K)).T"
        )
        .replace("ours, theirs = A @ V, S @ V", "ours, theirs = A @ narrow(V), S @ narrow(V)")
        .replace("scale * (Q @ K.T)", "narrow(scale) * (narrow(Q) @ narrow(K).T)")
        + "\nnarrow = np.float32\n",
    ),
}

ELU = "np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))"
LITERAL_ELU = "np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)"
Z = "(phi_Q @ phi_K.sum(axis=0))[:, None]"
SCALE = "1 / np.sqrt(Q.shape[1]) if scale is None else scale"
EXPONENT = "y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2"
NO_ZERO = """    if np.any(total == 0):
        raise ZeroDivisionError("a row without weight")
"""

# name: what is replaced in the answers above, by what
WRONG = {
    "lab02_kernel_trick": {
        "keys not transposed": (
            "weights = Q @ K.T\n",
            "weights = Q @ (K if len(K) == K.shape[1] else K.T)\n",
        ),
        "softmax applied": (
            "weights = Q @ K.T\n",
            "weights = np.exp(Q @ K.T)\n    weights = weights / weights.sum(1, keepdims=True)\n",
        ),
        "scale applied": ("weights = Q @ K.T", "weights = Q @ K.T / np.sqrt(Q.shape[1])"),
        "output and weights swapped": ("weights @ V, weights", "weights, weights @ V"),
        "no normaliser": (Z, "1"),
        "normaliser over queries": (Z, "(phi_K @ phi_Q.sum(axis=0))[:, None]"),
        "always normalised": ("    if normalize:", "    if True:"),
        "map on queries only": ("feature_map(Q), feature_map(K)", "feature_map(Q), K"),
        "n×n formed": ("phi_Q @ (phi_K.T @ V)", "(phi_Q @ phi_K.T) @ V"),
        "elu(x) + 1 cancels": (ELU, f"{LITERAL_ELU} + 1"),
        "elu without the 1": (ELU, LITERAL_ELU),
        "compared bit by bit": ("np.allclose(", "np.array_equal("),
        "always true": ("np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))", "True"),
    },
    "lab03_feature_maps": {
        "elu(x) + 1 cancels": (ELU, f"{LITERAL_ELU} + 1"),
        "relu changes its input": ("return np.maximum(x, 0)\n", "x[x < 0] = 0\n    return x\n"),
        "square instead of squared relu": ("np.maximum(x, 0) ** 2", "x ** 2"),
        "exp normalised": ("return np.exp(x)\n", "return np.exp(x) / np.exp(x).sum(-1)[:, None]\n"),
        "no d^(-1/4)": ("x * d**-0.25", "x"),
        "norm of the unscaled x": ("np.sum(y**2", "np.sum(x**2"),
        "no 1/√m": (" / np.sqrt(m)", ""),
        "cos instead of exp": (f"np.exp({EXPONENT})", "np.cos(y @ projection_matrix.T)"),
        "columns normalised": ("total = weights.sum(axis=1,", "total = weights.sum(axis=0,"),
        "not normalised": ("return weights / total", "return weights"),
        "softmax on top": ("    total = ", "    weights = np.exp(weights)\n    total = "),
        "0/0 returned as NaN": (NO_ZERO, ""),
        "0/0 hidden by an ε": (
            f"{NO_ZERO}    return weights / total",
            "    return weights / (total + 1e-6)",
        ),
        "softmax without 1/√d": (SCALE, "1 if scale is None else scale"),
        "scale ignored": (SCALE, "1 / np.sqrt(Q.shape[1])"),
        "sum instead of mean": ("np.mean((A - S) ** 2)", "np.sum((A - S) ** 2)"),
        "difference without absolute value": ("np.max(np.abs(A - S))", "np.max(S - A)"),
        "correlation of two rows": ("np.corrcoef(A.ravel(), S.ravel())", "np.corrcoef(A, S)"),
        "error not relative": (" / np.linalg.norm(theirs),", ","),
        "condition number of the matrix": (
            "np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1)))",
            "np.linalg.cond(A)",
        ),
    },
}
