"""attention_by_kernel: 0/0 is returned as NaN"""


def attention_by_kernel(Q, K, V):
    S = (Q @ K.T + 1) ** 2
    return S @ V / S.sum(axis=1, keepdims=True)
