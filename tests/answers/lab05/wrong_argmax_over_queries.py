"""hard_attention: your argmax runs over the queries"""

import numpy as np


def hard_attention(Q, K, V):
    return V[np.argmax(K @ Q.T, axis=1)]
