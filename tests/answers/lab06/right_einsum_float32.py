"""einsum and float32; ridge by other, equal formulas."""

import numpy as np


def polynomial_gram(X, Y, degree=2, constant=1.0):
    return np.power(np.einsum("id,jd->ij", np.float32(X), np.float32(Y)) + constant, degree)


def rbf_gram(X, Y, length=1.0):
    difference = np.float32(X)[:, None, :] - np.float32(Y)[None, :, :]
    return np.exp(-0.5 * np.einsum("ijd,ijd->ij", difference, difference) / length**2)


def is_gram_matrix(K):
    symmetric = np.allclose(K, K.T, rtol=0, atol=1e-9 * np.max(np.abs(K)))
    size = np.linalg.norm(K, 2)
    return symmetric and not np.any(np.linalg.eigvalsh(K) < -1e-9 * size)


def negative_direction(K):
    values, vectors = np.linalg.eigh(np.float32(K))
    return 100 * (vectors @ np.where(values < 0, 1.0, 0.0))


def rkhs_norm(alpha, K):
    return np.float32(np.einsum("i,ij,j->", alpha, K, alpha)) ** 0.5


def representer(gamma, K_XZ, K_XX):
    return np.linalg.inv(K_XX) @ K_XZ @ gamma


def ridge_dual(K, y, penalty):
    A = np.float32(K / len(y) + penalty * np.eye(len(y)))
    return np.linalg.solve(A, np.float32(y) / len(y))


def ridge_primal(Phi, y, penalty):
    m = Phi.shape[1]
    stacked = np.vstack([Phi, np.sqrt(len(y) * penalty) * np.eye(m)])
    return np.linalg.lstsq(stacked, np.concatenate([y, np.zeros(m)]), rcond=None)[0]


def svm_dual(K, y, C):
    K, y = np.float32(K), np.float32(y)
    beta, f = np.zeros_like(y), np.zeros_like(y)
    for _ in range(2000):
        for i in range(len(y)):
            new = min(max(beta[i] + (1 - y[i] * f[i]) / K[i, i], 0), C)
            f = f + (new - beta[i]) * y[i] * K[i]
            beta[i] = new
    return beta
