"""attention_by_kernel: a small number (1e-8) in the denominator hides 0/0 and changes the output"""


def attention_by_kernel(Q, K, V):
    S = (Q @ K.T + 1) ** 2
    return S @ V / (S.sum(axis=1, keepdims=True) + 1e-8)
