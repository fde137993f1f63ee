"""hard_attention: your search begins with a best score of 0"""

import numpy as np


def hard_attention(Q, K, V):
    rows = []
    for q in Q:
        best, largest = 0, 0.0
        for j, k in enumerate(K):
            if q @ k > largest:
                best, largest = j, q @ k
        rows.append(V[best])
    return np.array(rows)
