"""One number at a time, as the formulas stand."""

import numpy as np


def similarity_conditions(S):
    n = len(S)
    largest = max(abs(S[i, j]) for i in range(n) for j in range(n))
    symmetric = all(abs(S[i, j] - S[j, i]) <= 1e-9 * largest for i in range(n) for j in range(i))
    psd = symmetric
    if symmetric:
        values = np.linalg.eigvals(S).real
        psd = all(value >= -1e-9 * max(abs(values)) for value in values)
    return {
        "finite_output": all(abs(sum(row)) > 1e-9 * sum(abs(v) for v in row) for row in S),
        "non_negative": all(v >= 0 for row in S for v in row),
        "symmetric": symmetric,
        "positive_semidefinite": bool(psd),
    }


def factorises(S, phi_Q, phi_K):
    largest = max(abs(v) for row in S for v in row)
    for i, q in enumerate(phi_Q):
        for j, k in enumerate(phi_K):
            if abs(sum(a * b for a, b in zip(q, k, strict=True)) - S[i, j]) > 1e-6 * largest:
                return False
    return True


def quadratic_kernel(Q, K, constant=1.0):
    return np.array(
        [[(sum(a * b for a, b in zip(q, k, strict=True)) + constant) ** 2 for k in K] for q in Q]
    )


def square_map(x):
    rows = []
    for row in x:
        features = []
        for i in range(len(row)):
            for j in range(i + 1):
                features.append(row[i] * row[j] * (1 if i == j else 2**0.5))
        rows.append(features)
    return np.array(rows)


def quadratic_map(x):
    rows = []
    for row in x:
        extended = [*row, 1.0]
        features = []
        for i in range(len(extended)):
            features.append(extended[i] ** 2)
            for j in range(i):
                features.append(2**0.5 * extended[i] * extended[j])
        rows.append(features)
    return np.array(rows)


def attention_by_kernel(Q, K, V):
    output = np.zeros((len(Q), V.shape[1]))
    for i, q in enumerate(Q):
        total = 0.0
        for k, v in zip(K, V, strict=True):
            weight = float((q @ k + 1) ** 2)
            output[i] += weight * v
            total += weight
        output[i] = [value / total for value in output[i].tolist()]
    return output


def attention_by_features(Q, K, V):
    U, Z = 0.0, 0.0
    for key, value in zip(quadratic_map(K), V, strict=True):
        U = U + key[:, None] * value
        Z = Z + key
    return np.array([query @ U / (query @ Z) for query in quadratic_map(Q)])


def crossover(D, M):
    n = 1
    while quadratic_multiply_adds(n, D, M) >= softmax_multiply_adds(n, D, M):
        n += 1
    return n
