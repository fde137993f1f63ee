"""verify_associativity: np.testing.assert_allclose raises AssertionError"""

import numpy as np


def verify_associativity(Q, K, V):
    standard, _ = standard_attention_order(Q, K, V)
    linear = linear_attention_order(Q, K, V, identity)
    np.testing.assert_allclose(standard, linear, rtol=1e-5)
    return True
