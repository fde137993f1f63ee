"""standard_attention_order: the scores are divided by √d: there is no scale here"""

import numpy as np


def standard_attention_order(Q, K, V):
    weights = Q @ K.T / np.sqrt(Q.shape[1])
    return weights @ V, weights
