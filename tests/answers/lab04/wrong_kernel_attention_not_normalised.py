"""attention_by_kernel: your output matches attention without the normaliser"""


def attention_by_kernel(Q, K, V):
    return (Q @ K.T + 1) ** 2 @ V
