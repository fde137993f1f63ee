"""Lab 06 as a good student writes it."""

import numpy as np


def polynomial_gram(X, Y, degree=2, constant=1.0):
    return (X @ Y.T + constant) ** degree


def rbf_gram(X, Y, length=1.0):
    squared = (X**2).sum(1)[:, None] + (Y**2).sum(1)[None, :] - 2 * X @ Y.T
    return np.exp(-np.maximum(squared, 0) / (2 * length**2))


def is_gram_matrix(K):
    if np.abs(K - K.T).max() > 1e-9 * np.abs(K).max():
        return False
    eigenvalues = np.linalg.eigvalsh(K)
    return bool(eigenvalues[0] >= -1e-9 * np.abs(eigenvalues).max())


def negative_direction(K):
    _, vectors = np.linalg.eigh(K)
    return vectors[:, 0]


def rkhs_norm(alpha, K):
    return np.sqrt(alpha @ K @ alpha)


def representer(gamma, K_XZ, K_XX):
    return np.linalg.solve(K_XX, K_XZ @ gamma)


def ridge_dual(K, y, penalty):
    n = len(y)
    return np.linalg.solve(K + n * penalty * np.eye(n), y)


def ridge_primal(Phi, y, penalty):
    n, m = Phi.shape
    return np.linalg.solve(Phi.T @ Phi + n * penalty * np.eye(m), Phi.T @ y)


def rkhs_descent(K, y, penalty, rate, steps):
    n = len(y)
    alpha = np.zeros(n)
    for _ in range(steps):
        alpha = (1 - 2 * rate * penalty) * alpha - 2 * rate / n * (K @ alpha - y)
    return alpha


def svm_dual(K, y, C):
    beta = np.zeros(len(y))
    for _ in range(1000):
        for i in range(len(y)):
            f = K[i] @ (y * beta)
            beta[i] = np.clip(beta[i] + (1 - y[i] * f) / K[i, i], 0, C)
        dual, loss = svm_objectives(beta, K, y, C)
        if loss - dual <= 1e-4 * loss:
            break
    return beta
