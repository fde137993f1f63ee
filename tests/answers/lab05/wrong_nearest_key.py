"""hard_attention: your output takes the key nearest to the query"""

import numpy as np


def hard_attention(Q, K, V):
    distance = np.linalg.norm(Q[:, None, :] - K[None, :, :], axis=-1)
    return V[distance.argmin(axis=1)]
