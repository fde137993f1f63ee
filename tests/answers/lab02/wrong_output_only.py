"""standard_attention_order: you return only the output: return the weights as well"""


def standard_attention_order(Q, K, V):
    return (Q @ K.T) @ V
