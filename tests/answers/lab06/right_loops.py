"""Pair by pair; the machine by projected gradient ascent, the direction by a search."""

import math

import numpy as np


def polynomial_gram(X, Y, degree=2, constant=1.0):
    K = np.zeros((len(X), len(Y)))
    for i, x in enumerate(X):
        for j, y in enumerate(Y):
            K[i, j] = (np.dot(x, y) + constant) ** degree
    return K


def rbf_gram(X, Y, length=1.0):
    gamma = 1 / (2 * length**2)
    return np.array([[math.exp(-gamma * sum((x - y) ** 2)) for y in Y] for x in X])


def negative_direction(K):
    rng = np.random.default_rng(0)
    c = rng.standard_normal(len(K))
    shift = np.abs(K).sum()
    while c @ K @ c >= 0:
        c = shift * c - K @ c
        c /= np.abs(c).max()
    return c


def rkhs_norm(alpha, K):
    total = 0.0
    for i in range(len(alpha)):
        for j in range(len(alpha)):
            total += alpha[i] * alpha[j] * K[i, j]
    return math.sqrt(total)


def rkhs_descent(K, y, penalty, rate, steps):
    n = len(y)
    alpha = [0.0] * n
    for _ in range(steps):
        values = [sum(alpha[j] * K[j, i] for j in range(n)) for i in range(n)]
        gradient = [2 / n * (values[i] - y[i]) + 2 * penalty * alpha[i] for i in range(n)]
        alpha = [a - rate * g for a, g in zip(alpha, gradient, strict=True)]
    return np.array(alpha)


def svm_dual(K, y, C):
    Q = y[:, None] * K * y[None, :]
    step = 1 / np.linalg.eigvalsh(Q)[-1]
    beta = np.full(len(y), C / 2)
    for _ in range(20_000):
        beta = np.clip(beta + step * (1 - Q @ beta), 0, C)
    return beta
