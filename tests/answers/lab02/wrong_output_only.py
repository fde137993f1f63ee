"""standard_attention_order: only the output is returned"""


def standard_attention_order(Q, K, V):
    return (Q @ K.T) @ V
