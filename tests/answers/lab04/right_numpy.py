"""Lab 04 as a good student writes it: NumPy, no loops but the one that is needed."""

import numpy as np


def similarity_conditions(S):
    symmetric = np.abs(S - S.T).max() <= 1e-9 * np.abs(S).max()
    eigenvalues = np.linalg.eigvalsh((S + S.T) / 2)
    return {
        "finite_output": bool(np.all(np.abs(S.sum(1)) > 1e-9 * np.abs(S).sum(1))),
        "non_negative": bool(np.all(S >= 0)),
        "symmetric": bool(symmetric),
        "positive_semidefinite": bool(
            symmetric and eigenvalues.min() >= -1e-9 * np.abs(eigenvalues).max()
        ),
    }


def factorises(S, phi_Q, phi_K):
    return bool(np.abs(phi_Q @ phi_K.T - S).max() <= 1e-6 * np.abs(S).max())


def quadratic_kernel(Q, K, constant=1.0):
    return (Q @ K.T + constant) ** 2


def square_map(x):
    i, j = np.triu_indices(x.shape[1], 1)
    return np.concatenate([x**2, np.sqrt(2) * x[:, i] * x[:, j]], axis=1)


def quadratic_map(x):
    return np.concatenate([np.ones((len(x), 1)), np.sqrt(2) * x, square_map(x)], axis=1)


def attention_by_kernel(Q, K, V):
    S = quadratic_kernel(Q, K)
    total = S.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError("a query has no weight with any key")
    return S @ V / total


def attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U, Z = phi_K.T @ V, phi_K.sum(axis=0)
    return phi_Q @ U / (phi_Q @ Z)[:, None]


def causal_attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U = np.zeros((phi_K.shape[1], V.shape[1]))
    Z = np.zeros(phi_K.shape[1])
    output = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        U += np.outer(phi_K[i], V[i])
        Z += phi_K[i]
        output[i] = phi_Q[i] @ U / (phi_Q[i] @ Z)
    return output


def quadratic_multiply_adds(n, D, M):
    m = (D + 1) * (D + 2) // 2
    return 2 * n * m * M


def crossover(D, M):
    m = (D + 1) * (D + 2) // 2
    return 2 * m * M // (D + M) + 1
