"""hard_attention: your output uses the key nearest to the query: use the key with the"""

import numpy as np


def hard_attention(Q, K, V):
    distance = np.linalg.norm(Q[:, None, :] - K[None, :, :], axis=-1)
    return V[distance.argmin(axis=1)]
