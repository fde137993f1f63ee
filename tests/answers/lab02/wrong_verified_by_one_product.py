"""verify_associativity: wrong in test_fails_where_neither_order_gives_numbers, a test of the lab"""

import numpy as np


def verify_associativity(Q, K, V):
    return bool(np.isfinite(Q @ K.T).all())
